"""Stage `solve`: the models that models/manifest.json names, and data/prices.parquet -> models/solved."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.solve import solve

    solve(parameters("solve"), parameters("tracking"), Path("models"), Path("data/prices.parquet"))


if __name__ == "__main__":
    run_stage(main)
