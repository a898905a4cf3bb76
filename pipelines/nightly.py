"""One nightly run, without a schedule: prints a summary; exit code 1 if a due job did not finish."""

import sys

from ebbtide.errors import TrainingError
from pipelines.stage import run_stage


def main() -> None:
    from flows.nightly import SUMMARY, nightly

    try:
        sys.stdout.write(nightly() + "\n")
    except TrainingError as error:
        sys.stdout.write(SUMMARY.read_text(encoding="utf-8") + "\n")
        sys.stderr.write(f"ebbtide: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    run_stage(main)
