"""Rehearse an interruption on EC2: a short copy of a job on a spot machine, which EC2 itself revokes.

Nothing is simulated: the machine boots from the run's image, the notice comes through EC2's metadata, storage is
the run's bucket, and training resumes on another machine. It costs a few minutes of two machines, within a budget.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ebbtide.clouds.ec2.interrupting import NOTICE_S, SpotInterruptions
from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.sweep import Sweep
from ebbtide.policies.for_job import within_budget
from ebbtide.runs.rehearsal import (
    OneAfterTheOther,
    RehearsalSettings,
    Watch,
    ends_on_signals,
    forget_if,
    rehearsable,
)
from ebbtide.runs.rehearsal_figures import Rehearsal
from ebbtide.runs.start_rented import begin_rented, end_rented, run_rented


def rehearsable_on_ec2(work: Runnable, budget_usd: float | None) -> Sweep:
    """The first trial of a job or sweep, prepared for a rehearsal on EC2; its file says where it may run.

    Args:
        work: The job or sweep.
        budget_usd: The most that the rehearsal may cost, USD; None: the budget in its file.

    Raises:
        InputError: The job cannot be rehearsed, or has no budget.
    """
    first = rehearsable(work)
    assert work.kind == "sweep"
    budget = work.budget_usd if budget_usd is None else budget_usd
    if budget is None:
        raise InputError("a rehearsal on EC2 costs money: name the most with --budget-usd 1", field="budget_usd")
    settled = {"list": first.list, "grid": None, "random": None, "theta": 1.0, "mcnt": 1, "deadline_h": None}
    return work.model_copy(update={**settled, "billing": "ec2-second", "budget_usd": budget})


def rehearse_on_ec2(
    sweep: Sweep,
    folder: Path,
    settings: RehearsalSettings,
    machines: MachineSettings,
    interruptions: SpotInterruptions,
    say: Callable[[str], None] = lambda _line: None,
) -> Rehearsal:
    """Interrupt a short copy of a job on EC2.

    Args:
        sweep: The job, as `rehearsable_on_ec2` gives it.
        folder: Folder of its code.
        settings: How it is rehearsed; the notice is EC2's.
        machines: Settings of the machines.
        interruptions: Has EC2 revoke a machine.
        say: Called with a line of text at each stage.

    Raises:
        InputError: Something that renting needs is missing.
    """
    policy = within_budget(sweep, OneAfterTheOther(None))
    run = begin_rented(sweep, folder, NewRun(settings.runs), {"ec2": machines}, policy=OneAfterTheOther.name)
    watch = Watch(run, settings, lambda lease_id: _interrupted(run, interruptions, watch, lease_id), say)
    is_whole = False
    try:
        with ends_on_signals():
            outcome = run_rented(run, policy, watch.looked)
        found = watch.figures(outcome)
        is_whole = not found.problem
        return found
    finally:
        end_rented(run)
        forget_if(is_whole, run, say)


def _interrupted(run: RunFolder, interruptions: SpotInterruptions, watch: Watch, lease_id: int) -> bool:
    """Interrupt a machine of the run; an error ends the rehearsal, and is reported."""
    region = watch.region_of(lease_id)
    interruptions.interrupt(region, f"{run.settings.unique_name}-m{lease_id:04d}")
    return True


__all__ = ["NOTICE_S", "rehearsable_on_ec2", "rehearse_on_ec2"]
