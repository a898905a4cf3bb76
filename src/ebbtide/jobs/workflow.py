"""Workflows: jobs in order, each with its own speedup, on a cluster whose size changes (Cümülön-D, 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl, NonNegativeFloat, PositiveFloat, SpeedupTable
from ebbtide.jobs.parsing import Frozen, read_mapping, validated
from ebbtide.market.price_series import Floats

# Less work than this, in machine-hours, counts as done.
_DONE = 1e-9


class WorkflowJob(Frozen):
    """Job of a workflow.

    Attributes:
        name: Name of the job in tables.
        work_h: Work of the job, hours on one machine.
        speedup: Speedup of n machines over one.
    """

    name: str = Field(min_length=1)
    work_h: PositiveFloat
    speedup: Amdahl | SpeedupTable


class Workflow(Frozen):
    """Jobs that run one after the other.

    Attributes:
        name: Name of the workflow in tables.
        jobs: The jobs in the order in which they run.
        start_work_h: Work spent on initialising each machine that is added, machine-hours.
        stop_work_h: Work lost with the running tasks of each machine that is removed, machine-hours.
    """

    name: str = Field(min_length=1)
    jobs: Annotated[tuple[WorkflowJob, ...], Field(min_length=1)]
    start_work_h: NonNegativeFloat = 0.0
    stop_work_h: NonNegativeFloat = 0.0

    @classmethod
    def read(cls, path: str | Path) -> Workflow:
        """Read a workflow from YAML.

        Raises:
            InputError: The file is missing, is not YAML, or a field is missing, unknown or out of range.
        """
        content: dict[str, Any] = read_mapping(path, "workflow: a mapping with name and jobs is needed")
        return validated(cls, content, path)

    @property
    def work_h(self) -> float:
        """Work of all jobs, machine-hours."""
        return sum(job.work_h for job in self.jobs)

    def overhead_h(self, before: ArrayLike, now: ArrayLike) -> Floats:
        """Work that a change of the cluster's size costs, machine-hours.

        Args:
            before: Machines before the change, any shape.
            now: Machines after the change, broadcast with `before`.
        """
        added = np.subtract(now, before)
        return self.start_work_h * np.maximum(added, 0.0) + self.stop_work_h * np.maximum(-added, 0.0)

    def speeds(self, most: int) -> Floats:
        """Speedup of each job with 0 to `most` machines, shape (jobs, most + 1); 0 without machines."""
        rows = [[0.0, *(job.speedup.speedup(n) for n in range(1, most + 1))] for job in self.jobs]
        return np.array(rows)

    def progress(self, left_h: ArrayLike, before: ArrayLike, now: ArrayLike, step_h: float) -> Floats:
        """Work left after a step of time, machine-hours (Cümülön-D Definition 1, as its text describes it).

        The overhead of the change is done first, as part of the job that the step begins in; then that job and
        those after it, each at its own speedup. Overhead that does not fit in the step remains as work.

        Args:
            left_h: Work left at the beginning of the step, machine-hours; broadcast with the next two.
            before: Machines in the step before.
            now: Machines in this step, any shape.
            step_h: Length of the step, hours.
        """
        left, past, size = np.broadcast_arrays(np.asarray(left_h, float), before, now)
        speeds = self.speeds(int(size.max(initial=0)))
        left = np.maximum(left, 0.0)
        extra = np.where(left > _DONE, self.overhead_h(past, size), 0.0)
        time = np.where(size > 0, step_h, 0.0)
        for speed, end_h in zip(speeds, self.left_after_h(), strict=True):
            own = np.maximum(left - end_h, 0.0)
            at_work = (own > _DONE) & (time > 0.0)
            pace = np.where(size > 0, speed[size], 1.0)
            need = np.where(at_work, (own + extra) / pace, 0.0)
            stops = at_work & (need > time)
            done = np.where(at_work, np.minimum(left, end_h), left)
            left = np.where(stops, end_h + own + extra - pace * time, done)
            extra = np.where(at_work, 0.0, extra)
            time = np.where(stops, 0.0, time - need)
        return np.where(left <= _DONE, 0.0, left)

    def finish_h(self, left_h: float, before: int, now: int) -> float:
        """Hours until all work is done with `now` machines; infinity with none.

        Args:
            left_h: Work left at the start, machine-hours.
            before: Machines before the start.
            now: Machines from the start on.
        """
        if left_h <= _DONE:
            return 0.0
        if now == 0:
            return math.inf
        time_h, extra_h = 0.0, float(self.overhead_h(before, now))
        for job, end_h in zip(self.jobs, self.left_after_h(), strict=True):
            if left_h > end_h + _DONE:
                time_h += (left_h - end_h + extra_h) / job.speedup.speedup(now)
                left_h, extra_h = end_h, 0.0
        return time_h

    def left_after_h(self) -> Floats:
        """Work left once each job is done, machine-hours, shape (jobs,)."""
        return np.maximum(self.work_h - np.cumsum([job.work_h for job in self.jobs]), 0.0)


def fit_amdahl(runs: Sequence[tuple[int, float]], work_h: float | None = None) -> tuple[Amdahl, float]:
    """The speedup by Amdahl's law, and the work, that fit measured runs best.

    Args:
        runs: Number of machines and hours of each run; at least two if the work is unknown.
        work_h: Work in hours on one machine, if it is known.

    Returns:
        The speedup and the work in machine-hours that minimise the squared relative errors of the hours.

    Raises:
        InputError: There are too few runs, or one is not positive.
    """
    from scipy.optimize import minimize_scalar

    if len(runs) < (1 if work_h else 2):
        raise InputError(f"{len(runs)} runs are too few to fit a speedup: one if the work is known, else two")
    for machines, run_h in runs:
        if machines < 1 or not run_h > 0:
            raise InputError(f"a run of {run_h:g} h on {machines} machines; both must be positive")
    sizes, hours = (np.array(column, dtype=float) for column in zip(*runs, strict=True))

    def scaled(parallel: float) -> tuple[Floats, float]:
        """Hours of each run over hours on one machine, shape (runs,), and the work that fits best."""
        shape = (1.0 - parallel) + parallel / sizes
        ratio = shape / hours
        best = work_h if work_h else float(ratio.sum() / (ratio**2).sum())
        return shape, best

    def error(parallel: float) -> float:
        shape, work = scaled(parallel)
        return float((((work * shape) - hours) / hours) @ (((work * shape) - hours) / hours))

    parallel = float(minimize_scalar(error, bounds=(1e-6, 1.0), method="bounded").x)
    return Amdahl(parallel=parallel), scaled(parallel)[1]
