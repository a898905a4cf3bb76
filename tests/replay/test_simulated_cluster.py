"""Clusters in a replay: nothing is done without a head, and no more workers than the job asks for."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from tests.markets import C3, START_S, history

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.jobs.cluster import SparkApplication
from ebbtide.jobs.job import Coupling, Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.replay.simulated_training import SimulatedTraining
from ebbtide.testing.scripted import READY_S, Scripted, replay


def _job(machines: int) -> Job:
    return Job(
        name="app",
        steps=3600,
        steps_per_hour={"c3.xlarge": 3600.0},
        machines=machines,
        coupling=Coupling.INDEPENDENT,
        framework="spark",
        checkpoint={"save_s": 0.0, "restore_s": 0.0},
    )


def test_head_and_workers_work_and_no_more_workers_than_it_asks_for() -> None:
    def start(_: eb.policies.View, __: eb.policies.Event) -> Iterable[eb.policies.Action]:
        yield eb.policies.Request(C3, on_demand=True, job=0)
        yield eb.policies.Request(C3, math.inf, job=0, count=5)

    outcome = replay(Scripted({eb.policies.Wake.START: start}), [_job(3)], history({C3: [(0, 0.04)]}))
    # A head and three of five workers.
    assert outcome.makespan_s == pytest.approx(READY_S + 3600 / 4)


def test_nothing_is_done_without_a_head() -> None:
    training = SimulatedTraining(JobProgress(0, _job(2)), lambda _: 1.0, lambda _: 4, 5.0)
    worker = Lease(0, C3, 1.0, False, START_S, state=LeaseState.RUNNING, running_s=START_S)
    head = Lease(1, C3, math.inf, True, START_S, state=LeaseState.STARTING)
    training.assign([worker, head], START_S)
    assert not training.is_on(worker)
    head.state, head.running_s = LeaseState.RUNNING, START_S + 10.0
    training.advance(START_S + 10.0)
    assert training.is_on(worker)
    assert training.is_on(head)
    training.refresh(START_S + 20.0)
    assert training.progress.steps_done == 20.0
    other = Lease(2, C3, math.inf, True, START_S, state=LeaseState.STARTING)
    head.state = LeaseState.RELEASED
    training.assign([worker, other], START_S + 20.0)
    assert not training.is_on(worker)


def test_only_machines_that_work_alone_are_a_cluster() -> None:
    content = {"spark": "app.py", "steps": 9, "steps_per_hour": {"c3.xlarge": 1}}
    (job,) = SparkApplication.parse(content).work().jobs()
    assert job.framework == "spark"
    with pytest.raises(InputError, match="coupling independent"):
        Job.parse(job.model_dump(mode="json", exclude_none=True) | {"coupling": "gang"})


def test_a_worker_that_has_booted_first_waits_for_the_head() -> None:
    """The engine gives a job machines that have booted."""

    def start(view: eb.policies.View, _: eb.policies.Event) -> Iterable[eb.policies.Action]:
        yield eb.policies.Request(C3, math.inf, job=0)
        yield eb.policies.WakeAt(view.now_s + 60.0)

    def later(_: eb.policies.View, __: eb.policies.Event) -> Iterable[eb.policies.Action]:
        yield eb.policies.Request(C3, on_demand=True, job=0)

    script = Scripted({eb.policies.Wake.START: start, eb.policies.Wake.TIMER: later})
    outcome = replay(script, [_job(1)], history({C3: [(0, 0.04)]}))
    assert outcome.makespan_s == pytest.approx(60.0 + READY_S + 3600 / 2)


def test_workers_under_notice_work_on_beside_those_that_replace_them() -> None:
    training = SimulatedTraining(JobProgress(0, _job(2)), lambda _: 1.0, lambda _: 4, 5.0)
    head, *workers = (
        Lease(number, C3, math.inf, number == 0, START_S, state=LeaseState.RUNNING, running_s=START_S)
        for number in range(6)
    )
    training.assign([head, *workers[:2]], START_S)
    for worker in workers[:2]:
        worker.state, worker.revoke_at_s = LeaseState.NOTICED, START_S + 120.0
        training.lease_noticed(worker, START_S)
    training.assign([head, *workers], START_S)
    assert [training.is_on(worker) for worker in workers] == [True, True, True, True, False]
    training.advance(START_S + 115.0)
    assert [training.is_on(worker) for worker in workers] == [False, False, True, True, False]
