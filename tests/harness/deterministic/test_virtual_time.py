"""Tests of virtual time: tasks take turns on one thread, and time moves to the next due task."""

from __future__ import annotations

import math
from functools import partial

import pytest
from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.virtual_time import Process, VirtualRuntime, VirtualTime


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime(Faults(0), 100.0)


def run(time: VirtualTime) -> None:
    time.run(lambda: False, math.inf)


def test_time_moves_to_what_is_due(time: VirtualTime) -> None:
    done: list[tuple[str, float]] = []
    process = Process("p")

    def sleeper(name: str, *durations_s: float) -> None:
        for duration_s in durations_s:
            time.sleep(duration_s)
            done.append((name, time.now_s))

    time.begin(process, lambda: sleeper("slow", 5.0, 5.0))
    time.begin(process, lambda: sleeper("fast", 3.0, 3.0))
    run(time)
    assert done == [("fast", 103.0), ("slow", 105.0), ("fast", 106.0), ("slow", 110.0)]


def test_a_flag_wakes_those_that_wait_and_a_wait_may_time_out(time: VirtualTime) -> None:
    runtime = VirtualRuntime(time, Process("p"))
    flag, found = runtime.flag(), []
    runtime.begin(lambda: found.append((flag.wait(2.0), time.now_s)))
    runtime.begin(lambda: found.append((flag.wait(60.0), time.now_s)))

    def sets() -> None:
        runtime.sleep(10.0)
        flag.set()

    runtime.begin(sets)
    run(time)
    assert found == [(False, 102.0), (True, 110.0)]


def test_a_killed_process_does_nothing_more_and_others_go_on(time: VirtualTime) -> None:
    victim, other, done = Process("victim"), Process("other"), []

    def works() -> None:
        try:
            VirtualRuntime(time, victim).sleep(50.0)
            done.append("worked")
        finally:
            done.append("unwound")
            VirtualRuntime(time, victim).sleep(1.0)
            done.append("slept")

    def kills() -> None:
        time.sleep(5.0)
        time.kill(victim)
        time.sleep(60.0)
        done.append("went on")

    time.begin(victim, works)
    time.begin(victim, lambda: done.append("never"), delay_s=20.0)
    time.begin(other, kills)
    run(time)
    assert done == ["unwound", "went on"]


def test_an_exception_is_told_with_its_process(time: VirtualTime) -> None:
    told = []
    time.on_error = lambda process, error: told.append((process.name, str(error)))

    def fails() -> None:
        raise ValueError("no")

    time.begin(Process("p"), fails)
    run(time)
    assert told == [("p", "no")]


def test_the_seed_decides_the_order_of_what_is_due_at_once() -> None:
    assert len({_order(seed) for seed in range(20)}) > 3


def _order(seed: int) -> str:
    time, done = VirtualTime(Faults(seed), 0.0), []
    for name in "abc":
        time.begin(Process(name), partial(done.append, name))
    run(time)
    return "".join(done)
