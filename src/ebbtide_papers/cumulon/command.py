"""`ebbtide reproduce cumulon`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.options import InstanceTypesOption, catalogue_with, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.cumulon.claims import reproduce_cumulon
from ebbtide_papers.cumulon.engine_study import engine_study
from ebbtide_papers.cumulon.figures import cumulon_figure
from ebbtide_papers.cumulon.real_market import real_market_study
from ebbtide_papers.cumulon.study import cumulon_study
from ebbtide_papers.printing import show_reproduction
from ebbtide_papers.reproduction import sha256_of

# Number of traces, and of starts on the engine, with --quick.
_FEW_TRACES = 4_000
_STARTS, _FEW_STARTS = 40, 5


def command(
    prices: Annotated[
        Path | None, typer.Option(help="A Parquet file with c3.xlarge: RSVD-1 on a real market, too.")
    ] = None,
    traces: Annotated[int, typer.Option(min=100, help="Number of simulated traces.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_TRACES} traces.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the claims to.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(callback=to_be_written, metavar="FILE.html", help="File to draw Figures 2 and 4 to 8 in."),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Cümülön-D's Figures 2 and 4 to 8 and Table 2: the cost of a cookbook and its rivals.

    ebbtide reproduce cumulon --prices prices.parquet --json cumulon.json
    """
    real, why = None, "no prices were given; give a file with c3.xlarge"
    on_engine, why_not = None, "no prices were given"
    with progress("compiling") as state:
        found = cumulon_study(traces=_FEW_TRACES if quick else traces, seed=seed, on_progress=state.say)
        if prices:
            catalogue = catalogue_with(instance_types)
            history = PriceHistory.read(prices, catalogue)
            market = next((market for market in history if market.instance_type == "c3.xlarge"), None)
            why = "no c3.xlarge in the prices given"
            if market:
                try:
                    real = real_market_study(history, market, on_progress=state.say)
                except InputError as error:
                    why = str(error)
            state.say("several markets")
            try:
                on_engine = engine_study(history, catalogue, starts=_FEW_STARTS if quick else _STARTS, seed=seed)
            except InputError as error:
                why_not = str(error)
    inputs = sha256_of([prices] if prices else [])
    result = reproduce_cumulon(
        found,
        real,
        inputs=inputs,
        seed=seed,
        why_not_real=why,
        on_engine=on_engine,
        why_not_on_engine=why_not,
    )
    show_reproduction(result, "Cümülön-D's claims", json_path, plot, lambda: cumulon_figure(found))
