"""Ingestion as a flow: prices and capacity from where the parameters say, to one clean file each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.logging import get_run_logger

from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.capacity.probes import generated_probes, read_probes, write_probes
from ebbtide.market.generator import generate_auction_prices
from ebbtide.market.ingestion import ingest_ec2, ingest_files
from ebbtide.market.prices import PriceHistory


def _may_pass(_task: object, _run: object, state: Any) -> bool:
    """Bad input stays bad; anything else is worth another try."""
    error = state.result(raise_on_failure=False)
    return not isinstance(error, InputError)


@task
def generated(into: Path, days: float, seed: int) -> str:
    """Generate the prices of a market."""
    history = generate_auction_prices(days=days, seed=seed)
    history.write(into)
    return f"{history.change_points} rows generated"


@task
def from_files(into: Path, paths: list[str], file_format: str | None, timezone: str | None) -> str:
    """Read exports."""
    if not paths:
        raise InputError("names no file", file="params.yaml", field="ingest.files.paths")
    return str(ingest_files(paths, into, file_format=file_format, timezone=timezone))


@task(retries=3, retry_delay_seconds=[10, 60, 300], retry_condition_fn=_may_pass)
def from_ec2(into: Path, regions: list[str], instance_types: list[str]) -> str:
    """Fetch what is new from EC2."""
    return str(ingest_ec2(regions, into, instance_types=instance_types))


@task
def from_batches(into: Path, accepted: Path) -> str:
    """Add the batches that nightly runs accepted, in the order of their names, so that results repeat."""
    return str(ingest_files(sorted(accepted.iterdir()), into))


@task
def generated_capacity(into: Path, prices: Path, tick_s: float, seed: int) -> str:
    """Draw the capacity of every market of the prices: each has spells of its own level."""
    table = generated_probes(PriceHistory.read(prices), seed, tick_s)
    write_probes(table, into)
    return f"{len(table)} probes generated"


@task
def capacity_from_files(into: Path, paths: list[str]) -> str:
    """Read records of capacity; without any, an empty one."""
    table = read_probes([Path(path) for path in paths])
    write_probes(table, into)
    return f"{len(table)} probes from {len(paths)} files"


@flow(name="ingest")
def ingest(parameters: Mapping[str, Any], into: Path, accepted: Path, capacity_into: Path) -> None:
    """Bring `into` and `capacity_into` up to date.

    Args:
        parameters: The `ingest` section of params.yaml.
        into: The price file.
        accepted: Folder of batches to be added, if it is there.
        capacity_into: The file of probes of capacity.
    """
    source = parameters["source"]
    if source == "generated":
        done = generated(into, **parameters["generated"])
    elif source == "files":
        files = parameters["files"]
        done = from_files(into, files["paths"], files["format"], files["timezone"])
    elif source == "ec2":
        done = from_ec2(into, **parameters["ec2"])
    else:
        raise unknown_name("source in params.yaml", str(source), ("generated", "files", "ec2"))
    get_run_logger().info("%s: %s", into, done)
    if accepted.exists():
        get_run_logger().info("%s: %s", into, from_batches(into, accepted))
    capacity = parameters["capacity"]
    if capacity["source"] == "generated":
        done = generated_capacity(capacity_into, into, **capacity["generated"])
    elif capacity["source"] == "files":
        done = capacity_from_files(capacity_into, capacity["files"]["paths"])
    else:
        sources = ("generated", "files")
        raise unknown_name("source of capacity in params.yaml", str(capacity["source"]), sources)
    get_run_logger().info("%s: %s", capacity_into, done)
