"""`ebbtide availability`: how spot capacity comes and goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.utc import HOUR_S, iso
from ebbtide.cli.options import terminal
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import DOWN, UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.market.markets import Market
from ebbtide.market.price_store import PriceStore
from ebbtide.market.prices import PriceHistory
from ebbtide.market.signals import Signal
from ebbtide.market.sources.stored import is_price_store

availability_app = typer.Typer(no_args_is_help=True, help="Models of when spot machines are available.")


@availability_app.command("fit")
def fit_command(
    records: Annotated[
        Path,
        typer.Argument(
            help="A table of probes, capacity rounds, or ticks of single machines; or a price store with capacity."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write the models to.")],
    pooled: Annotated[bool, typer.Option("--pooled", help="Fit no model of a single zone.")] = False,
) -> None:
    """Fit models of how long machines stay available or unavailable, by age of the spell and time of day.

    `plan` and `run` take the file with --spells.

    ebbtide availability fit probes.parquet --out spells.json
    """
    from ebbtide.forecasts.capacity.models import fit_file

    with progress(f"fitting {records.name}"):
        found = fit_file(records)
    if pooled:
        found = SpellModels(found.otherwise, types=found.types)
    _write(found, out)


@availability_app.command("adjust")
def adjust_command(
    prices: Annotated[
        Path, typer.Argument(help="A price file, or a price store (`ebbtide watch`), whose markets are adjusted.")
    ],
    out: Annotated[Path, typer.Option(help="File to write the models to.")],
    kept: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PRICES.db", help="Signals that `ebbtide watch` has kept.", show_default=False
        ),
    ] = None,
    bands: Annotated[
        Path | None,
        typer.Option(help="Interruption bands: AWS's spot-advisor-data.json, downloaded.", show_default=False),
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Ask EC2 for today's placement scores; needs AWS credentials.")
    ] = False,
    spells: Annotated[
        Path | None,
        typer.Option(help="Models to adjust; without, those of the package.", show_default=False),
    ] = None,
) -> None:
    """Adjust models of availability to what clouds publish of each market: interruptions, chances of a request.

    Neither is published together with outcomes: their effect is an assumption, which docs/deadlines.md states.
    Where several are given, kept signals go before bands, and scores before both.

        ebbtide availability adjust prices.parquet --bands spot-advisor-data.json --out spells.json
        ebbtide availability adjust prices.db --from prices.db --out spells.json
    """
    from ebbtide.forecasts.capacity.models import default_spell_models
    from ebbtide.forecasts.capacity.public_signals import PublicSignals, read_interruption_bands

    if bands is None and kept is None and not scores:
        raise InputError("there is nothing to adjust to; give --from PRICES.db, --bands FILE or --scores")
    models = default_spell_models() if spells is None else SpellModels.read(spells)
    history = PriceHistory.read(prices)
    markets = history.markets
    signals = PublicSignals() if bands is None else read_interruption_bands(bands)
    if kept is not None:
        signals = signals | PublicSignals.of_signals(_kept(kept))
    if scores:
        with progress("asking EC2 for placement scores"):
            signals = signals | PublicSignals.of_signals(_scores(markets))
    told = [market for market in markets if signals.told_of(market)]
    if not told:
        raise InputError("there is no signal of any of its markets", file=prices)
    _write(signals.of(models, told), out)
    if len(told) < len(markets):
        typer.echo(
            f"{len(markets) - len(told)} of {len(markets)} markets stay as they were: nothing is told of them"
        )


def _kept(path: Path) -> list[Signal]:
    """Read the latest signals of a price store."""
    if not is_price_store(path):
        raise InputError("is no price store; `ebbtide watch --into FILE.db` makes one", file=path)
    found = PriceStore(path).latest_signals()
    if not found:
        raise InputError("has no signals; `ebbtide watch --source ...` keeps them", file=path)
    typer.echo(f"{len(found)} signals, of {iso(found[0].time_s)} to {iso(found[-1].time_s)}")
    return found


def _scores(markets: Sequence[Market]) -> Sequence[Signal]:
    """Request today's placement scores of AWS's markets."""
    from ebbtide.market.sources.ec2_scores import Ec2Scores

    regions = sorted({market.region for market in markets if market.cloud == "aws"})
    types = sorted({market.instance_type for market in markets if market.cloud == "aws"})
    if not regions:
        raise InputError("--scores are of AWS, and none of the markets is")
    return Ec2Scores(regions, types).observe({}, time.time()).signals


def _write(models: SpellModels, out: Path) -> None:
    models.write(out)
    table = Table(title="spells", box=SIMPLE_HEAD)
    for heading in ("market", "available", "mean up h", "mean down h", "up after 6 h: left h"):
        table.add_column(heading, justify="left" if heading == "market" else "right")
    for name, model in [*sorted(models.by_market.items()), ("any other", models.otherwise)]:
        table.add_row(name, *_cells(model))
    terminal().print(table)
    typer.echo(f"wrote {out}")


def _cells(model: SpellModel) -> list[str]:
    hours = [model.mean_left_s(UP, 0.0), model.mean_left_s(DOWN, 0.0), model.mean_left_s(UP, 6 * HOUR_S)]
    return [f"{model.share_up:.0%}", *(f"{seconds / HOUR_S:.1f}" for seconds in hours)]
