"""What a provider over agents remembers of one job's training."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebbtide.market.leases import Lease
from ebbtide.workloads.progress import JobProgress


@dataclass(eq=False)
class Trial:
    """One job's training.

    Attributes:
        progress: Kept up to date.
        trial_id: Stable over all moves.
        assigned: Leases that it may be on, as the policy has it.
        on: The lease whose agent has it; None: none has.
        attempt: Of the assignment in force.
        leaving: The agent was told to let go of it.
        stopping: It is to be counted as finished then.
        ended: It is.
        failures: Since it last came further.
        from_one: Failures by number of the checkpoint that was gone on from.
        aside: Numbers of checkpoints that it is not to go on from.
        best: Steps it ever had stored: to come further is to have more.
        metrics: By step.
        milestones: Steps to be told of.
        problem: Why it failed.
    """

    progress: JobProgress
    trial_id: str
    assigned: list[Lease] = field(default_factory=list)
    on: int | None = None
    attempt: int = 0
    leaving: bool = False
    stopping: bool = False
    ended: bool = False
    failures: float = 0.0
    from_one: dict[str, int] = field(default_factory=dict)
    aside: list[int] = field(default_factory=list)
    best: float = 0.0
    metrics: dict[int, float] = field(default_factory=dict)
    milestones: list[int] = field(default_factory=list)
    problem: str = ""


# Of a trial, what JSON holds as it is.
PLAIN_FIELDS = (
    "on", "attempt", "leaving", "stopping", "ended", "failures", "from_one", "aside", "best", "milestones",
    "problem",
)  # fmt: skip
