"""How far a job has come."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ebbtide.market.leases import Lease
from ebbtide.workloads.job import Job


@dataclass(slots=True, eq=False)
class JobProgress:
    """One job of a run. The engine and the provider write it; policies read it.

    Attributes:
        job_id: Its place among the run's jobs, from 0.
        job: What is to be done.
        steps_saved: Steps in the newest complete checkpoint.
        steps_done: Those and what has been run since; lost again if a machine goes unsaved.
        steps_run: All that were ever run; those lost were run more than once.
        steps_lost: Run, but lost before they were saved: run again later.
        checkpoints: Complete ones so far.
        restores: Times that training was started or continued on new machines.
        moving_s: Spent on saving and restoring, as begun.
        training_s: Spent on training, all machines' groups together.
        steps_on: Steps run by lease id; those of a gang in equal parts.
        leases: The machines it was assigned, in order of assignment.
        stopped: Ended by the policy before its last step.
        finished_s: When its last checkpoint was complete.
    """

    job_id: int
    job: Job
    steps_saved: float = 0.0
    steps_done: float = 0.0
    steps_run: float = 0.0
    steps_lost: float = 0.0
    checkpoints: int = 0
    restores: int = 0
    moving_s: float = 0.0
    training_s: float = 0.0
    steps_on: dict[int, float] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    stopped: bool = False
    finished_s: float = math.nan

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do: done or stopped."""
        return not math.isnan(self.finished_s)

    @property
    def steps_left(self) -> float:
        return self.job.steps - self.steps_done
