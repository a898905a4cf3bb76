"""Stage `bundle`: models/revpred, models/earlycurve.json, models/price-chains -> models/manifest.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.bundle import bundle

    bundle(
        parameters("tracking"),
        Path("models"),
        Path("reports"),
        Path("data/prices.parquet"),
        Path("data/curves.parquet"),
    )


if __name__ == "__main__":
    run_stage(main)
