"""Stage `evaluate`: data/record and data/reproductions -> report, pages, reports/metrics.json, tracked runs."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.evaluate import evaluate

    evaluate(
        parameters("evaluate"),
        parameters("tracking"),
        parameters("ingest")["source"],
        Path("data/record"),
        Path("data/reproductions"),
        Path("reports"),
    )


if __name__ == "__main__":
    run_stage(main)
