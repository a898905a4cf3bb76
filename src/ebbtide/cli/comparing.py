"""`ebbtide compare`: policies on a job, a sweep or a list of jobs, as a table, as JSON, and in a report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.backtesting.comparison import Comparison, compare
from ebbtide.base.cores import usable_cores
from ebbtide.base.utc import HOUR_S
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

_SAVED, _FLOOR = "saved: against on-demand", "; x floor: cost / the lowest possible with all prices known"


@dataclass(frozen=True)
class ComparisonFiles:
    """Files that the results are written to."""

    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write rows and statistics to.")
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(callback=to_be_written, help="File to write an HTML report to, this table first."),
    ] = None
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write tables to, for `ebbtide report`.")
    ] = None

    def write(self, found: Comparison) -> None:
        """Write the files that options name."""
        if self.record:
            found.record().write(self.record)
        if self.json_path:
            found.write_json(self.json_path)
        if self.report:
            found.report(self.report)


@grouped
def compare_command(
    *,
    job: Annotated[
        Path,
        typer.Argument(metavar="JOB.yaml", help="A job, as examples/one-day.yaml, a sweep, or a list of jobs."),
    ],
    source: WindowedSource,
    names: PoliciesOption = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="HOURS", help="Hours after its start within which the job must end."),
    ] = None,
    replays: ReplayOptions,
    availability: Annotated[
        Path | None, typer.Option(help="A Parquet record of capacity, by which machines are refused and revoked.")
    ] = None,
    files: ComparisonFiles,
    learnt: Models,
    workers: WorkersOption = 0,
    instance_types: InstanceTypesOption = None,
) -> None:
    """Compare policies on recorded prices: cost, spread, time, revocations, refunds, misses, and the lowest cost.

    Every policy runs the work from the same start times, drawn so that runs can end within the history. The same
    seed gives the same bytes. Without --policies a few fast ones are compared, with --deadline also one that keeps
    to it; `--policies all` compares every one, and a policy of your own is named by its file or module.

        ebbtide compare examples/one-day.yaml --generate 60 --report compare.html
        ebbtide compare examples/one-day.yaml --generate 60 --policies all
        ebbtide compare examples/one-day.yaml --generate 60 --policies on-demand,my_policy.py:Mine
    """
    catalogue = catalogue_with(instance_types)
    given = read_work(job, catalogue, learnt.speeds)
    usual = names or (USUAL if deadline is None else (*USUAL, "deadline"))
    # Check the names first, to report a wrong one before prices are read.
    names_of(usual)
    history = given.allowed(source.history(replays.seed, catalogue), catalogue)
    bundle = learnt.bundle(history.start_s)
    sweep, goals = given.sweep, Goals()
    if deadline is not None:
        goals = Goals(deadline_s=deadline * HOUR_S)
        sweep = None if sweep is None else sweep.model_copy(update={"deadline_h": deadline})
    chosen = policies_for(usual, sweep, bundle, catalogue, goals)
    for remark in deadline_remarks(chosen, sweep, goals):
        typer.echo(remark, err=True)
    with progress("replaying", max(replays.starts, 0) * len(chosen)) as state:
        found = compare(
            given.jobs,
            chosen,
            history,
            billing=replays.rule,
            availability=source.capacity(history, replays.seed, availability),
            starts=replays.starts,
            seed=replays.seed,
            deadline_h=deadline,
            goals=goals if sweep is None else Goals.of(sweep),
            catalogue=catalogue,
            models=bundle,
            workers=workers or usable_cores(),
            on_progress=state.done,
        )
    table_console().print(found.table())
    typer.echo(f"{_SAVED}{_FLOOR if len(given.jobs) == 1 else ''}")
    for note in found.notes:
        typer.echo(note)
    files.write(found)
    print_written(files.json_path, files.report, files.record)
