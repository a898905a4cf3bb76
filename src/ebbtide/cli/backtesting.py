"""`ebbtide backtest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ebbtide.cli.options import (
    BillingOption,
    FromOption,
    GenerateOption,
    InstanceTypesOption,
    PricesOption,
    ToOption,
    catalogue_with,
    prices_from,
    terminal,
    windowed,
)
from ebbtide.experiments.backtest import backtest
from ebbtide.market.availability import Availability
from ebbtide.market.billing import billing_preset
from ebbtide.policies.registry import POLICIES, policies
from ebbtide.report.html import write_report
from ebbtide.workloads.reading import read_work


def backtest_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="A job, as examples/one-day.yaml, or a sweep.")],
    prices: PricesOption = None,
    generate: GenerateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    names: Annotated[
        str, typer.Option("--policies", help=f"Which, with commas between: {', '.join(POLICIES)}.")
    ] = ",".join(POLICIES),
    starts: Annotated[int, typer.Option(help="How many start times to draw.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the starts and of all chance.")] = 0,
    billing: BillingOption = "ec2-second",
    availability: Annotated[
        Path | None, typer.Option(help="A Parquet record of capacity: machines are refused and taken by it.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the statistics there.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report there, a page of its own.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write tables there, for `ebbtide report`.")
    ] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Replay policies on a price history and compare what each would have cost.

    Every policy runs the job from the same start times, drawn so that runs can end inside the history. The
    same seed gives the same bytes.

        ebbtide backtest examples/one-day.yaml --prices prices.parquet --policies on-demand,reactive
        ebbtide backtest examples/one-day.yaml --generate 60 --report report.html
    """
    catalogue = catalogue_with(instance_types)
    chosen = policies(names)
    rule = billing_preset(billing)
    work = read_work(job, catalogue)
    history = work.allowed(windowed(prices_from(prices, generate, seed, catalogue), start, end), catalogue)
    capacity = Availability.read(availability) if availability else None
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("replaying", total=max(starts, 0) * len(chosen))
        result = backtest(
            chosen,
            work.jobs,
            history,
            billing=rule,
            starts=starts,
            seed=seed,
            availability=capacity,
            catalogue=catalogue,
            on_progress=lambda done: progress.update(task, completed=done),
        )
    if record or report:
        tables = result.record()
        if record:
            tables.write(record)
        if report:
            write_report(tables, report)
    if json_path:
        result.write_json(json_path)
    terminal().print(result.table())
    for path in (json_path, report, record):
        if path:
            typer.echo(f"wrote {path}")
