"""Stage `calibrate_earlycurve`: data/curves.parquet -> models/earlycurve.json and reports/earlycurve.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.calibrate_earlycurve import calibrate_earlycurve

    calibrate_earlycurve(
        parameters("calibrate_earlycurve"),
        parameters("tracking"),
        Path("data/curves.parquet"),
        Path("models/earlycurve.json"),
        Path("reports/earlycurve.json"),
    )


if __name__ == "__main__":
    run_stage(main)
