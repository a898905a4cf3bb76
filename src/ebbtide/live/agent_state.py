"""What a provider over agents remembers of one job's training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ebbtide.jobs.progress import JobProgress
from ebbtide.live.stretches import Stretch
from ebbtide.market.leases import Lease


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
        problem: Why it failed, in one line; empty: it has not.
        tail: The last lines that its program printed when it failed.
        fields: Names of numbers that its program reports, as far as they are known.
        warnings: What its user should know, each told once.
        stretches: Its time on machines before this one.
        began_s: When it was ordered onto the machine that it is on, by the cloud's clock.
        began_epoch_s: The same by ours.
        began_number: Number of the checkpoint that it resumed from there.
        began_step: Its resume step.
        has_saved: Whether it has stored a checkpoint there.
        lost_above: Steps above the newest known checkpoint that were counted as lost at last.
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
    tail: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    began_s: float = math.nan
    began_epoch_s: float = math.nan
    began_number: int = 0
    began_step: float = 0.0
    has_saved: bool = False
    lost_above: float = 0.0


# Of a trial, what JSON holds as it is.
PLAIN_FIELDS = (
    "on",
    "attempt",
    "leaving",
    "stopping",
    "ended",
    "failures",
    "from_one",
    "aside",
    "best",
    "milestones",
    "problem",
    "tail",
    "fields",
    "warnings",
    "began_s",
    "began_epoch_s",
    "began_number",
    "began_step",
    "has_saved",
    "lost_above",
)
