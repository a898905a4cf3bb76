"""Ingestion as a flow: prices and capacity from where the parameters say, to one clean file each."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.logging import get_run_logger

from ebbtide.base.files import write_text
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.probes import generated_probes, read_probes, write_probes
from ebbtide.market.ingestion import ingest_ec2, ingest_files
from ebbtide.market.prices import PriceHistory
from ebbtide.replay.generated_markets import generate_prices
from flows.parameters import Ec2Prices, ExportedPrices, GeneratedCapacity, GeneratedPrices, Ingest


def _may_pass(_task: object, _run: object, state: Any) -> bool:
    """Bad input stays bad; anything else is worth another try."""
    error = state.result(raise_on_failure=False)
    return not isinstance(error, InputError)


@task
def generated(into: Path, settings: GeneratedPrices) -> str:
    """Generate the prices of a market."""
    history = generate_prices(kind=settings.kind, days=settings.days, seed=settings.seed)
    history.write(into)
    return f"{history.change_points} rows generated"


@task
def from_files(into: Path, exports: Path, settings: ExportedPrices) -> str:
    """Read exports."""
    files = input_files(exports)
    if not files:
        raise InputError("holds no export, and ingest.source in params.yaml is files", file=exports)
    return str(ingest_files(files, into, file_format=settings.format, timezone=settings.timezone))


@task(retries=3, retry_delay_seconds=[10, 60, 300], retry_condition_fn=_may_pass)
def from_ec2(into: Path, settings: Ec2Prices) -> str:
    """Fetch what is new from EC2."""
    return str(ingest_ec2(settings.regions, into, instance_types=settings.instance_types))


@task
def from_batches(into: Path, files: list[Path]) -> str:
    """Add accepted batches one after the other, so that later ones correct earlier ones and results repeat."""
    return str(ingest_files(files, into))


@task
def generated_capacity(into: Path, prices: Path, settings: GeneratedCapacity) -> str:
    """Draw the capacity of every market of the prices, each like one of the recorded zones."""
    table = generated_probes(PriceHistory.read(prices), settings.seed, settings.tick_s)
    write_probes(table, into)
    return f"{len(table)} probes generated"


@task
def capacity_from_files(into: Path, records: Path) -> str:
    """Read records of capacity; without any, nothing is known."""
    files = input_files(records)
    table = read_probes(files)
    write_probes(table, into)
    return f"{len(table)} probes from {len(files)} files"


@flow(name="ingest")
def ingest(
    parameters: Ingest,
    exports: Path,
    batches: Path,
    capacity_records: Path,
    prices: Path,
    price_source: Path,
    capacity: Path,
) -> None:
    """Bring `prices` and `capacity` up to date.

    Args:
        parameters: Where prices and capacity come from.
        exports: Folder of price files, for source `files`.
        batches: Folder of accepted batches to be added.
        capacity_records: Folder of records of capacity, for their source `files`.
        prices: The price file.
        price_source: The source of its prices, beside it: a price file that DVC restores has its own.
        capacity: The file of probes of capacity.

    Raises:
        InputError: An input is not what it should be, or EC2's prices would be added to those of another source.
    """
    _begin(prices, price_source, parameters.source)
    if parameters.source == "generated":
        done = generated(prices, parameters.generated)
    elif parameters.source == "files":
        done = from_files(prices, exports, parameters.files)
    else:
        done = from_ec2(prices, parameters.ec2)
    get_run_logger().info("%s: %s", prices, done)
    if accepted := accepted_batches(batches):
        get_run_logger().info("%s: %s", prices, from_batches(prices, accepted))
    if parameters.capacity.source == "generated":
        done = generated_capacity(capacity, prices, parameters.capacity.generated)
    else:
        done = capacity_from_files(capacity, capacity_records)
    get_run_logger().info("%s: %s", capacity, done)


def _begin(prices: Path, price_source: Path, source: str) -> None:
    """Delete the prices of before, unless EC2 is asked and they are its own: it keeps them for 90 days only."""
    told = price_source.read_bytes() if price_source.exists() else b""
    before = told.decode(errors="replace").strip().casefold()
    if source == "ec2" and before not in ("ec2", "files", "generated") and prices.exists():
        problem = f"is of an unknown source: delete it, or, if its prices are EC2's, write ec2 to {price_source}"
        raise InputError(problem, file=prices)
    if source != "ec2" or before != source:
        prices.unlink(missing_ok=True)
    write_text(price_source, f"{source}\n")


def input_files(folder: Path) -> list[Path]:
    """Files and folders at the top of an input's folder, without hidden and unfinished ones, and those of DVC."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in found if not file.name.startswith(".") and file.suffix not in (".dvc", ".part"))


def accepted_batches(folder: Path) -> list[Path]:
    """Batches that were accepted, by the numbers with which their names begin: the order in which they came."""
    found = [file for file in input_files(folder) if file.name[0].isdecimal()]
    return sorted(found, key=lambda file: (number_of(file), file.name))


def number_of(batch: Path) -> int:
    """The number with which a batch's name begins."""
    return int("".join(takewhile(str.isdecimal, batch.name)))
