"""`ebbtide compare`: policies on one job, as a table, as JSON, and as the first table of a report."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ebbtide._cores import usable_cores
from ebbtide._utc import HOUR_S
from ebbtide.analysis.comparison import compare
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
from ebbtide.market.billing import billing_preset
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.registry import USUAL, policies
from ebbtide.policies.spottune.policy import SpotTune

_HEADINGS = "saved: against on-demand; x floor: cost / the lowest possible with all prices known"


def compare_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job, as in examples/one-day.yaml.")],
    prices: PricesOption = None,
    generate: GenerateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    names: PoliciesOption = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="HOURS", help="Hours after its start within which the job must end."),
    ] = None,
    starts: Annotated[int, typer.Option(min=1, help="Number of start times to draw.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the starts and of all random numbers.")] = 0,
    billing: BillingOption = "ec2-second",
    json_path: Annotated[Path | None, typer.Option("--json", help="File to write the rows to.")] = None,
    report: Annotated[Path | None, typer.Option(help="File to write an HTML report to, this table first.")] = None,
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
    given = read_work(job, catalogue)
    work, *others = given.jobs
    if others:
        typer.echo(f"a sweep of {len(others) + 1} trials: one of them is compared; `ebbtide backtest` replays all")
    history = given.allowed(windowed(prices_from(prices, generate, seed, catalogue), start, end), catalogue)
    usual = USUAL if deadline is None else (*USUAL, "deadline")
    chosen = [_in_time(policy, deadline) for policy in policies(usual if names is None else names)]
    with progress("replaying", starts * len(chosen)) as state:
        found = compare(
            chosen,
            work,
            history,
            billing=billing_preset(billing),
            starts=starts,
            seed=seed,
            deadline_h=deadline,
            catalogue=catalogue,
            workers=workers or usable_cores(),
            on_progress=state.done,
        )
    table_console().print(found.table())
    typer.echo(_HEADINGS)
    for note in found.notes:
        typer.echo(note)
    if json_path:
        found.write_json(json_path)
    if report:
        found.report(report)
    for path in (json_path, report):
        if path:
            typer.echo(f"wrote {path}")


def _in_time(policy: Policy, deadline_h: float | None) -> Policy:
    """Give the deadline to a policy that can keep one."""
    if deadline_h is not None and isinstance(policy, Deadline | SpotTune) and math.isinf(policy.deadline_s):
        return replace(policy, deadline_s=deadline_h * HOUR_S)
    return policy
