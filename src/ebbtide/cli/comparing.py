"""`ebbtide compare`: every policy on one job, as a table, as JSON, and as a report's first page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

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
from ebbtide.experiments.comparison import Comparison, compare, shown
from ebbtide.market.billing import billing_preset
from ebbtide.policies.registry import POLICIES, policies
from ebbtide.report.html import write_report
from ebbtide.workloads.job import Job
from ebbtide.workloads.reading import read_work


def compare_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job, as examples/one-day.yaml has it.")],
    prices: PricesOption = None,
    generate: GenerateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    names: Annotated[
        str, typer.Option("--policies", help="Which, with commas between; else all.")
    ] = ",".join(POLICIES),
    deadline: Annotated[
        float | None, typer.Option(min=0.0, metavar="HOURS", help="Later than so long after its start is a miss.")
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="How many start times to draw.")] = 30,
    seed: Annotated[int, typer.Option(help="Of the starts and of all chance.")] = 0,
    billing: BillingOption = "ec2-second",
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the rows there.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a report there, this table its first page.")] = None,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Compare all policies on one job: cost, risk, time, revocations, refunds, misses, and the least possible.

        ebbtide compare examples/one-day.yaml --generate 60 --report compare.html
    """
    catalogue = catalogue_with(instance_types)
    given = read_work(job, catalogue)
    work, *others = given.jobs
    if others:
        typer.echo(f"a sweep of {len(others) + 1} trials: one of them is compared; `ebbtide backtest` replays all")
    history = given.allowed(windowed(prices_from(prices, generate, seed, catalogue), start, end), catalogue)
    errors = Console(stderr=True)
    with errors.status("replaying") as status:
        found = compare(
            policies(names), work, history, billing=billing_preset(billing), starts=starts, seed=seed,
            deadline_h=deadline, catalogue=catalogue, on_policy=lambda name: status.update(f"replaying {name}"),
        )  # fmt: skip
    terminal().print(_table(work, found))
    for note in found.notes:
        typer.echo(note)
    if json_path:
        found.write_json(json_path)
    if report:
        write_report(found.result.record(), report, comparison=shown(found.rows), notes=found.notes)
    for path in (json_path, report):
        if path:
            typer.echo(f"wrote {path}")


def _table(job: Job, found: Comparison) -> Table:
    rows = shown(found.rows)
    table = Table(title=f"{job.name}: {len(found.result.starts_s)} starts", box=SIMPLE_HEAD)
    for heading in rows[0]:
        if heading != "why not":
            named = heading == "policy"
            table.add_column(heading, justify="left" if named else "right", no_wrap=named)
    for row in rows:
        cells = [text for heading, text in row.items() if heading != "why not"]
        if row["why not"]:
            # The reason takes the place of figures that there are not.
            table.add_row(row["policy"], *[""] * (len(cells) - 1))
            continue
        table.add_row(*cells)
    refused = [f"{row['policy']}: {row['why not']}" for row in rows if row["why not"]]
    table.caption = "\n".join(refused) or None
    table.caption_justify = "left"
    return table
