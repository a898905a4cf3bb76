"""Stage `ingest`: params.yaml -> data/prices.parquet."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.ingest import ingest

    ingest(parameters("ingest"), Path("data/prices.parquet"), Path("data/accepted"))


if __name__ == "__main__":
    run_stage(main)
