"""Stage `execute`: prices, capacity and models -> a folder for each job in data/record."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.execute import execute

    data = Path("data")
    execute(
        parameters("execute"), data / "prices.parquet", data / "capacity.parquet", Path("models"), data / "record"
    )


if __name__ == "__main__":
    run_stage(main)
