"""Stage `promote`: models/manifest.json and what it names -> the MLflow registry and reports/promotion.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.promote import promote

    promote(
        parameters("promote"),
        parameters("tracking"),
        Path("models"),
        Path("data/prices.parquet"),
        Path("data/curves.parquet"),
        Path("data/capacity.parquet"),
        Path("reports/promotion.json"),
    )


if __name__ == "__main__":
    run_stage(main)
