"""Stage `fit_spells`: data/capacity.parquet -> models/spells.json and reports/spells.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.fit_spells import fit_spells

    fit_spells(
        parameters("fit_spells"),
        Path("data/prices.parquet"),
        Path("data/capacity.parquet"),
        Path("models/spells.json"),
        Path("reports/spells.json"),
    )


if __name__ == "__main__":
    run_stage(main)
