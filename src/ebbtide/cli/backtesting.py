"""`ebbtide backtest`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.backtesting.backtest import backtest
from ebbtide.backtesting.result import BacktestResult
from ebbtide.base.cores import usable_cores
from ebbtide.cli.option_groups import grouped
from ebbtide.cli.options import (
    InstanceTypesOption,
    Models,
    WindowedSource,
    catalogue_with,
    print_written,
    table_console,
    to_be_written,
)
from ebbtide.cli.progress import progress
from ebbtide.cli.replay_options import PoliciesOption, ReplayOptions, WorkersOption
from ebbtide.jobs.job_files import read_work
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.for_job import deadline_remarks, policies_for
from ebbtide.policies.registry import USUAL, names_of


@dataclass(frozen=True)
class BacktestFiles:
    """Files that the results are written to."""

    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the statistics to.")
    ] = None
    report: Annotated[
        Path | None, typer.Option(callback=to_be_written, help="File to write a self-contained HTML report to.")
    ] = None
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write tables to, for `ebbtide report`.")
    ] = None

    def write(self, result: BacktestResult) -> None:
        """Write the files that options name."""
        if self.record or self.report:
            tables = result.record()
            if self.record:
                tables.write(self.record)
            if self.report:
                from ebbtide.backtesting.report import write_report

                write_report(tables, self.report)
        if self.json_path:
            result.write_json(self.json_path)


@grouped
def backtest_command(
    *,
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="A job, as examples/one-day.yaml, or a sweep.")],
    source: WindowedSource,
    names: PoliciesOption = None,
    replays: ReplayOptions,
    availability: Annotated[
        Path | None, typer.Option(help="A Parquet record of capacity, by which machines are refused and revoked.")
    ] = None,
    files: BacktestFiles,
    learnt: Models,
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
    rule = replays.rule
    work = read_work(job, catalogue, learnt.speeds)
    # Check the names first, to report a wrong one before prices are read.
    names_of(names or USUAL)
    history = work.allowed(source.history(replays.seed, catalogue), catalogue)
    bundle = learnt.bundle(history.start_s)
    chosen = policies_for(names or USUAL, work.sweep, bundle, catalogue)
    for remark in deadline_remarks(chosen, work.sweep):
        typer.echo(remark, err=True)
    capacity = source.capacity(history, replays.seed, availability)
    with progress("replaying", max(replays.starts, 0) * len(chosen)) as state:
        result = backtest(
            chosen,
            work.jobs,
            history,
            billing=rule,
            starts=replays.starts,
            seed=replays.seed,
            availability=capacity,
            goals=Goals.of(work.sweep),
            catalogue=catalogue,
            models=bundle,
            workers=workers or usable_cores(),
            on_progress=state.done,
        )
    files.write(result)
    table_console().print(result.table())
    print_written(files.json_path, files.report, files.record)
