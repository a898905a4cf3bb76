"""`ebbtide generate`: generated prices for the other commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ebbtide._utc import iso
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.market.generator import generate_prices, generate_smooth_prices
from ebbtide.market.prices import PriceHistory

# Suggested as the next step if the file exists.
_EXAMPLE = Path("examples/one-day.yaml")


class Kind(StrEnum):
    """The kind of market."""

    AUCTION = "auction"
    GPU = "gpu"


_GENERATORS: dict[Kind, Callable[..., PriceHistory]] = {
    Kind.AUCTION: generate_prices,
    Kind.GPU: generate_smooth_prices,
}


def generate_command(
    into: Annotated[Path, typer.Option("--into", "-o", help="The Parquet file to write.")] = Path(
        "prices.parquet"
    ),
    days: Annotated[float, typer.Option(min=0.01, max=3650.0, help="Length of the record, days.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same prices.")] = 0,
    kind: Annotated[
        Kind,
        typer.Option(
            help="auction: EC2 until 2017, with spikes far above the list price that revoke machines; gpu: GPU "
            "machines since 2017, with prices that move slowly below it."
        ),
    ] = Kind.AUCTION,
) -> None:
    """Generate prices for the other commands: no account, no download.

    An existing file is never overwritten.

        ebbtide generate --into prices.parquet
        ebbtide generate --kind gpu --days 60 --into gpu.parquet
    """
    refuse_other(into)
    if not into.parent.is_dir():
        typer.echo(f"{into.parent}: no such folder; it is created", err=True)
    with progress("generating prices") as state:
        history = _GENERATORS[kind](days=days, seed=seed, on_progress=state.of)
        write_new(history, into)
    typer.echo(f"{into}: {len(history)} markets, {iso(history.start_s)} to {iso(history.end_s)}, generated")
    file = shlex.quote(str(into))
    typer.echo(f"next: ebbtide describe {file}")
    if kind is Kind.AUCTION and _EXAMPLE.is_file():
        typer.echo(f"  or: ebbtide backtest {_EXAMPLE} --prices {file} --policies on-demand,reactive")


def refuse_other(path: Path) -> None:
    """Raise `InputError` if the path to write is a folder."""
    if path.is_dir():
        raise InputError("is a folder; name a file to write, such as prices.parquet", file=path)


def write_new(history: PriceHistory, path: Path) -> None:
    """Write prices unless the file exists with other content.

    Raises:
        InputError: The file exists with other content.
    """
    if path.exists():
        try:
            # A file contains the time of its last change, not the end of the record.
            same = PriceHistory.read(path).equals(PriceHistory.from_frame(history.to_frame()))
        except InputError:
            same = False
        if not same:
            raise InputError("exists already, with other content; remove it or name another file", file=path)
        return
    history.write(path)
