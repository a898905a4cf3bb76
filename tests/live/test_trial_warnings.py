"""Warnings of what a training does not do: said once it had the time, withdrawn once it does it."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.live.sweeps import START_S, A

import ebbtide as eb
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.protocol import OfTrial, Saved, Stepped
from ebbtide.live.agent_training import AgentTraining
from ebbtide.live.runtime import Runtime
from ebbtide.market.leases import Lease, LeaseState

JOB = eb.Job(name="one", steps=100, steps_per_hour={"c3.xlarge": 1_000})


class Training(Runtime):
    """One job on one machine, by a clock that is set."""

    def __init__(self) -> None:
        self.time_s = 1_000.0
        self.training = AgentTraining(
            "run",
            lambda _: Assignment("", ("x",), 100, "loss"),
            lambda *_: None,
            lambda _: None,
            lambda: START_S,
            metric=lambda _job_id: "loss",
            runtime=self,
        )
        self.training.begin([JobProgress(0, JOB)])
        self.leases: list[Lease] = []

    def epoch_s(self) -> float:
        return self.time_s

    def monotonic_s(self) -> float:
        return self.time_s

    def rent(self) -> Lease:
        lease = Lease(len(self.leases), A, math.inf, False, START_S, LeaseState.RUNNING, START_S, START_S)
        self.leases.append(lease)
        self.training.assign(0, [lease])
        return lease

    def revoke(self, lease: Lease) -> None:
        lease.state = LeaseState.REVOKED
        self.training.gone(lease)

    def tell(self, lease: Lease, report: OfTrial) -> None:
        self.training.receive(lease, replace(report, trial="run-000", attempt=self.training.trials[0].attempt))

    @property
    def warnings(self) -> str:
        return " ".join(self.training.trials[0].warnings)


def test_a_revocation_is_the_first_occasion() -> None:
    one = Training()
    lease = one.rent()
    one.time_s += 2.0
    one.revoke(lease)
    assert "never reported" in one.warnings
    assert "saved nothing" in one.warnings


def test_warnings_are_withdrawn_when_they_are_true_no_more() -> None:
    one = Training()
    lease = one.rent()
    one.time_s += 61.0
    one.training.converge()
    assert "never reported" in one.warnings
    one.tell(lease, Stepped("", 0, step=3, at=3, metric=0.5, told_s=0.0))
    assert "never reported" not in one.warnings
    assert "saved nothing" in one.warnings
    one.tell(lease, Saved("", 0, step=3, number=1))
    assert one.warnings == ""
