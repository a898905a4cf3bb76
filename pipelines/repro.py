"""`dvc repro` with one Prefect server for all stages: `python -m pipelines.repro [STAGE ...]`."""

import sys

from pipelines.stage import run_stage


def main() -> None:
    from flows.pipeline import pipeline

    sys.exit(pipeline(sys.argv[1:]))


if __name__ == "__main__":
    run_stage(main)
