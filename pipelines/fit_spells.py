"""Stage `fit_spells`: data/capacity.parquet -> models/spells.json, models/hazard.json and a report of each."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.fit_spells import fit_spells

    fit_spells(
        parameters("fit_spells"),
        Path("data/prices.parquet"),
        Path("data/capacity.parquet"),
        Path("models"),
        Path("reports"),
    )


if __name__ == "__main__":
    run_stage(main)
