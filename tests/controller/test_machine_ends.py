"""A machine that was given back has ended, when and as the cloud says, whatever it answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.runs.cloud_as_told import Clock, provider, running
from tests.runs.sweeps import START_S, A

from ebbtide.clouds.cloud import Instance
from ebbtide.controller.machine_ends import _ENDS_WITHIN_S, _SILENT_S
from ebbtide.errors import CloudError, CloudGoneError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Wake


@pytest.mark.parametrize(
    ("state", "started_s", "found"),
    [
        (LeaseState.RELEASED, START_S, LeaseState.RELEASED),
        # Taken a moment before it was given back: what it costs is as for one that was taken.
        (LeaseState.REVOKED, START_S, LeaseState.REVOKED),
        (LeaseState.RELEASED, math.nan, LeaseState.FAILED),
    ],
)
def test_what_is_given_back_ends_as_the_cloud_has_it(
    state: LeaseState, started_s: float, found: LeaseState, tmp_path: Path
) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S - 20.0)
    instance = Instance("run-m0000", state, started_s, math.nan, START_S + 50.0)
    provider(tmp_path, instance, START_S + 50.0, failures=2).terminate(lease)
    assert (lease.state, lease.ended_s) == (found, START_S + 50.0)


def test_a_cloud_whose_clock_is_ahead_lets_no_lease_end_before_it_starts(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING)
    instance = Instance("run-m0000", LeaseState.RELEASED, START_S + 60.0, START_S + 60.0, START_S + 50.0)
    provider(tmp_path, instance, START_S + 50.0).terminate(lease)
    assert (lease.started_s, lease.ended_s) == (START_S + 60.0, START_S + 60.0)


def test_one_that_the_cloud_never_heard_of_has_ended_too(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S)
    provider(tmp_path, None, None).terminate(lease)
    assert (lease.state, lease.ended_s) == (LeaseState.FAILED, START_S + 99.0)


class Refuses(CloudError):
    is_refusal = True


def test_an_end_that_is_refused_is_noted_and_asked_for_again_at_each_look(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    running = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, math.nan)
    clock = Clock()
    rents = provider(tmp_path, running, None, runtime=clock)
    asked: list[str] = []

    def refuse(token: str) -> None:
        asked.append(token)
        raise Refuses("not allowed")

    cloud: Any = rents._cloud
    cloud.terminate = refuse
    rents._leases[0] = lease
    rents.terminate(lease)
    assert (clock.now_s, len(asked)) == (0.0, 1)
    assert not lease.is_open
    assert rents.unended == {"run-m0000": "not allowed"}
    rents._look()
    assert len(asked) == 2
    # It has ended after all: what it cost is counted up to then.
    ended = Instance("run-m0000", LeaseState.RELEASED, START_S, START_S, START_S + 500.0)
    cloud.instances = lambda: [ended]
    rents._look()
    assert rents.unended == {}
    assert lease.ended_s == START_S + 500.0
    assert rents._out[-1].detail == "it ended in another way than it seemed"


def test_one_that_ended_otherwise_just_before_the_run_did_is_charged_as_it_was(tmp_path: Path) -> None:
    """The look that saw it told the engine, which had nothing more to wait for."""
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RELEASED, started_s=START_S)
    lease.ended_s = START_S + 99.0
    ended = Instance("run-m0000", LeaseState.RELEASED, START_S, START_S, START_S + 120.0)
    rents = provider(tmp_path, ended, None)
    rents._leases[0] = lease
    rents._look()
    assert lease.ended_s == START_S + 120.0
    assert rents.end_remaining(0.3) == [lease]


def test_one_that_does_not_answer_is_given_up_after_a_while(tmp_path: Path) -> None:
    clock = Clock()
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, started_s=START_S)
    rents = provider(tmp_path, None, None, failures=10**9, runtime=clock)
    rents.terminate(lease)
    assert rents.unended == {"run-m0000": "not now"}
    assert clock.now_s == pytest.approx(_ENDS_WITHIN_S, abs=0.1)
    clock.now_s = 0.0
    cloud: Any = rents._cloud

    def silent() -> list[Instance]:
        raise CloudError("not now either")

    cloud.instances = silent
    rents.end_remaining(3.0)
    assert clock.now_s == pytest.approx(3.0, abs=0.6)
    assert rents.unended == {"run-m0000": "not now either"}


def test_a_cloud_that_is_no_more_ends_the_run_with_one_line(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)

    def gone() -> list[Instance]:
        raise CloudGoneError("the local cloud has ended")

    cloud: Any = rents._cloud
    cloud.instances, cloud.is_over = gone, False
    with pytest.raises(CloudGoneError, match="the local cloud has ended"):
        rents.next_event(math.inf)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, started_s=START_S)
    cloud.terminate = lambda _: gone()
    rents.terminate(lease)
    assert not lease.is_open
    assert rents.unended == {}


def test_an_end_that_came_otherwise_than_it_seemed_is_charged_as_it_was(tmp_path: Path) -> None:
    told = Instance("run-m0000", LeaseState.REVOKED, START_S, START_S + 5.0, START_S + 40.0)
    rents = provider(tmp_path, told, START_S + 50.0)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S - 20.0)
    rents.launch(lease)
    rents._requests.waiting.clear()
    # As it looked when it was given back: the listing was old, and showed no start.
    lease.state, lease.ended_s = LeaseState.FAILED, START_S + 50.0
    event = rents.next_event(math.inf)
    assert event is not None
    assert (event.wake, event.lease_id) == (Wake.ENDED, 0)
    assert (lease.state, lease.started_s, lease.ended_s) == (LeaseState.REVOKED, START_S, START_S + 40.0)
    rents._look()
    assert not rents._out


def test_a_machine_that_the_cloud_forgot_before_it_was_given_back_ended_when_it_was_last_seen(
    tmp_path: Path,
) -> None:
    rents = provider(tmp_path, None, None)
    lease = running(rents)
    rents._machines.seen_s[0] = START_S + 30.0
    rents.terminate(lease)
    assert (lease.state, lease.ended_s) == (LeaseState.RELEASED, START_S + 30.0)


def test_a_machine_that_is_forgotten_after_its_end_seemed_refused_ended_when_it_was_last_seen(
    tmp_path: Path,
) -> None:
    clock = Clock()
    rents = provider(tmp_path, None, None, failures=10**9, runtime=clock)
    lease = running(rents)
    rents._machines.seen_s[0] = START_S + 30.0
    rents.terminate(lease)
    assert (lease.ended_s, rents.unended) == (START_S + 99.0, {"run-m0000": "not now"})
    # One list without it may be an old one.
    for clock.now_s in (20.0, 139.0):
        rents._look()
        assert list(rents.unended) == ["run-m0000"]
    clock.now_s = 140.0
    rents._look()
    (event,) = rents._out
    assert (event.wake, lease.ended_s, rents.unended) == (Wake.ENDED, START_S + 30.0, {})


class OldLists:
    """A cloud that rents out one machine, and whose lists are old for some time, or that does not answer."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.is_ended, self.hides_until_s = clock, False, math.inf
        self.refuses_until_s = self.silent_from_s = -math.inf

    @property
    def now_s(self) -> float:
        return START_S + self.clock.now_s

    def instances(self) -> list[Instance]:
        if -math.inf < self.silent_from_s <= self.clock.now_s:
            raise CloudError("the connection timed out")
        if self.clock.now_s < self.hides_until_s:
            return []
        state = LeaseState.RELEASED if self.is_ended else LeaseState.RUNNING
        return [Instance("run-m0000", state, START_S, START_S, self.now_s if self.is_ended else math.nan)]

    def terminate(self, _token: str) -> float | None:
        if self.clock.now_s < self.refuses_until_s:
            raise CloudError("the service is not available")
        if self.clock.now_s < self.hides_until_s:
            return None
        self.is_ended = True
        return self.now_s


