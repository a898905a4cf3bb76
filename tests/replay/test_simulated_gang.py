"""Machines that train as one in a replay: which of them go on, and when, as some get their notice and others come."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.replay.simulated_training import SimulatedTraining
from ebbtide.replay.start_delay import StartDelay
from ebbtide.testing.scripted import Scripted, replay

# Requests and boots take 20 s each, so that a machine that is requested at a notice is there before the end.
_SOON = StartDelay(20.0, 20.0)
_TAKEN = {C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]}


def _elastic(least: int, most: int) -> Job:
    return job(3600, machines={"min": least, "max": most}, save_s=10, restore_s=20)


def _replaced(machines: int) -> Scripted:
    """Request machines that get their notice after 1000 s, and a slower one then, once."""

    def start(_: eb.policies.View, __: eb.policies.Event) -> Iterable[eb.policies.Action]:
        yield eb.policies.Request(C3, 0.2, job=0, count=machines)

    def notice(view: eb.policies.View, _: eb.policies.Event) -> Iterable[eb.policies.Action]:
        if len(view.leases) == machines:
            yield eb.policies.Request(R3, job=0)

    return Scripted({eb.policies.Wake.START: start, eb.policies.Wake.NOTICE: notice})


def test_a_job_moves_at_once_from_a_machine_under_notice_to_its_replacement() -> None:
    outcome = replay(_replaced(1), [_elastic(1, 2)], history(_TAKEN), delay=_SOON)
    # It trains from 60 s until 1040 s, saves until 1050 s, and begins on the second machine alone.
    assert outcome.makespan_s == pytest.approx(1050 + 20 + (3600 - 980) * 2 + 10, abs=1e-3)
    assert (outcome.jobs[0].restores, outcome.steps_lost) == (2, 0)


def test_machines_under_notice_work_to_the_last_moment_if_fewer_replace_them() -> None:
    outcome = replay(_replaced(2), [_elastic(1, 3)], history(_TAKEN), delay=_SOON)
    # Two machines train from 60 s until 1110 s; then the third alone.
    assert outcome.makespan_s == pytest.approx(1120 + 20 + (3600 - 2 * 1050) * 2 + 10, abs=1e-3)
    # It began on the first of the two, and at once anew on both.
    assert (outcome.jobs[0].restores, outcome.steps_lost) == (3, 0)


class _Gang:
    """A simulated training of one step a second and machine, with a time that tests set."""

    def __init__(self, work: Job) -> None:
        self.progress = JobProgress(0, work)
        self.training = SimulatedTraining(self.progress, lambda _: 1.0, lambda _: 4, 0.0)

    def steps_at(self, time_s: float) -> float:
        """Let everything happen until a time, in seconds after the start; returns the steps that are done."""
        while (next_s := self.training.next_time_s()) <= START_S + time_s:
            self.training.advance(next_s)
        self.training.refresh(START_S + time_s)
        return self.progress.steps_done


def _booted(lease_id: int) -> Lease:
    return Lease(lease_id, C3, math.inf, False, START_S, state=LeaseState.RUNNING, running_s=START_S)


def test_a_job_begins_anew_once_it_has_saved_to_move_whatever_comes_of_the_machine_to_join() -> None:
    gang = _Gang(_elastic(1, 2))
    first, second = _booted(0), _booted(1)
    gang.training.assign([first], START_S)
    assert gang.steps_at(100.0) == 80.0
    gang.training.assign([first, second], START_S + 100.0)
    second.state = LeaseState.REVOKED
    gang.training.lease_lost(second, START_S + 105.0)
    # Its processes ended with the save, so the next ones restore.
    assert gang.steps_at(130.0) == 80.0
    assert gang.steps_at(140.0) == 90.0
    assert gang.progress.restores == 2


def test_the_order_of_its_machines_is_no_reason_to_begin_anew() -> None:
    gang = _Gang(_elastic(1, 2))
    pair = [_booted(0), _booted(1)]
    gang.training.assign(pair, START_S)
    assert gang.steps_at(100.0) == 2 * 80.0
    gang.training.assign(pair[::-1], START_S + 100.0)
    assert gang.steps_at(200.0) == 2 * 180.0
    assert gang.progress.restores == 1


def test_machines_that_stay_download_the_checkpoint_as_new_ones_do() -> None:
    checkpoint = Checkpointing(save_s=10.0, restore_s=20.0, size_bytes=1_000)
    bucket = Bucket(cloud="aws", region="us-west-2")
    gang = _Gang(job(3600, machines={"min": 1, "max": 2}, checkpoint=checkpoint, bucket=bucket))
    first, second = _booted(0), _booted(1)
    gang.training.assign([first, second], START_S)
    gang.steps_at(100.0)
    gang.training.assign([first], START_S + 100.0)
    gang.steps_at(200.0)
    moved = [(move.source.region, move.destination.region) for move in gang.progress.transfers]
    assert moved == [("us-east-1", "us-west-2"), ("us-west-2", "us-east-1")]


def test_a_job_begins_anew_if_its_machines_change_during_a_save_and_change_back() -> None:
    gang = _Gang(_elastic(1, 2))
    pair = [_booted(0), _booted(1)]
    gang.training.assign(pair, START_S)
    assert gang.steps_at(100.0) == 2 * 80.0
    gang.training.save(START_S + 100.0)
    gang.training.assign(pair[:1], START_S + 104.0)
    gang.training.assign(pair, START_S + 106.0)
    assert gang.steps_at(130.0) == 2 * 80.0
    assert gang.steps_at(140.0) == 2 * 90.0
