"""Stage `ingest`: params.yaml -> data/prices.parquet and data/capacity.parquet."""

from pathlib import Path

from pipelines.stage import parameters, run_stage


def main() -> None:
    from flows.ingest import ingest

    data = Path("data")
    ingest(parameters("ingest"), data / "prices.parquet", data / "accepted", data / "capacity.parquet")


if __name__ == "__main__":
    run_stage(main)
