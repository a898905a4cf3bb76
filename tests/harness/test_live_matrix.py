"""Policies decide alike in replay and live for each kind of job, and faulty runs are found."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.harness import live_matrix
from tests.harness.live_matrix import Cell, cell_of, report_of
from tests.harness.parity.kinds import Kind, frameworks, kinds
from tests.harness.parity.tape_cloud import Lived, live

from ebbtide.controller.kinds.cluster import AgentCluster
from ebbtide.controller.kinds.state import TrialState
from ebbtide.controller.kinds.task_ranges import TaskRanges
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.errors import InputError
from ebbtide.forecasts.champions import read_models
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.protocol import Policy
from ebbtide.replay.scenario import Scenario


@cache
def _kinds() -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds()}


def _cell(policy: str, kind: str, tapes: slice = slice(None)) -> Cell:
    """Run one cell, on some of its tapes."""

    class Few(Kind):
        @property
        def tapes(self) -> tuple[tuple[object, str], ...]:  # type: ignore[override]
            return super().tapes[tapes]

    return cell_of(policy, Few(**vars(_kinds()[kind])), read_models(None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("reactive", "single"),
        ("fastest-spot", "sweep"),
        ("reactive", "gang"),
        ("reactive", "elastic"),
        ("deadline", "elastic"),
        ("next-cheapest", "gang"),
        ("uniform-progress", "array"),
        *((name, framework) for framework in frameworks() for name in ("reactive", "spot-fleet-lowest-cost")),
    ],
)
def test_each_kind_is_decided_live_as_in_replay(policy: str, kind: str) -> None:
    # One tape is enough for one region, where refused requests are repeated often.
    cell = _cell(policy, kind, slice(1) if _kinds()[kind].is_of_one_region else slice(None))
    assert [problem for run in cell.runs if (problem := run.first_difference or run.failure)] == []
    assert cell.is_good
    report = cell.report()
    assert report["decisions_equal"]
    assert report["finished"]
    assert report["machines_left_running"] == report["ledger_difference_usd"] == 0
    assert sum(run.revocations for run in cell.runs) > 0


@pytest.mark.parametrize("kind", ["gang", "elastic"])
def test_the_default_policy_decides_for_gangs_with_a_deadline_live_as_in_replay(kind: str) -> None:
    """A table guides the policy if capacity decides, and expected cost on price tapes."""
    one = _kinds()[kind]
    due = replace(one, sweep=one.sweep.model_copy(update={"deadline_h": 12.0}))
    cell = cell_of("ebbtide", due, read_models(None))
    assert [problem for run in cell.runs if (problem := run.first_difference or run.failure)] == []
    assert cell.is_good
    assert sum(run.revocations for run in cell.runs) > 0


def test_a_policy_that_does_not_fit_says_why() -> None:
    cell = _cell("deepspotcloud-migrate", "gang")
    assert not cell.fits
    assert cell.is_good
    assert cell.why_not is not None
    assert "gives each job one machine" in cell.why_not
    assert cell.report() == {
        "policy": "deepspotcloud-migrate",
        "kind": "gang",
        "fits": False,
        "why_not": cell.why_not,
    }


def test_a_gang_that_leaves_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a controller that makes it leave at the notice, not just before the revocation."""
    monkeypatch.setattr(AgentTraining, "_target", _without_noticed)
    cell = _cell("spot-fleet-lowest-cost", "gang", slice(1, 2))
    assert not cell.is_good
    assert cell.runs[0].differing_decisions > 0


def _without_noticed(_: AgentTraining, trial: TrialState) -> list[Lease]:
    steady = [lease for lease in trial.assigned if lease.state is LeaseState.RUNNING]
    return steady if len(steady) >= trial.progress.job.least_machines else []


def test_an_older_checkpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a controller that restarts several machines from the beginning each time."""
    monkeypatch.setattr(AgentTraining, "_resume", staticmethod(lambda _trial, _whole, _rank: ()))
    (run,) = _cell("reactive", "gang", slice(1)).runs
    assert run.failure is not None
    assert "is to resume from" in run.failure


def test_tasks_that_are_not_handed_out_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates the loss of the tasks that a machine returns."""
    monkeypatch.setattr(TaskRanges, "put", lambda ranges, _numbers: ranges)
    (run,) = _cell("reactive", "array", slice(1)).runs
    assert run.revocations > 0
    assert not run.is_good


def test_a_cluster_that_leaves_its_workers_idle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentCluster, "_begin", lambda *_: None)
    (run,) = _cell("reactive", "spark", slice(1)).runs
    assert run.differing_decisions > 0


def test_machines_that_are_left_running_are_counted() -> None:
    kind = _kinds()["single"]

    def one_is_left(scenario: Scenario, policy: Policy, start_s: float) -> Lived:
        return replace(live(scenario, policy, start_s), left_running=1)

    cell = cell_of("on-demand", kind, read_models(None), one_is_left)  # type: ignore[arg-type]
    assert not cell.is_good
    assert report_of([cell])["machines_left_running"] == len(cell.runs)
    assert report_of([cell])["bad"] == 1


def test_a_run_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Lived:
        raise InputError("the tape is torn")

    monkeypatch.setattr(live_matrix, "live", fails)
    cell = cell_of("on-demand", _kinds()["single"], read_models(None), fails)  # type: ignore[arg-type]
    assert cell.fits
    assert not cell.is_good
    assert [run.failure for run in cell.runs] == ["InputError: the tape is torn"] * 2
    assert not cell.report()["decisions_equal"]


def test_the_report_is_written_and_says_what_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_matrix, "small_bundle", lambda *_: read_models(None))
    to = tmp_path / "matrix.json"
    arguments = [str(to), "--policies", "on-demand", "deepspotcloud-interrupt", "--kinds", "single", "gang"]
    assert live_matrix.main(arguments) == 0
    found = json.loads(to.read_text())
    assert [(cell["policy"], cell["kind"], cell["fits"]) for cell in found["matrix"]] == [
        ("on-demand", "single", True),
        ("on-demand", "gang", True),
        ("deepspotcloud-interrupt", "single", True),
        ("deepspotcloud-interrupt", "gang", False),
    ]
    assert found["bad"] == found["differing_decisions"] == 0
    assert "refused" in capsys.readouterr().out
    # A controller that trains nothing.
    monkeypatch.setattr(AgentTraining, "_train", lambda *_: None)
    assert live_matrix.main([str(to), "--policies", "on-demand", "--kinds", "single"]) == 1
    assert "on-demand, single, volatile, ec2-hourly: not finished" in capsys.readouterr().out
