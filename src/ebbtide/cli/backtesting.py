"""`ebbtide backtest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebbtide._cores import usable_cores
from ebbtide.analysis.backtest import backtest
from ebbtide.analysis.report import write_report
from ebbtide.cli.options import (
    BillingOption,
    FromOption,
    GenerateOption,
    InstanceTypesOption,
    PricesOption,
    ToOption,
    catalogue_with,
    prices_from,
    table_console,
    windowed,
)
from ebbtide.cli.progress import progress
from ebbtide.cli.replay_options import PoliciesOption, WorkersOption
from ebbtide.jobs.reading import read_work
from ebbtide.market.availability import Availability
from ebbtide.market.billing import billing_preset
from ebbtide.policies.registry import USUAL, policies


def backtest_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="A job, as examples/one-day.yaml, or a sweep.")],
    prices: PricesOption = None,
    generate: GenerateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    names: PoliciesOption = None,
    starts: Annotated[int, typer.Option(help="Number of start times to draw.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the starts and of all random numbers.")] = 0,
    billing: BillingOption = "ec2-second",
    availability: Annotated[
        Path | None, typer.Option(help="A Parquet record of capacity, by which machines are refused and revoked.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="File to write the statistics to.")] = None,
    report: Annotated[Path | None, typer.Option(help="File to write a self-contained HTML report to.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write tables to, for `ebbtide report`.")
    ] = None,
    workers: WorkersOption = 0,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Replay policies on a price history and compare what each would have cost.

    Every policy runs the job from the same start times, drawn so that runs can end within the history. The same
    seed gives the same bytes. Without --policies a few fast ones are compared; `--policies all` compares every
    one, and a policy of your own is named by its file or module.

        ebbtide backtest examples/one-day.yaml --generate 60 --report report.html
        ebbtide backtest examples/one-day.yaml --generate 60 --policies on-demand,my_policy.py:Mine
    """
    catalogue = catalogue_with(instance_types)
    chosen = policies(USUAL if names is None else names)
    rule = billing_preset(billing)
    work = read_work(job, catalogue)
    history = work.allowed(windowed(prices_from(prices, generate, seed, catalogue), start, end), catalogue)
    capacity = Availability.read(availability) if availability else None
    with progress("replaying", max(starts, 0) * len(chosen)) as state:
        result = backtest(
            chosen,
            work.jobs,
            history,
            billing=rule,
            starts=starts,
            seed=seed,
            availability=capacity,
            catalogue=catalogue,
            workers=workers or usable_cores(),
            on_progress=state.done,
        )
    if record or report:
        tables = result.record()
        if record:
            tables.write(record)
        if report:
            write_report(tables, report)
    if json_path:
        result.write_json(json_path)
    table_console().print(result.table())
    for path in (json_path, report, record):
        if path:
            typer.echo(f"wrote {path}")
