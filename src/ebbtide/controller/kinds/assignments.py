"""Content of agents' assignments: commands, kinds of jobs, secrets, and what needed jobs have stored."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial

from ebbtide.agent.inputs import Input
from ebbtide.controller.kinds.array import TaskList
from ebbtide.controller.kinds.state import ArrayState, JobState, TrialState, trial_id_of
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import OneJob, Runnable
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market


def inputs_of(work: Runnable, job_id: int, run: str, states: Iterable[JobState]) -> tuple[Input, ...]:
    """Return the inputs of a job: what the jobs that it needs have stored, in folders by their names.

    Args:
        work: The work of the run.
        job_id: Id of the job in the run.
        run: Id of the run, from which trials are named.
        states: States of all jobs of the run, by which machines know what must be there.
    """
    needed = work.needed_by(job_id)
    known = {each.progress.job_id: each for each in states} if needed else {}
    found = []
    for other in needed:
        part, trial = work.part_of(other)
        folder = f"{part.name}/{trial.number}" if part.has_choice else part.name
        ids = tuple(trial_id_of(run, other, rank) for rank in range(part.ranks))
        match known.get(other):
            case ArrayState(tasks=tasks, progress=progress):
                count = int(progress.job.steps)
                found.append(Input(folder, ids, is_array=True, tasks=count, failed=tasks.failed))
            case TrialState() as state if state.stored_number not in state.aside:
                found.append(Input(folder, ids, expected=state.stored_parts))
            case _:
                found.append(Input(folder, ids, part.kind == "array"))
    return tuple(found)


def secrets_of(work: Runnable) -> dict[str, str]:
    """Values of the secrets that the programs of a run are given, by name, from this process's environment.

    Raises:
        InputError: A secret is not set.
    """
    names = sorted({name for part in work.parts for name in part.secrets})
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set in the environment, from which "
            "programs are given their secrets; set it where you begin or resume the run",
            field="secrets",
        )
    return {name: os.environ[name] for name in names}


def _jobs_of(work: Runnable) -> dict[int, OneJob]:
    return {job_id: work.part_of(job_id)[0] for job_id in range(len(work.job_names))}


def arrays_of(work: Runnable, catalogue: Catalogue) -> dict[int, TaskList]:
    """The tasks of the arrays of a run, by job id."""
    return {
        job_id: TaskList(job.tasks, partial(_side_by_side, catalogue, job.cpus_per_task))
        for job_id, job in _jobs_of(work).items()
        if job.kind == "array"
    }


def clusters_of(work: Runnable) -> dict[int, str]:
    """The frameworks of the clusters of a run, by job id."""
    return {job_id: job.framework for job_id, job in _jobs_of(work).items() if job.kind == "cluster"}


def _side_by_side(catalogue: Catalogue, cpus_per_task: int, market: Market) -> int:
    """Number of tasks of an array that a machine runs at a time."""
    return max(catalogue.machine_of(market).vcpus // cpus_per_task, 1)


def programs_of(work: Runnable) -> dict[int, int]:
    """The number of each job's program, by the job's id: trials of one sweep have the same."""
    numbers = [number for number, part in enumerate(work.parts) for _ in part.trials()]
    return dict(enumerate(numbers))


def command_of(sweep: OneJob, number: int, python: str = sys.executable) -> tuple[str, ...]:
    """The command line of a trial's program.

    Args:
        sweep: The sweep that the trial belongs to.
        number: Number of the trial, counted from 0.
        python: The Python that is run for `python` or `python3`.
    """
    arguments = sweep.command_line(sweep.trials()[number])
    return (python, *arguments[1:]) if arguments[0] in ("python", "python3") else arguments
