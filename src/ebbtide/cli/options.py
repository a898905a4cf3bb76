"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ebbtide._terminal import PlainConsole
from ebbtide.errors import InputError
from ebbtide.market.billing import PRESETS
from ebbtide.market.catalogue import Catalogue, default_catalogue, read_instance_types
from ebbtide.market.generator import generate_prices
from ebbtide.market.prices import PriceHistory

TABLE_WIDTH = 120

InstanceTypesOption = Annotated[
    Path | None,
    typer.Option(
        "--instance-types",
        metavar="FILE.csv",
        help="More instance types: cloud, instance_type, vcpus, memory_gib, accelerator, accelerator_count.",
    ),
]

SpellsOption = Annotated[
    Path | None,
    typer.Option(
        "--spells",
        metavar="FILE.json",
        help="Models of capacity written by `availability fit`; by default those of any zone.",
    ),
]


def terminal() -> Console:
    """Standard output, wide enough for our tables even without a set width; names are shown as written."""
    console = PlainConsole()
    return console if console.width >= TABLE_WIDTH else PlainConsole(width=TABLE_WIDTH)


def table_console() -> Console:
    """Standard output for tables that adapt to its width; wide enough for any in a file or a pipe."""
    console = PlainConsole()
    fits = console.is_terminal or os.environ.get("COLUMNS")
    return console if fits else PlainConsole(width=TABLE_WIDTH)


PricesOption = Annotated[Path | None, typer.Option("--prices", help="A Parquet file of prices.")]
GenerateOption = Annotated[
    float | None,
    typer.Option("--generate", metavar="DAYS", help="Generate a market of this many days instead."),
]
BillingOption = Annotated[str, typer.Option("--billing", help=f"Billing of spot leases: {', '.join(PRESETS)}.")]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Start of the record to use: 2015-04-01 or 2015-04-01T12:00:00Z."),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the record to use.")]


def catalogue_with(path: Path | None) -> Catalogue:
    """The built-in catalogue, with the user's types added if there are any."""
    return default_catalogue() + read_instance_types(path) if path else default_catalogue()


def windowed(history: PriceHistory, start: str | None, end: str | None) -> PriceHistory:
    """The part of a history from `start` to `end`; a date alone means midnight in UTC.

    Raises:
        InputError: A time does not parse, or the window is not inside the history.
    """
    if start is None and end is None:
        return history
    midnight = "T00:00:00Z"
    first, last = (
        f"{time}{midnight}" if time and len(time) == len("2015-04-01") else time for time in (start, end)
    )
    return history.window(first or history.start_s, last or history.end_s)


def prices_from(path: Path | None, generate_days: float | None, seed: int, catalogue: Catalogue) -> PriceHistory:
    """The price history in a file, or a generated one.

    Raises:
        InputError: Both or neither is given.
    """
    if (path is None) == (generate_days is None):
        raise InputError("give either --prices FILE or --generate DAYS")
    if path is not None:
        return PriceHistory.read(path, catalogue)
    return generate_prices(days=generate_days or 0.0, seed=seed)
