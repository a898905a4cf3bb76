"""Warnings of what a training does not do: said once it had the time, withdrawn once it does it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.runs.cloud_as_told import Clock
from tests.runs.fake_controller import FakeController, Given, stored

from ebbtide.agent.protocol import OfTrial, Saved, Stepped, Unsaved
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.market.leases import Lease


@dataclass
class Training(FakeController):
    """One job on one machine, by a clock that is set."""

    clock: Clock = field(default_factory=Clock)

    def make(self, given: Given) -> AgentTraining:
        return AgentTraining("run", *given, stored=stored(), metric=lambda _job_id: "loss", runtime=self.clock)

    def job(self) -> dict[str, Any]:
        return {"steps_per_hour": {"c3.xlarge": 1_000}}

    def tell(self, lease: Lease, *reports: OfTrial) -> None:
        attempt = self.trial.attempt
        super().tell(lease, *(replace(report, trial="run-000", attempt=attempt) for report in reports))

    @property
    def warnings(self) -> str:
        return " ".join(self.trial.warnings)


def test_a_revocation_is_the_first_occasion() -> None:
    one = Training()
    (lease,) = one.rent()
    one.clock.now_s += 2.0
    one.take(lease)
    assert "never reported" in one.warnings
    assert "saved nothing" in one.warnings


def test_checkpoints_that_lack_a_file_are_warned_of_until_one_has_it() -> None:
    one = Training()
    (lease,) = one.rent()
    one.tell(lease, Saved("", 0, step=1, number=1, lacks="model.safetensors"))
    assert "its checkpoints lack model.safetensors, which Ebbtide's agent may not read" in one.warnings
    one.tell(lease, Stepped("", 0, step=2, at=2, metric=0.5, told_s=0.0))
    assert "model.safetensors" in one.warnings
    one.tell(lease, Saved("", 0, step=3, number=3))
    assert "model.safetensors" not in one.warnings


def test_warnings_are_withdrawn_when_they_are_true_no_more() -> None:
    one = Training()
    (lease,) = one.rent()
    one.clock.now_s += 61.0
    one.training.converge()
    assert "never reported" in one.warnings
    one.tell(lease, Stepped("", 0, step=3, at=3, metric=0.5, told_s=0.0))
    assert "never reported" not in one.warnings
    assert "saved nothing" in one.warnings
    one.tell(lease, Saved("", 0, step=3, number=1))
    assert one.warnings == ""


def test_a_checkpoint_that_storage_refuses_is_told_instead_of_blaming_the_program() -> None:
    """Before, a program whose upload was refused was told to name the folder in which it saves."""
    one = Training()
    (lease,) = one.rent()
    one.clock.now_s += 61.0
    one.training.converge()
    assert "saved nothing" in one.warnings
    one.tell(lease, Unsaved("", 0, step=7, why="AccessDenied (403)"))
    assert "its newest checkpoint is not stored: AccessDenied (403)" in one.warnings
    assert "saved nothing" not in one.warnings
    one.tell(lease, Stepped("", 0, step=8, at=8, metric=0.5, told_s=0.0))
    one.clock.now_s += 61.0
    one.training.converge()
    assert one.warnings.count("is not stored") == 1
    assert "saved nothing" not in one.warnings
    one.tell(lease, Saved("", 0, step=8, number=1))
    assert one.warnings == ""
