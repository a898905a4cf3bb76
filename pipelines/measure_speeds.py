"""Stage `measure_speeds`: the runs that are kept -> models/speeds.json and reports/speeds.json."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.measure_speeds import measure_speeds

    measure_speeds(parameters("measure_speeds"), Path("models/speeds.json"), Path("reports/speeds.json"))


if __name__ == "__main__":
    run_stage(main)
