"""`ebbtide availability`: how spot capacity comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide._utc import HOUR_S
from ebbtide.cli.options import terminal
from ebbtide.cli.progress import progress
from ebbtide.forecasts.spells.fitting import DOWN, UP, SpellModel
from ebbtide.forecasts.spells.models import SpellModels

availability_app = typer.Typer(no_args_is_help=True, help="Models of when spot machines are available.")


@availability_app.callback()
def _group() -> None:
    """Makes `fit` a subcommand although it is the only one."""


@availability_app.command("fit")
def fit_command(
    records: Annotated[
        Path, typer.Argument(help="A table of probes, capacity rounds, or ticks of single machines.")
    ],
    out: Annotated[Path, typer.Option(help="File to write the models to.")],
    pooled: Annotated[bool, typer.Option("--pooled", help="Fit only one model for all zones.")] = False,
) -> None:
    """Fit models of how long machines stay available or unavailable, by age of the spell and time of day.

    `plan` and `run` take the file with --spells.

    ebbtide availability fit probes.parquet --out spells.json
    """
    from ebbtide.forecasts.spells.models import fit_file

    with progress(f"fitting {records.name}"):
        found = fit_file(records)
    if pooled:
        found = SpellModels(found.otherwise)
    found.write(out)
    table = Table(title="spells", box=SIMPLE_HEAD)
    for heading in ("market", "available", "mean up h", "mean down h", "up after 6 h: left h"):
        table.add_column(heading, justify="left" if heading == "market" else "right")
    for name, model in [*sorted(found.by_market.items()), ("any other", found.otherwise)]:
        table.add_row(name, *_cells(model))
    terminal().print(table)
    typer.echo(f"wrote {out}")


def _cells(model: SpellModel) -> list[str]:
    hours = [model.mean_left_s(UP, 0.0), model.mean_left_s(DOWN, 0.0), model.mean_left_s(UP, 6 * HOUR_S)]
    return [f"{model.share_up:.0%}", *(f"{seconds / HOUR_S:.1f}" for seconds in hours)]
