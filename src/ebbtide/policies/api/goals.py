"""Goals of some work, which a policy may adapt itself to before a run begins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.common_fields import Direction

if TYPE_CHECKING:
    from ebbtide.jobs.job_list import JobList, ListedJob, OneJob, Runnable
    from ebbtide.policies.api.protocol import Policy


@dataclass(frozen=True, kw_only=True)
class Goals:
    """Goals of some work, and what is known of it. A goal of None is not given: a policy keeps its own.

    A policy sees them as `view.goals`. One whose parameters depend on them has the method `for_goals(goals) ->
    Policy`, which returns the policy adapted to them. Every verb calls it once, before parameters that the user
    gives by name, which count more.

    Attributes:
        deadline_s: Seconds from the start until the deadline; infinity: there is none.
        deadlines_s: The same for single jobs of several, by name.
        budget_usd: Limit on what the work costs; infinity: there is none. Every policy is kept within it.
        theta: Share of a trial's steps after which its final metric is predicted.
        mcnt: Number of trials, the best by prediction, that are trained to the end.
        maximise: Whether a higher metric is better.
        selects: Whether the jobs are trials of one sweep, of which only the best are trained to the end.
        is_measured: Whether the speeds of the work on machines are known.
        has_steps: Whether the number of its steps is known.
        work: Name of the work, for errors.
    """

    deadline_s: float = math.inf
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    budget_usd: float = math.inf
    theta: float | None = None
    mcnt: int | None = None
    maximise: bool | None = None
    selects: bool | None = None
    is_measured: bool | None = None
    has_steps: bool | None = None
    work: str = "this work"

    @classmethod
    def of_sweep(cls, sweep: OneJob) -> Goals:
        """The goals that a sweep's file gives."""
        return cls(
            deadline_s=math.inf if sweep.deadline_h is None else sweep.deadline_h * HOUR_S,
            budget_usd=math.inf if sweep.budget_usd is None else sweep.budget_usd,
            theta=sweep.theta,
            mcnt=sweep.mcnt,
            maximise=sweep.direction is Direction.MAXIMIZE,
            selects=sweep.has_choice,
            is_measured=sweep.is_measured,
            has_steps=sweep.steps is not None,
            work=sweep.name,
        )

    @classmethod
    def of_jobs(cls, listed: JobList, jobs: Sequence[ListedJob]) -> Goals:
        """The goals of several jobs of a list that have one policy."""
        due = [(job.work.job_names, listed.deadline_of(job)) for job in jobs]
        return cls(
            deadlines_s={name: hours * HOUR_S for names, hours in due if hours is not None for name in names},
            budget_usd=math.inf if listed.budget_usd is None else listed.budget_usd,
            work=listed.name,
        )

    @classmethod
    def of(cls, work: Runnable | None) -> Goals:
        """The goals of any work, a list of jobs included; None: no goal is given."""
        if work is None:
            return cls()
        return cls.of_jobs(work, work.listed) if work.is_list else cls.of_sweep(work)

    @property
    def has_deadline(self) -> bool:
        """True if the work, or a job of it, has a deadline."""
        return math.isfinite(self.deadline_s) or bool(self.deadlines_s)

    @property
    def knows_length(self) -> bool:
        """True unless the steps or the speeds of the work are said to be unknown."""
        return self.is_measured is not False and self.has_steps is not False

    def given(self, **fields: str) -> dict[str, Any]:
        """Select the goals that are given, under the names of a policy's own fields.

        Args:
            fields: Name of each goal by the name of the policy's field; a deadline or budget of infinity is not
                given.
        """
        values = {name: getattr(self, goal) for name, goal in fields.items()}
        return {name: value for name, value in values.items() if value is not None and value != math.inf}


def for_goals(policy: Policy, goals: Goals) -> Policy:
    """Return the policy adapted to some goals, or as it is if it has no method `for_goals`."""
    adapt = getattr(policy, "for_goals", None)
    return policy if adapt is None else adapt(goals)


def keeps_deadlines(policy: Policy) -> bool:
    """Return whether a deadline changes a policy at all: a policy that ignores it may miss it."""
    inner: Any = policy
    while not hasattr(inner, "for_goals") and hasattr(inner, "policy"):
        inner = inner.policy
    # A deadline that no policy has by chance.
    return for_goals(inner, Goals()) != for_goals(inner, Goals(deadline_s=math.pi * HOUR_S))


def unknown_work(policy: str, goals: Goals) -> InputError:
    """Error of a policy that plans by the length of work whose length is not known."""
    missing = ["steps"] * (goals.has_steps is False) + ["steps_per_hour"] * (goals.is_measured is False)
    return InputError(
        f"policy {policy} plans by how long the work takes, which is not said of {goals.work}: write its "
        f"{' and '.join(missing)}, for a matrix program its task_s; a run by another policy measures it",
        field="policy",
    )
