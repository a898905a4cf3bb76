"""`ebbtide benchmark`: every policy on every record of a folder, as a table and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.backtesting.benchmark import Benchmark, benchmark
from ebbtide.base.cores import usable_cores
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import print_written, table_console, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.cli.replay_options import WorkersOption
from ebbtide.policies.registry import DEFAULT_NAME

_HEADINGS = "regret: mean cost over that of the cheapest policy that missed nothing in the same cell, less 1"


@dataclass(frozen=True)
class BenchmarkOptions:
    """Options that select the policies, records and starts to replay."""

    policies: Annotated[
        str | None,
        typer.Option("--policies", metavar="NAMES", help="Policies, with commas between; all by default."),
    ] = None
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only records with this text in their name.")] = ""
    starts: Annotated[int, typer.Option(min=1, help="Starts of each cell; in auctions twice as many.")] = 1
    seed: Annotated[int, typer.Option(min=0, help="Seed of the starts and of all random numbers.")] = 0
    quick: Annotated[
        bool, typer.Option("--quick", help="A few records and simple policies, one start: a minute.")
    ] = False


@grouped
def benchmark_command(
    *,
    traces: Annotated[Path, typer.Option(help="Folder with Parquet files of prices and of capacity.")],
    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write all cells to.")
    ] = None,
    selection: BenchmarkOptions,
    workers: WorkersOption = 0,
) -> None:
    """Replay every policy on every price and capacity record of a folder, for each kind of work.

    The kinds are one job, one with a deadline and a budget, a sweep, jobs with SLOs and a cluster. The default
    policy is judged by its regret against the best of all others in each cell.

        ebbtide benchmark --traces ../shared/traces --json benchmark.json
    """
    with progress("replaying") as state:
        found = benchmark(
            traces,
            policies=[name.strip() for name in (selection.policies or "").split(",") if name.strip()],
            starts=selection.starts,
            seed=selection.seed,
            quick=selection.quick,
            only=selection.only,
            workers=workers or usable_cores(),
            on_progress=state.of,
        )
    table_console().print(_table(found))
    typer.echo(_HEADINGS)
    for one in found.failed:
        typer.echo(f"failed, which counts as missed: {one.what}: {one.why}", err=True)
    for out in found.left_out:
        typer.echo(f"left out: {out.what}: {out.why}", err=True)
    own = found.judged(DEFAULT_NAME)
    typer.echo(
        f"{DEFAULT_NAME}, the default: mean regret {own.mean_regret:.3f}, worst {own.worst_regret:.3f}, "
        f"{own.misses} missed, {own.over_budget} over budget, in {own.cells} cells of {_starts(found)} starts"
    )
    if json_path:
        found.write_json(json_path)
    print_written(json_path)


def _table(found: Benchmark) -> Table:
    table = Table(box=SIMPLE_HEAD, title=f"{len(found.cells)} cells of {_starts(found)} starts")
    for heading in ("policy", "mean regret", "worst", "missed", "over budget", "cells"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for name in found.policies:
        own = found.judged(name)
        table.add_row(
            name,
            f"{own.mean_regret:.3f}",
            f"{own.worst_regret:.3f}",
            str(own.misses),
            str(own.over_budget),
            str(own.cells),
        )
    return table


def _starts(found: Benchmark) -> str:
    """Return the number of starts of a cell, as text; a range if cells differ."""
    numbers = sorted({cell.starts for cell in found.cells})
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
