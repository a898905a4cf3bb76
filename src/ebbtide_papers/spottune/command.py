"""`ebbtide reproduce spottune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.options import InstanceTypesOption, catalogue_with, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.forecasts.learning_curves.calibration import default_calibration
from ebbtide.forecasts.learning_curves.curves import read_curves
from ebbtide.forecasts.learning_curves.methods import evaluate_methods, table_two_curves
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.printing import show_reproduction
from ebbtide_papers.reproduction import sha256_of
from ebbtide_papers.spottune.claims import reproduce_spottune
from ebbtide_papers.spottune.figures import spottune_figure
from ebbtide_papers.spottune.study import study

# Number of starts with --quick.
_FEW_STARTS = 3


def command(
    prices: Annotated[Path, typer.Option(help="A Parquet file of prices: its first 40 % train the forecasts.")],
    curves: Annotated[
        Path | None,
        typer.Option(help="A Parquet file of learning curves; by default those of Table II."),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Number of start times.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_STARTS} starts.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the claims to.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(callback=to_be_written, metavar="FILE.html", help="File to draw Figures 6 to 12 in."),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """SpotTune's Figures 6 to 12: cost, completion time, refunds, forecasts, selection.

    ebbtide reproduce spottune --prices prices.parquet --json spottune.json
    """
    catalogue = catalogue_with(instance_types)
    history = PriceHistory.read(prices, catalogue)
    whole = read_curves(curves) if curves else table_two_curves()
    with progress("preparing") as state:
        found = study(
            history,
            whole,
            starts=_FEW_STARTS if quick else starts,
            seed=seed,
            catalogue=catalogue,
            on_progress=state.say,
        )
        state.say("fitting learning curves")
        scores = evaluate_methods(whole, default_calibration(), ["earlycurve", "slaq", "last-value"])["methods"]
    files = [prices, *([curves] if curves else [])]
    result = reproduce_spottune(found, scores, whole, inputs=sha256_of(files), seed=seed)
    show_reproduction(result, "SpotTune's claims", json_path, plot, lambda: spottune_figure(result.tables))
