"""Stage `measure_curves`: trainings of Table II -> data/curves.parquet and a tracked run for each setting."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.measure_curves import measure_curves

    measure_curves(parameters("measure_curves"), parameters("tracking"), Path("data/curves.parquet"))


if __name__ == "__main__":
    run_stage(main)
