"""Stage `fit_price_model`: data/prices.parquet -> models/price-chains and reports/price-chains.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.fit_price_model import fit_price_model

    fit_price_model(
        parameters("fit_price_model"),
        parameters("tracking"),
        Path("data/prices.parquet"),
        Path("models/price-chains"),
        Path("reports/price-chains.json"),
    )


if __name__ == "__main__":
    run_stage(main)
