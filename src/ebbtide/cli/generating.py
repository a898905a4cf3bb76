"""`ebbtide generate`: generate prices for the other commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.base.utc import iso
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.probes import probes_of_capacity, read_probes, write_probes
from ebbtide.market.availability import Availability
from ebbtide.market.prices import PriceHistory
from ebbtide.replay.generated_markets import KINDS_HELP, MarketKind, generate_capacity, generate_prices

if TYPE_CHECKING:
    import pandas as pd

# Suggested as the next step if the file exists.
_EXAMPLE = Path("examples/one-day.yaml")

# Seconds between two probes of generated capacity.
_TICK_S = 600.0


def generate_command(
    into: Annotated[Path, typer.Option("--into", "-o", help="The Parquet file to write.")] = Path(
        "prices.parquet"
    ),
    days: Annotated[float, typer.Option(min=0.01, max=3650.0, help="Length of the record, days.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same prices.")] = 0,
    kind: Annotated[MarketKind, typer.Option(help=KINDS_HELP)] = MarketKind.TODAY,
) -> None:
    """Generate prices for the other commands: no account, no download.

    Where capacity decides, as it does today, it is written beside the prices: with prices.parquet,
    prices-capacity.parquet. An existing file is never overwritten.

        ebbtide generate --into prices.parquet
        ebbtide generate --kind auction --days 60 --into auction.parquet
    """
    beside = capacity_path(into)
    refuse_other(into)
    if kind is MarketKind.TODAY:
        refuse_other(beside)
    if not into.parent.exists():
        typer.echo(f"{into.parent}: no such folder; it is created", err=True)
    with progress("generating prices") as state:
        history = generate_prices(kind=kind, days=days, seed=seed, on_progress=state.of)
        capacity = generate_capacity(history, kind=kind, seed=seed)
        write_generated(history, capacity, into)
    typer.echo(f"{into}: {len(history)} markets, {iso(history.start_s)} to {iso(history.end_s)}, generated")
    file, recorded = shlex.quote(str(into)), ""
    if capacity is not None:
        typer.echo(f"{beside}: when each has machines, generated")
        recorded = f" --availability {shlex.quote(str(beside))}"
    typer.echo(f"next: ebbtide describe {file}")
    if kind is not MarketKind.GPU and _EXAMPLE.is_file():
        typer.echo(f"  or: ebbtide compare {_EXAMPLE} --prices {file}{recorded}")


def refuse_other(path: Path) -> None:
    """Raise `InputError` if the path to write is a folder."""
    if path.is_dir():
        raise InputError("is a folder; name a file to write, such as prices.parquet", file=path)


def capacity_path(prices: Path) -> Path:
    """Return the path of the capacity file beside a file of prices."""
    return prices.with_name(f"{prices.stem}-capacity{prices.suffix}")


def write_generated(history: PriceHistory, capacity: Availability | None, prices_file: Path) -> None:
    """Write generated prices, and capacity beside them; files that exist with the same content stay.

    Raises:
        InputError: A file exists with other content; then none is written.
    """
    beside = capacity_path(prices_file)
    probes = None if capacity is None else probes_of_capacity(capacity, _TICK_S)
    new_prices = _is_new(prices_file, lambda: _has_prices(prices_file, history))
    if probes is not None and _is_new(beside, lambda: _has_probes(beside, probes)):
        write_probes(probes, beside)
    if new_prices:
        history.write(prices_file)


def _is_new(path: Path, is_same: Callable[[], bool]) -> bool:
    """Return whether the file does not exist yet.

    Raises:
        InputError: It exists with other content.
    """
    if not path.exists():
        return True
    try:
        same = is_same()
    except InputError:
        same = False
    if not same:
        raise InputError("exists already, with other content; remove it or name another file", file=path)
    return False


def _has_prices(path: Path, history: PriceHistory) -> bool:
    written = PriceHistory.from_frame(history.to_frame(), start_s=history.start_s, end_s=history.end_s)
    return PriceHistory.read(path).equals(written)


def _has_probes(path: Path, probes: pd.DataFrame) -> bool:
    return bool(read_probes([path]).astype(str).equals(probes.astype(str)))
