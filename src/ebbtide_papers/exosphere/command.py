"""`ebbtide reproduce exosphere`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide.base.utc import DAY_S
from ebbtide.cli.options import InstanceTypesOption, catalogue_with, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.exosphere.claims import reproduce_exosphere
from ebbtide_papers.exosphere.figures import exosphere_figure
from ebbtide_papers.exosphere.mpi import EVERY_S
from ebbtide_papers.printing import show_reproduction
from ebbtide_papers.reproduction import sha256_of

# Number of losses with --quick.
_FEW_STARTS = 3
_RARELY_S = 2 * DAY_S


def command(
    prices: Annotated[Path, typer.Option(help="A Parquet file of auction prices.")],
    region: Annotated[
        list[Path] | None, typer.Option(help="A Parquet file of a whole region: portfolios at that scale, too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help=f"Few starts, and {_FEW_STARTS} losses.")] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the claims to.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            callback=to_be_written, metavar="FILE.html", help="File to draw Figures 3, 4 and 7 to 12 in."
        ),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """ExoSphere's Figures 3, 4 and 7 to 12 and Table 1: savings and risks of portfolios and rivals.

    ebbtide reproduce exosphere --prices prices.parquet --json exosphere.json
    """
    catalogue = catalogue_with(instance_types)
    with progress("reading prices") as state:
        history = PriceHistory.read(prices, catalogue)
        regions = {path.stem: PriceHistory.read(path, catalogue) for path in region or ()}
        result = reproduce_exosphere(
            history,
            regions,
            catalogue,
            inputs=sha256_of([prices, *(region or ())]),
            draws=_FEW_STARTS if quick else 20,
            starts_every_s=_RARELY_S if quick else EVERY_S,
            seed=seed,
            on_progress=state.say,
        )
    show_reproduction(result, "ExoSphere's claims", json_path, plot, lambda: exosphere_figure(result.tables))
