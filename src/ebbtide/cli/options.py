"""Options and groups of options that several commands share; the help text of each describes it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ebbtide.base.files import check_place
from ebbtide.base.terminal import PlainConsole
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import DEFAULT_BUNDLE, ModelBundle
from ebbtide.forecasts.champions import default_models, read_models
from ebbtide.jobs.job_files import Speeds
from ebbtide.market.availability import Availability
from ebbtide.market.billing import PRESETS
from ebbtide.market.catalogue import Catalogue, default_catalogue, with_own
from ebbtide.market.prices import PriceHistory
from ebbtide.replay.generated_markets import KINDS_HELP, MarketKind, generate_capacity, generate_prices

TABLE_WIDTH = 120

InstanceTypesOption = Annotated[
    Path | None,
    typer.Option(
        "--instance-types",
        metavar="FILE.csv|FOLDER",
        help="More instance types: cloud, instance_type, vcpus, memory_gib, accelerator, accelerator_count; or a "
        "folder with list prices as well, as `catalogue update` writes it.",
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


ModelsOption = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FOLDER",
        help="Learnt models that policies ask, as the pipeline writes them, or champion: those of the MLflow "
        f"registry; by default those in {DEFAULT_BUNDLE}/, if they were trained on earlier days.",
    ),
]


@dataclass(frozen=True)
class Models:
    """The bundle of learnt models for policies."""

    models: ModelsOption = None

    @property
    def speeds(self) -> Speeds:
        """Measured speeds in the bundle; they depend on no dates, so a bundle of any date serves.

        Raises:
            InputError: The named folder is no bundle, or the registry has no champion.
        """
        found = read_models(self.models) if self.models is not None else default_models(math.inf)[0]
        return {} if found is None else found.speeds

    def bundle(self, first_s: float) -> ModelBundle | None:
        """Read the named bundle, else the default one; prints why if an existing default is not used.

        Args:
            first_s: The earliest start of any run, seconds since 1970.

        Raises:
            InputError: The named folder is no bundle, or the registry has no champion.
        """
        if self.models is not None:
            return read_models(self.models)
        found, why_not = default_models(first_s)
        if why_not:
            typer.echo(why_not)
        return found


def terminal() -> Console:
    """Make a console at standard output, at least as wide as Ebbtide's tables, that shows names as written."""
    console = PlainConsole()
    return console if console.width >= TABLE_WIDTH else PlainConsole(width=TABLE_WIDTH)


def table_console() -> Console:
    """Make a console for tables that adapt to a terminal's width; wide enough for any in a file or a pipe."""
    console = PlainConsole()
    fits = console.is_terminal or os.environ.get("COLUMNS")
    return console if fits else PlainConsole(width=TABLE_WIDTH)


BillingOption = Annotated[str, typer.Option("--billing", help=f"Billing of spot leases: {', '.join(PRESETS)}.")]


@dataclass(frozen=True)
class Source:
    """Prices from a file, or generated ones."""

    prices: Annotated[Path | None, typer.Option("--prices", help="A Parquet file of prices.")] = None
    generate: Annotated[
        float | None,
        typer.Option("--generate", metavar="DAYS", help="Generate a market of this many days instead."),
    ] = None
    kind: Annotated[MarketKind, typer.Option("--kind", help=f"Kind of a generated market. {KINDS_HELP}")] = (
        MarketKind.TODAY
    )

    def capacity(self, history: PriceHistory, seed: int, recorded: Path | None = None) -> Availability | None:
        """Return the markets' capacity, recorded or generated; None: machines are always available.

        Args:
            history: The prices.
            seed: Seed of generated capacity.
            recorded: A Parquet record of capacity, if there is one.

        Raises:
            InputError: The record cannot be read, or has none of the markets.
        """
        if recorded is not None:
            found = Availability.read(recorded)
            if not set(found) & set(history):
                # Markets without a record would count as always available.
                raise InputError(
                    f"has capacity of none of the markets with prices, which are {len(history)}, as "
                    f"{next(iter(history))}",
                    file=recorded,
                )
            return found
        return None if self.generate is None else generate_capacity(history, kind=self.kind, seed=seed)

    def history(self, seed: int, catalogue: Catalogue) -> PriceHistory:
        """Read or generate the prices.

        Args:
            seed: Seed of generated prices.
            catalogue: Instance types and their list prices.

        Raises:
            InputError: Both or neither of prices and generated days are given, or prices and a kind of market.
        """
        if (self.prices is None) == (self.generate is None):
            raise InputError("give either --prices FILE or --generate DAYS")
        if self.prices is not None:
            if self.kind is not type(self).kind:
                raise InputError(f"--kind {self.kind} is of a generated market; it says nothing beside --prices")
            return PriceHistory.read(self.prices, catalogue)
        return generate_prices(kind=self.kind, days=self.generate or 0.0, seed=seed)


@dataclass(frozen=True)
class Window:
    """The part of a record to use."""

    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Start of the record to use: 2015-04-01 or 2015-04-01T12:00:00Z."
        ),
    ] = None
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the record to use.")] = None

    def of(self, history: PriceHistory) -> PriceHistory:
        """Cut this part out of a history; a date alone means midnight in UTC.

        Raises:
            InputError: A time does not parse, or the window is not inside the history.
        """
        if self.start is None and self.end is None:
            return history
        midnight = "T00:00:00Z"
        first, last = (
            f"{time}{midnight}" if time and len(time) == len("2015-04-01") else time
            for time in (self.start, self.end)
        )
        return history.window(first or history.start_s, last or history.end_s)


@dataclass(frozen=True)
class WindowedSource(Window, Source):
    """Prices from a file, or generated ones, and the part of them to use."""

    def history(self, seed: int, catalogue: Catalogue) -> PriceHistory:
        return self.of(super().history(seed, catalogue))


def catalogue_with(path: Path | None) -> Catalogue:
    """Return the built-in catalogue, with the user's types and list prices if there are any."""
    return with_own(default_catalogue(), path) if path else default_catalogue()


def to_be_written(path: Path | None) -> Path | None:
    """Check that an output file can be written, before the work is done; returns its path.

    Raises:
        InputError: The file cannot be written.
    """
    if path is not None:
        check_place(path)
    return path


def print_written(*paths: Path | None) -> None:
    """Print a line for each file or folder that was written."""
    for path in paths:
        if path:
            typer.echo(f"wrote {path}")
