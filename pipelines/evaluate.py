"""Stage `evaluate`: data/record and data/reproductions -> report, pages, reports/metrics.json, tracked runs."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.evaluate import evaluate

    execute = parameters("execute")
    made_with = {
        "prices": parameters("ingest")["source"],
        "job": execute["job"],
        "billing": execute["billing"],
        "starts": execute["starts"],
        "seed": execute["seed"],
    }
    record, reproductions = Path("data/record"), Path("data/reproductions")
    evaluate(parameters("evaluate"), parameters("tracking"), made_with, record, reproductions, Path("reports"))


if __name__ == "__main__":
    run_stage(main)
