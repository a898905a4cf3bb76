"""`ebbtide availability`: how spot capacity comes and goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide._utc import HOUR_S
from ebbtide.cli.options import terminal
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.forecasts.spells.fitting import DOWN, UP, SpellModel
from ebbtide.forecasts.spells.models import SpellModels
from ebbtide.market.prices import PriceHistory

availability_app = typer.Typer(no_args_is_help=True, help="Models of when spot machines are available.")


@availability_app.command("fit")
def fit_command(
    records: Annotated[
        Path, typer.Argument(help="A table of probes, capacity rounds, or ticks of single machines.")
    ],
    out: Annotated[Path, typer.Option(help="File to write the models to.")],
    pooled: Annotated[bool, typer.Option("--pooled", help="Fit no model of a single zone.")] = False,
) -> None:
    """Fit models of how long machines stay available or unavailable, by age of the spell and time of day.

    `plan` and `run` take the file with --spells.

    ebbtide availability fit probes.parquet --out spells.json
    """
    from ebbtide.forecasts.spells.models import fit_file

    with progress(f"fitting {records.name}"):
        found = fit_file(records)
    if pooled:
        found = SpellModels(found.otherwise, types=found.types)
    _write(found, out)


@availability_app.command("adjust")
def adjust_command(
    prices: Annotated[Path, typer.Argument(help="A price file, whose markets are adjusted.")],
    out: Annotated[Path, typer.Option(help="File to write the models to.")],
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
    """Adjust models of availability to what AWS publishes of each market: interruption bands, placement scores.

    Neither is published together with outcomes: their effect is an assumption, which docs/deadlines.md states.

    ebbtide availability adjust prices.parquet --bands spot-advisor-data.json --out spells.json
    """
    from ebbtide.forecasts.spells.models import default_spell_models
    from ebbtide.forecasts.spells.public_signals import PublicSignals, placement_scores, read_interruption_bands

    if bands is None and not scores:
        raise InputError("there is nothing to adjust to; give --bands FILE, --scores or both")
    models = default_spell_models() if spells is None else SpellModels.read(spells)
    markets = PriceHistory.read(prices).markets
    signals = PublicSignals() if bands is None else read_interruption_bands(bands)
    if scores:
        import boto3

        regions = sorted({market.region for market in markets})
        client = boto3.Session().client("ec2", region_name=regions[0])
        with progress("asking EC2 for placement scores"):
            asked = placement_scores(client, sorted({market.instance_type for market in markets}), regions)
        signals = replace(signals, scores=asked.scores)
    _write(signals.of(models, markets), out)


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
