"""Stage `bundle`: all that was trained, in models/ -> models/manifest.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.bundle import bundle

    bundle(
        parameters("tracking"),
        Path("models"),
        Path("reports"),
        Path("data/prices.parquet"),
        Path("data/capacity.parquet"),
        Path("data/curves.parquet"),
    )


if __name__ == "__main__":
    run_stage(main)
