"""Stage `interpolate`: data/prices.parquet -> data/price-grid.parquet."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.interpolate import interpolate

    interpolate(parameters("interpolate"), Path("data/prices.parquet"), Path("data/price-grid.parquet"))


if __name__ == "__main__":
    run_stage(main)
