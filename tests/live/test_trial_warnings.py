"""Warnings of what a training does not do: said once it had the time, withdrawn once it does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from tests.live.sweeps import START_S, A

import ebbtide as eb
from ebbtide.jobs.progress import JobProgress
from ebbtide.live import agent_training
from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent_training import AgentTraining
from ebbtide.market.leases import Lease, LeaseState

JOB = eb.Job(name="one", steps=100, steps_per_hour={"c3.xlarge": 1_000})


class Training:
    """One job on one machine, by a clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time_s = 1_000.0
        monkeypatch.setattr(agent_training.time, "time", lambda: self.time_s)
        self.training = AgentTraining(
            "run",
            lambda _: Assignment("", ("x",), 100, "loss"),
            lambda *_: None,
            lambda _: None,
            lambda: START_S,
            metric="loss",
        )
        self.training.begin([JobProgress(0, JOB)])
        self.leases: list[Lease] = []

    def rent(self) -> Lease:
        lease = Lease(len(self.leases), A, math.inf, False, START_S, LeaseState.RUNNING, START_S, START_S)
        self.leases.append(lease)
        self.training.assign(0, [lease])
        return lease

    def revoke(self, lease: Lease) -> None:
        lease.state = LeaseState.REVOKED
        self.training.gone(lease)

    def tell(self, lease: Lease, **message: Any) -> None:
        trial = self.training.trials[0]
        about: Mapping[str, Any] = {"trial": trial.trial_id, "attempt": trial.attempt, **message}
        self.training.receive(lease, about)

    @property
    def warnings(self) -> str:
        return " ".join(self.training.trials[0].warnings)


def test_a_revocation_is_the_first_occasion(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Training(monkeypatch)
    lease = one.rent()
    one.time_s += 2.0
    one.revoke(lease)
    assert "never reported" in one.warnings
    assert "saved nothing" in one.warnings


def test_warnings_are_withdrawn_when_they_are_true_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Training(monkeypatch)
    lease = one.rent()
    one.time_s += 61.0
    one.training.converge()
    assert "never reported" in one.warnings
    one.tell(lease, type="step", step=3, at=3, metric=0.5)
    assert "never reported" not in one.warnings
    assert "saved nothing" in one.warnings
    one.tell(lease, type="saved", step=3)
    assert one.warnings == ""
