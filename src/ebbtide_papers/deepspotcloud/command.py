"""`ebbtide reproduce deepspotcloud`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import InstanceTypesOption, catalogue_with, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.deepspotcloud.claims import reproduce_deepspotcloud
from ebbtide_papers.deepspotcloud.figures import deepspotcloud_figure
from ebbtide_papers.deepspotcloud.price_analysis import standings
from ebbtide_papers.deepspotcloud.regions import region_study
from ebbtide_papers.deepspotcloud.study import (
    LENGTHS_H,
    gpu_markets,
    migrate_on_the_other_half,
    migration_study,
    one_type_job,
    with_generated_regions,
)
from ebbtide_papers.printing import show_reproduction
from ebbtide_papers.reproduction import sha256_of

# Number of starts with --quick.
_FEW_MOVES = 20


@dataclass(frozen=True)
class StudySize:
    """Size of the study."""

    starts: Annotated[int, typer.Option(min=1, help="Number of start times.")] = 1000
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 1
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel threads.")] = 2
    generated: Annotated[
        bool,
        typer.Option("--generated-regions/--real-only", help="A second table, generated regions beside the real."),
    ] = True
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_FEW_MOVES} starts.")] = False

    @property
    def number(self) -> int:
        """Number of start times, few with --quick."""
        return _FEW_MOVES if self.quick else self.starts


@grouped
def command(
    *,
    prices: Annotated[Path, typer.Option(help="A Parquet file with at least two markets of a GPU type.")],
    region: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE.parquet", help="Prices of a whole region, today's billing; again for another."),
    ] = None,
    wanted: StudySize,
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the claims to.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(callback=to_be_written, metavar="FILE.html", help="File to draw Figures 1, 2 and 6 in."),
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """DeepSpotCloud's Figures 1, 2 and 6: GPU prices; when to move a job, by its length.

    ebbtide reproduce deepspotcloud --prices prices.parquet --json deepspotcloud.json
    """
    catalogue = catalogue_with(instance_types)
    whole = PriceHistory.read(prices, catalogue)
    history, why, unseen = None, "", math.nan
    try:
        history = gpu_markets(whole, catalogue)
    except InputError as error:
        why = str(error)
    with progress("compiling") as state:
        found = wider = None
        if history:
            study = partial(
                migration_study,
                job_of=partial(one_type_job, history.markets[0].instance_type),
                starts=wanted.number,
                seed=wanted.seed,
                workers=wanted.workers,
                catalogue=catalogue,
                on_progress=state.say,
            )
            found = study(history)
            state.say("the numbers of migrate, chosen on the other half")
            unseen = migrate_on_the_other_half(
                history,
                partial(one_type_job, history.markets[0].instance_type),
                LENGTHS_H["1w"],
                starts=wanted.number,
                seed=wanted.seed,
                workers=wanted.workers,
                catalogue=catalogue,
            )
            wider = study(with_generated_regions(history, catalogue, wanted.seed)) if wanted.generated else None
        regions = {
            path.stem: region_study(
                PriceHistory.read(path, catalogue),
                catalogue,
                starts=wanted.number,
                seed=wanted.seed,
                workers=wanted.workers,
                on_progress=state.say,
            )
            for path in region or []
        }
    files = sha256_of([prices, *(region or [])])
    result = reproduce_deepspotcloud(
        found,
        wider,
        standings(whole, catalogue),
        regions,
        inputs=files,
        seed=wanted.seed,
        unseen=unseen,
        why_none=why,
    )
    figure = partial(deepspotcloud_figure, history, result.tables, catalogue)
    show_reproduction(result, "DeepSpotCloud's claims", json_path, plot, figure)
