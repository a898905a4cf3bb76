"""Explanations: each decision of a run beside what it came to, in machine time, steps and money."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ebbtide.engine.decisions import REQUESTED, Decision
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.market.leases import Lease


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """Result of renting one machine.

    Attributes:
        lease_id: Number of the lease.
        market: Market where the machine was rented.
        on_demand: Whether it was rented at the list price.
        state: State of the lease, such as `running`, `revoked` or `failed`.
        requested_s: Time of the request, seconds since 1970.
        started_s: When charging began, seconds since 1970; NaN: it did not.
        ended_s: When it ended, seconds since 1970; NaN: it has not.
        held_s: Seconds for which it was charged so far.
        paid_usd: Cost net of its refund, USD; of an open lease so far; NaN: not known at the moment.
        refund_usd: Amount that was charged and refunded, USD.
        steps: Steps that were run on it.
    """

    lease_id: int
    market: str
    on_demand: bool
    state: str
    requested_s: float
    started_s: float
    ended_s: float
    held_s: float
    paid_usd: float
    refund_usd: float
    steps: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision and what it came to.

    Attributes:
        decision: What was decided, when and why.
        job: Name of the job that it is about; empty: it is of no one job.
        machines: What became of the machines that it requested or gave back.
        later_usd: What machines cost that were requested for this job by this decision or later, USD; NaN: the
            decision requested none.
        later_machines: Their number.
        number: Its place among all decisions of the run, counted from 1.
    """

    decision: Decision
    job: str
    machines: tuple[LeaseResult, ...]
    later_usd: float
    later_machines: int
    number: int = 0

    def as_plain(self) -> dict[str, Any]:
        """Plain values, what is not known among them as NaN.

        Expected costs of a decision without `has_steps` are for an hour of work, not until the job is done.
        """
        values = asdict(self)
        made = values["decision"]
        made["has_steps"] = self.decision.has_steps
        if not self.decision.has_steps:
            made["steps_left"] = math.nan
        made["market"] = None if self.decision.market is None else str(self.decision.market)
        for name in ("alternatives", "offered"):
            for each, one in zip(made[name], getattr(self.decision, name), strict=True):
                each["market"] = None if one.market is None else str(one.market)
        return values


@dataclass(frozen=True)
class Told:
    """Records of a run from which its explanations are made.

    Attributes:
        decisions: All decisions of the run, in order.
        leases: All leases of the run, by id.
        names: Names of its jobs, by id.
        paid_usd: Cost of each lease, USD by lease id; of open ones so far; missing: nothing, or not known.
        refund_usd: Refund of each lease, USD by lease id.
        steps_on: Steps that were run on each lease, by lease id.
        now_s: Time up to which open leases count, seconds since 1970.
    """

    decisions: Sequence[Decision]
    leases: Sequence[Lease]
    names: Sequence[str]
    paid_usd: Mapping[int, float]
    refund_usd: Mapping[int, float]
    steps_on: Mapping[int, float]
    now_s: float

    @classmethod
    def of(cls, outcome: Outcome) -> Told:
        """Of a run that has ended, whose decisions were recorded."""
        steps_on: dict[int, float] = {}
        for job in outcome.jobs:
            for lease_id, steps in job.steps_on.items():
                steps_on[lease_id] = steps_on.get(lease_id, 0.0) + steps
        ids = range(len(outcome.leases))
        return cls(
            outcome.made,
            outcome.leases,
            [job.job.name for job in outcome.jobs],
            {lease_id: outcome.ledger.usd_of(lease_id) for lease_id in ids},
            {lease_id: outcome.ledger.refund_of(lease_id) for lease_id in ids},
            steps_on,
            outcome.end_s,
        )

    def all(self) -> list[Explanation]:
        """Every decision with what it came to, in order."""
        found: list[Explanation] = []
        # From the end: of each job, what its machines cost that were requested since.
        since: dict[int, tuple[float, int]] = {}
        for number, decision in zip(range(len(self.decisions), 0, -1), reversed(self.decisions), strict=True):
            machines = tuple(self._result(lease_id) for lease_id in decision.lease_ids)
            later = (math.nan, 0)
            if decision.action == REQUESTED:
                before_usd, before = since.get(decision.job_id, (0.0, 0))
                later = (math.fsum([before_usd, *(one.paid_usd for one in machines)]), before + len(machines))
                since[decision.job_id] = later
            found.append(Explanation(decision, self._name(decision.job_id), machines, *later, number))
        return found[::-1]

    def of_lease(self, lease_id: int) -> list[Explanation]:
        """The decisions about one machine: why it was requested, and why it was given back, if it was.

        Raises:
            InputError: There is no such lease, or no decision about it was kept.
        """
        if not 0 <= lease_id < len(self.leases):
            has = f"leases 0 to {len(self.leases) - 1}" if self.leases else "no leases yet"
            raise InputError(f"the run has {has}, not {lease_id}")
        found = [one for one in self.all() if lease_id in one.decision.lease_ids]
        if not found:
            raise InputError(f"no decision about lease {lease_id} was kept: it is from before they were kept")
        return found

    def of_trial(self, job_id: int) -> list[Explanation]:
        """The decisions about one trial, or one job: on which machines it was, and why it was ended, if it was.

        Raises:
            InputError: There is no such trial, or nothing was decided about it.
        """
        if not 0 <= job_id < len(self.names):
            raise InputError(f"the run has trials 0 to {len(self.names) - 1}, not {job_id}")
        found = [one for one in self.all() if one.decision.job_id == job_id]
        if not found:
            raise InputError(f"nothing was decided about trial {job_id} so far")
        return found

    def numbered(self, number: int) -> list[Explanation]:
        """The decision of a number, as the list of all has it.

        Raises:
            InputError: There is none of that number.
        """
        if not 1 <= number <= len(self.decisions):
            has = f"decisions 1 to {len(self.decisions)}" if self.decisions else "no decisions yet"
            raise InputError(f"the run has {has}, not {number}")
        return [self.all()[number - 1]]

    def _name(self, job_id: int) -> str:
        return self.names[job_id] if 0 <= job_id < len(self.names) else ""

    def _result(self, lease_id: int) -> LeaseResult:
        lease = self.leases[lease_id]
        until_s = self.now_s if math.isnan(lease.ended_s) else lease.ended_s
        return LeaseResult(
            lease_id,
            str(lease.market),
            lease.on_demand,
            str(lease.state),
            lease.requested_s,
            lease.started_s,
            lease.ended_s,
            max(until_s - lease.started_s, 0.0) if lease.is_charged else 0.0,
            self.paid_usd.get(lease_id, math.nan if lease.is_charged else 0.0),
            self.refund_usd.get(lease_id, 0.0),
            self.steps_on.get(lease_id, 0.0),
        )


def explain(outcome: Outcome, lease: int | None = None) -> list[Explanation]:
    """Explain a policy's decisions: the offers, the alternatives weighed, and the result of each.

    Args:
        outcome: A run whose decisions were recorded, such as `BacktestResult.replay` gives.
        lease: Number of a lease, for the decisions about it alone; None: all decisions.

    Raises:
        InputError: The decisions were not recorded, or there is no such lease.
    """
    if outcome.decisions and not outcome.made:
        raise InputError("the decisions of this run were not recorded; `result.replay(policy)` records them")
    told = Told.of(outcome)
    return told.all() if lease is None else told.of_lease(lease)