@pytest.mark.parametrize(
    ("hides_until_s", "refuses_until_s"), [(9.0, -math.inf), (9.0, 6.0), (20.0, 15.0), (29.0, 20.0)]
)
def test_a_machine_that_an_old_list_lacks_at_the_run_s_end_is_ended(
    tmp_path: Path, hides_until_s: float, refuses_until_s: float
) -> None:
    """Before, one list without it was enough, and it ran on until it missed its heartbeats."""
    clock = Clock()
    rents = provider(tmp_path, None, None, runtime=clock)
    cloud: Any = OldLists(clock)
    rents._ends._cloud = rents._machines._cloud = rents._cloud = cloud
    lease = running(rents)
    cloud.hides_until_s, cloud.refuses_until_s = hides_until_s, refuses_until_s
    rents.terminate(lease)
    rents.end_remaining(60.0)
    assert (cloud.is_ended, rents.unended) == (True, {})


def test_a_machine_of_which_no_list_tells_at_the_run_s_end_is_named(tmp_path: Path) -> None:
    clock = Clock()
    rents = provider(tmp_path, None, None, runtime=clock)
    cloud: Any = OldLists(clock)
    rents._ends._cloud = rents._machines._cloud = rents._cloud = cloud
    lease = running(rents)
    rents.terminate(lease)
    cloud.silent_from_s = clock.now_s
    rents.end_remaining(60.0, 10.0)
    assert rents.unended == {"run-m0000": "the connection timed out"}


def test_an_end_of_which_the_cloud_tells_no_time_is_told_once(tmp_path: Path) -> None:
    """Before, on EC2, each list showed a later end: the bill grew, and the policy heard of an end at each poll."""
    clock = Clock()
    taken = Instance("run-m0000", LeaseState.REVOKED, START_S, START_S, math.nan)
    rents = provider(tmp_path, taken, None, runtime=clock)
    lease = running(rents)
    for clock.now_s in (0.0, 60.0, 600.0):
        rents._look()
        rents._cloud.now_s += 60.0  # type: ignore[misc]
    assert [event.wake for event in rents._out] == [Wake.ENDED]
    assert (lease.state, lease.ended_s) == (LeaseState.REVOKED, START_S + 99.0)


def test_many_ends_do_not_each_wait_for_a_cloud_that_does_not_answer(tmp_path: Path) -> None:
    """Else a request to stop a run of many machines would be answered after minutes."""
    asked: list[str] = []
    clock = Clock()

    def terminate(token: str) -> float:
        asked.append(token)
        if len(asked) > 2:
            return START_S + 90.0
        clock.now_s += 3.0
        raise CloudError("the connection timed out")

    rents = provider(tmp_path, None, None, runtime=clock)
    rents._cloud.terminate = terminate  # type: ignore[method-assign]
    rents._ends.unended[99] = "refused before"
    leases = [Lease(number, A, 0.21, on_demand=False, requested_s=START_S) for number in range(50)]
    for lease in leases:
        rents.terminate(lease)
    assert asked == ["run-m0000"]
    assert rents.unended["run-m0049"] == "the connection timed out"
    # After a while it is asked again, and once it answers, for all.
    for expected in (2, 4, 5):
        clock.now_s += _SILENT_S
        rents.terminate(leases[0])
        if expected == 4:
            rents.terminate(leases[1])
        assert len(asked) == expected
