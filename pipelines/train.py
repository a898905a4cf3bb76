"""The due jobs without the rest of the night: `python -m pipelines.train`; exit code 1 if one did not finish."""

import sys

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.train import rows_of, train

    from ebbtide.tracking.due_runs import failed

    jobs = parameters("nightly")["jobs"]
    results = [] if jobs is None else train(jobs)
    for row in rows_of(results):
        sys.stdout.write(", ".join(f"{name} {value}" for name, value in row.items() if value != "") + "\n")
    if problem := failed(results):
        sys.stderr.write(f"ebbtide: {problem}\n")
        sys.exit(1)


if __name__ == "__main__":
    run_stage(main)
