"""`ebbtide compare`: policies on one job, as a table, as JSON, and as the first table of a report."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
from ebbtide.errors import InputError
from ebbtide.jobs.job_files import read_work
from ebbtide.jobs.job_list import JobList
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.cookbook.by_name import ByCookbook
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.for_job import policies_for
from ebbtide.policies.registry import USUAL, names_of
from ebbtide.policies.spottune.policy import SpotTune

_HEADINGS = "saved: against on-demand; x floor: cost / the lowest possible with all prices known"


@dataclass(frozen=True)
class ComparisonFiles:
    """Files that the results are written to."""

    json_path: Annotated[
        Path | None, typer.Option("--json", callback=to_be_written, help="File to write the rows to.")
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(callback=to_be_written, help="File to write an HTML report to, this table first."),
    ] = None

    def write(self, found: Comparison) -> None:
        """Write those that are asked for."""
        if self.json_path:
            found.write_json(self.json_path)
        if self.report:
            found.report(self.report)


@grouped
def compare_command(
    *,
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job, as in examples/one-day.yaml.")],
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
    """Compare policies on one job: cost, spread, time, revocations, refunds, misses, and the lowest possible cost.

    Without --policies a few fast ones are compared, with --deadline also one that keeps to it; `--policies all`
    compares every one, and a policy of your own is named by its file or module.

        ebbtide compare examples/one-day.yaml --generate 60 --report compare.html
        ebbtide compare examples/one-day.yaml --generate 60 --policies all
    """
    catalogue = catalogue_with(instance_types)
    given = read_work(job, catalogue, learnt.speeds)
    if isinstance(given.sweep, JobList):
        raise InputError("is a list of jobs; `ebbtide backtest` replays policies on it", file=job)
    work, *others = given.jobs
    if others:
        typer.echo(f"a sweep of {len(others) + 1} trials: one of them is compared; `ebbtide backtest` replays all")
    usual = names or (USUAL if deadline is None else (*USUAL, "deadline"))
    # The names first: a wrong one is told before any prices are read.
    names_of(usual)
    history = given.allowed(source.history(replays.seed, catalogue), catalogue)
    bundle = learnt.bundle(history.start_s)
    chosen = [_in_time(policy, deadline) for policy in policies_for(usual, given.sweep, bundle, catalogue)]
    with progress("replaying", max(replays.starts, 0) * len(chosen)) as state:
        found = compare(
            chosen,
            work,
            history,
            billing=replays.rule,
            availability=source.capacity(history, replays.seed, availability),
            starts=replays.starts,
            seed=replays.seed,
            deadline_h=deadline,
            catalogue=catalogue,
            models=bundle,
            workers=workers or usable_cores(),
            on_progress=state.done,
        )
    table_console().print(found.table())
    typer.echo(_HEADINGS)
    for note in found.notes:
        typer.echo(note)
    files.write(found)
    print_written(files.json_path, files.report)


def _in_time(policy: Policy, deadline_h: float | None) -> Policy:
    """Give the deadline to a policy that can keep one."""
    if (
        deadline_h is not None
        and isinstance(policy, ByCookbook | Deadline | SpotTune)
        and math.isinf(policy.deadline_s)
    ):
        return replace(policy, deadline_s=deadline_h * HOUR_S)
    return policy
