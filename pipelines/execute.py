"""Stage `execute`: data/prices.parquet and models -> a folder for each job in data/record."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.execute import execute

    execute(parameters("execute"), Path("data/prices.parquet"), Path("models"), Path("data/record"))


if __name__ == "__main__":
    run_stage(main)
