"""Policies decide alike in replay and live for each kind of job, and faulty runs are found.

A part of `make live-matrix`: each policy with one kind of job, and some with more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from tests.harness import live_matrix
from tests.harness.live_matrix import Cell, cell_of, report_of
from tests.harness.parity.kinds import Kind, frameworks, kinds
from tests.harness.parity.parity import compare
from tests.harness.parity.tape_cloud import Lived, live
from tests.harness.parity.tapes import scenario_with

import ebbtide as eb
from ebbtide.base.cores import one_thread
from ebbtide.controller.kinds.cluster import AgentCluster
from ebbtide.controller.kinds.state import TrialState
from ebbtide.controller.kinds.task_ranges import TaskRanges
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.errors import InputError
from ebbtide.forecasts.champions import read_models
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.registry import POLICIES
from ebbtide.replay.scenario import Scenario

# Policies, each with a kind of job.
_CELLS = [
    ("reactive", "single"),
    ("fastest-spot", "sweep"),
    ("reactive", "gang"),
    ("reactive", "elastic"),
    ("deadline", "elastic"),
    ("deepspotcloud-interrupt", "elastic"),
    ("next-cheapest", "gang"),
    ("uniform-progress", "array"),
    *((name, framework) for framework in frameworks() for name in ("reactive", "spot-fleet-lowest-cost")),
]
# Place of the first policy's kind in the list of kinds, by which all policies together take the least time.
_FIRST_KIND = 3
# Number of decisions after which `Restless` leaves its machines alone.
_RESTLESS_CALLS = 250


@cache
def _kinds() -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds()}


def _cell(policy: str, kind: str, tapes: slice = slice(None)) -> Cell:
    """Run one cell, on some of its tapes."""

    class Few(Kind):
        @property
        def tapes(self) -> tuple[tuple[object, str], ...]:  # type: ignore[override]
            return super().tapes[tapes]

    with one_thread():
        return cell_of(policy, Few(**vars(_kinds()[kind])), read_models(None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "kind"), _CELLS)
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


@pytest.mark.long
@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in dict(_CELLS)])
def test_each_other_policy_decides_for_one_kind_live_as_in_replay(policy: str) -> None:
    """Each runs on one tape of the first kind, from its own place in the list of kinds on, that it fits."""
    names, place = [*_kinds()], [*POLICIES].index(policy) + _FIRST_KIND
    from_place = [names[(place + number) % len(names)] for number in range(len(names))]
    cell = next(cell for kind in from_place if (cell := _cell(policy, kind, slice(1))).fits)
    assert [problem for run in cell.runs if (problem := run.first_difference or run.failure)] == []
    assert cell.is_good
    assert sum(run.decisions for run in cell.runs) > 2


@dataclass(frozen=True)
class Restless:
    """Rents, releases and saves at random, and gives its job other machines, or the same in another order."""

    name: str = "restless"
    wakes_on: frozenset[eb.policies.Wake] = frozenset()

    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        (job,), random = view.jobs, view.random
        view.memory["calls"] = calls = view.memory.get("calls", 0) + 1
        if job.is_finished:
            return
        leases = view.leases_of(job.job_id)
        booted = [lease.lease_id for lease in leases if lease.is_booted]
        steady = [lease.lease_id for lease in leases if math.isinf(lease.revoke_at_s)]
        missing = job.job.most_machines - len(steady)
        if missing > 0 and random.random() < 0.7:
            markets = [market for market in view.markets if view.steps_per_s(job.job, market) > 0]
            market = markets[random.integers(len(markets))]
            max_price = view.price(market) * random.uniform(1.0, 3.0)
            yield eb.policies.Request(market, max_price, job=job.job_id, count=int(random.integers(missing)) + 1)
        # Towards the end it lets its job finish.
        if calls < _RESTLESS_CALLS:
            yield eb.policies.WakeAt(view.now_s + random.uniform(5.0, 900.0))
            match random.integers(8):
                case 0 | 1:
                    yield eb.policies.Assign(job.job_id, random.permutation(booted).tolist())
                case 2 if len(booted) > 1:
                    yield eb.policies.Assign(job.job_id, random.permutation(booted).tolist()[1:])
                    yield eb.policies.Assign(job.job_id, booted)
                case 3 | 4:
                    yield eb.policies.Save(job.job_id)
                case 5 if steady:
                    yield eb.policies.Release(steady[random.integers(len(steady))])
        elif not steady:
            yield eb.policies.WakeAt(view.now_s + 60.0)


@pytest.mark.long
def test_machines_that_change_often_change_live_as_in_replay() -> None:
    elastic = _kinds()["elastic"]
    tape, billing = elastic.tapes[0]
    found = compare("restless", elastic.scenario(tape, billing), tape.name, tape.start_s, Restless())
    assert [str(each) for each in found.differences[:1]] == []
    assert found.is_same
    assert found.finished
    assert found.revocations > 0


def test_what_a_gang_sends_through_a_bucket_is_charged_live_as_in_replay() -> None:
    """The bucket is in another region than the machines."""
    elastic = _kinds()["elastic"]
    bucket = Bucket(cloud="aws", region="us-west-2")
    jobs = tuple(job.model_copy(update={"bucket": bucket}) for job in elastic.jobs)
    tape, billing = elastic.tapes[0]
    found = compare("reactive", scenario_with(jobs, tape, billing), tape.name, tape.start_s, eb.policy("reactive"))
    assert found.is_same
    assert found.finished
    assert found.cost_usd > 0.6  # egress is a sixth of it


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
