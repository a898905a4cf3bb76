"""Stage `train_revpred`: data/price-grid.parquet, prices -> models/revpred and reports/revpred.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.train_revpred import train_revpred

    train_revpred(
        parameters("train_revpred"),
        Path("data/prices.parquet"),
        Path("data/price-grid.parquet"),
        Path("models/revpred"),
        Path("reports/revpred.json"),
    )


if __name__ == "__main__":
    run_stage(main)
