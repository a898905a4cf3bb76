"""One nightly run, without a schedule: prints a summary of what changed."""

import sys

from pipelines.stage import run_stage


def main() -> None:
    from flows.nightly import nightly

    sys.stdout.write(nightly() + "\n")


if __name__ == "__main__":
    run_stage(main)
