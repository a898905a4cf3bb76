"""Several clouds of which one does not answer: the others go on as if it were not there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from tests.clouds.test_parts import Simple
from tests.runs.cloud_as_told import KEY, Clock
from tests.runs.sweeps import START_S, A, G, H, flapping, steady

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.clouds.cloud import Instance, MachineRequest, before_request
from ebbtide.clouds.own_machines import OwnMachines
from ebbtide.clouds.several import SeveralClouds
from ebbtide.controller.agent_provider import AgentProvider, Callbacks, PollIntervals
from ebbtide.controller.machine_ends import MachineEnds
from ebbtide.errors import CloudError, InputError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.events import Event, Wake
from ebbtide.storage.objects import FolderStore


class Away(Simple):
    """A cloud that, while it is silent, answers no request either, though it may obey it."""

    obeys = False
    # Answers again from the next request to end a machine on.
    recovers = False
    refusal = ""
    asked = 0
    broken: Collection[Market] = ()

    # Whether it is silent before a machine is requested.
    sends = True

    def launch(self, wanted: MachineRequest) -> None:
        if self.refusal:
            raise InputError(self.refusal)
        self.asked += 1
        if wanted.market in self.broken:
            raise CloudError("InsufficientFreeAddressesInSubnet")
        if self.is_away and not self.sends:
            with before_request():
                raise CloudError("it does not answer")
        if (not self.is_away or self.obeys) and wanted.token not in {one.token for one in self.machines}:
            self.machines.append(Instance(wanted.token, LeaseState.RUNNING, START_S, START_S, math.nan))
        if self.is_away:
            raise CloudError("it does not answer")

    # Whether it does not list yet what was requested.
    hides = False

    def instances(self) -> list[Instance]:
        found = super().instances()
        return [] if self.hides else found

    def terminate(self, token: str) -> float | None:
        self.is_away = self.is_away and not self.recovers
        found = None if self.hides else super().terminate(token)
        if found is not None:
            ended = Instance(token, LeaseState.RELEASED, START_S, START_S, START_S + 900.0)
            self.machines = [ended if one.token == token else one for one in self.machines]
        return found


class Run:
    """A run in two clouds, the second of which is silent at first."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.aws, self.gcp = Clock(), Away(flapping()), Away(steady(), is_away=True)
        self.rents = AgentProvider(
            OwnMachines(SeveralClouds({"aws": self.aws, "gcp": self.gcp}), "run", "run-12345678"),
            FolderStore(folder),
            AgentConfig("run", "", str(folder), ""),
            Callbacks(lambda _: Assignment("", (), 1, "loss")),
            key=KEY,
            pace=PollIntervals(5.0, missing_s=120.0),
            runtime=self.clock,
        )

    def rent(self, market: Market) -> Lease:
        lease = Lease(len(self.rents._leases), market, math.inf, on_demand=False, requested_s=START_S)
        self.rents.launch(lease)
        self.rents.written()
        return lease

    def rent_unlisted(self) -> Lease:
        """Rent a machine of a cloud that answers, and does not list it yet."""
        self.gcp.is_away = False
        self.look_for(5.0)
        self.gcp.hides = True
        lease = self.rent(G)
        self.look_for(5.0)
        return lease

    def look_for(self, duration_s: float) -> list[Event]:
        found: list[Event] = []
        until_s = self.clock.now_s + duration_s
        while self.clock.now_s < until_s:
            with contextlib.suppress(CloudError):
                self.rents._look()
            found += self.rents._out
            self.rents._out.clear()
            self.clock.now_s += 5.0
        return found


def kinds(events: list[Event]) -> list[tuple[Wake, int]]:
    return [(event.wake, event.lease_id) for event in events]


def test_a_cloud_that_never_answered_keeps_no_machine_of_another_from_beginning(tmp_path: Path) -> None:
    """As after a resume with Google's credentials expired: AWS's machines would wait, and be paid for."""
    run = Run(tmp_path)
    lease = run.rent(A)
    assert kinds(run.look_for(10.0)) == [(Wake.RUNNING, 0)]
    assert lease.state is LeaseState.RUNNING
    (machine,) = run.aws.machines
    run.aws.machines = [Instance(machine.token, LeaseState.REVOKED, START_S, START_S, START_S + 60.0)]
    assert kinds(run.look_for(10.0)) == [(Wake.ENDED, 0)]


def test_machines_of_a_cloud_that_never_answered_are_not_missing(tmp_path: Path) -> None:
    """A resumed run knows of them from its journal."""
    run = Run(tmp_path)
    lease = run.rent(G)
    run.rents._requests.waiting.clear()
    lease.state, lease.started_s, lease.running_s = LeaseState.RUNNING, START_S, START_S
    assert run.look_for(1_000.0) == []
    assert lease.is_open
    run.gcp.is_away = False
    assert kinds(run.look_for(200.0)) == [(Wake.ENDED, 0)]


def test_a_request_that_its_cloud_does_not_answer_fails_while_another_answers(tmp_path: Path) -> None:
    """The policy may ask another cloud, instead of waiting for hours for this one."""
    run = Run(tmp_path)
    lease = run.rent(G)
    assert run.look_for(100.0) == []
    (event,) = run.look_for(100.0)
    assert (event.wake, event.lease_id) == (Wake.LAUNCH_FAILED, 0)
    assert "it does not answer" in event.detail
    assert (lease.state, list(run.rents._requests.waiting)) == (LeaseState.FAILED, [])
    run.gcp.is_away = False
    assert (run.look_for(40.0), run.gcp.machines, run.rents.unended) == ([], [], {})


def test_a_cloud_that_does_not_answer_is_set_aside_whole(tmp_path: Path) -> None:
    """Before, each of its markets was waited for in turn, while another cloud's machines were not asked for."""
    run = Run(tmp_path)
    run.rent(G)
    assert kinds(run.look_for(200.0)) == [(Wake.LAUNCH_FAILED, 0)]
    asked = run.gcp.asked
    run.rent(H)
    (event,) = run.look_for(5.0)
    assert (event.wake, event.lease_id, event.detail) == (
        Wake.LAUNCH_FAILED,
        1,
        f"cloud gcp does not answer for {H.zone}",
    )
    run.rent(A)
    assert kinds(run.look_for(10.0)) == [(Wake.RUNNING, 2)]
    assert run.gcp.asked == asked
    # As soon as it answers it is asked again, and rents.
    run.gcp.is_away = False
    run.look_for(5.0)
    run.rent(H)
    assert kinds(run.look_for(10.0)) == [(Wake.RUNNING, 3)]


def test_a_silent_cloud_is_set_aside_though_the_other_fails_now_and_then(tmp_path: Path) -> None:
    """Before, each listing that the other cloud refused began the wait of two minutes anew."""
    run = Run(tmp_path)
    for _ in range(8):
        run.look_for(20.0)
        run.aws.is_away = True
        run.look_for(5.0)
        run.aws.is_away = False
    run.look_for(5.0)
    run.rent(G)
    assert [event.detail for event in run.look_for(5.0)] == [f"cloud gcp does not answer for {G.zone}"]
    # While neither answers, nothing changes.
    run.aws.is_away = True
    run.look_for(5.0)
    run.rent(H)
    assert [event.detail for event in run.look_for(5.0)] == [f"cloud gcp does not answer for {H.zone}"]
    run.rent(A)
    assert run.look_for(5.0) == []


def test_many_waiting_machines_set_a_cloud_aside_for_no_longer(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(8):
        run.rent(G)
    assert len(run.look_for(200.0)) == 8
    run.gcp.is_away = False
    run.look_for(5.0)
    run.rent(G)
    assert [wake for wake, _ in kinds(run.look_for(10.0))] == [Wake.RUNNING]


def test_a_zone_that_answers_with_errors_sets_no_other_aside(tmp_path: Path) -> None:
    """A cloud that lists its machines answers: only the market that refuses waits."""
    run = Run(tmp_path)
    run.gcp.is_away = False
    run.gcp.broken = {G}
    run.rent(G)
    assert kinds(run.look_for(200.0)) == [(Wake.LAUNCH_FAILED, 0)]
    run.rent(H)
    assert kinds(run.look_for(10.0)) == [(Wake.RUNNING, 1)]


def test_a_request_that_was_sent_and_then_refused_leaves_no_machine_uncounted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.gcp.obeys = True
    run.rent(G)
    run.look_for(10.0)
    run.gcp.refusal = "GCP will not rent as it is asked to: its API is not enabled"
    run.look_for(30.0)
    # Its cloud does not answer, so it may still run.
    assert list(run.rents.unended) == ["run-m0000"]


def test_a_request_that_was_never_sent_leaves_no_machine(tmp_path: Path) -> None:
    """Before, it counted as a machine that still runs, in the team's quota, too."""
    run = Run(tmp_path)
    run.gcp.sends = False
    run.rent(G)
    assert kinds(run.look_for(200.0)) == [(Wake.LAUNCH_FAILED, 0)]
    assert run.rents.unended == {}


def test_a_machine_that_was_requested_just_before_its_cloud_fell_silent_is_not_forgotten(tmp_path: Path) -> None:
    """Before, what a silent cloud had listed last showed that there was none, while it ran and cost."""
    run = Run(tmp_path)
    lease = run.rent_unlisted()
    run.gcp.is_away, run.gcp.hides = True, False
    assert kinds(run.look_for(200.0)) == [(Wake.LAUNCH_FAILED, 0)]
    assert list(run.rents.unended) == ["run-m0000"]
    assert run.rents.end_remaining(10.0, 10.0) == []
    assert list(run.rents.unended) == ["run-m0000"]
    run.gcp.is_away = False
    assert kinds(run.look_for(20.0)) == [(Wake.ENDED, 0)]
    assert [one.state for one in run.gcp.machines] == [LeaseState.RELEASED]
    assert (lease.is_charged, run.rents.unended) == (True, {})


def test_a_request_without_answer_of_a_cloud_that_answered_before_is_not_forgotten(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.gcp.is_away = False
    run.look_for(5.0)
    run.gcp.is_away = run.gcp.obeys = True
    run.rent(G)
    run.look_for(200.0)
    assert list(run.rents.unended) == ["run-m0000"]
    run.gcp.is_away = False
    run.look_for(20.0)
    assert [one.state for one in run.gcp.machines] == [LeaseState.RELEASED]


def test_a_request_without_answer_is_not_forgotten_where_no_more_machines_are_requested(tmp_path: Path) -> None:
    """Before, three failed boots elsewhere left a machine running that nobody knew of."""
    run = Run(tmp_path)
    run.gcp.obeys = True
    run.rent(G)
    run.look_for(10.0)
    run.rents._requests._is_at_work = lambda: True
    run.rents._requests.stop(InputError("3 machines ended before their agent began"))
    run.rents._requests._tried_s = run.clock.now_s
    run.look_for(10.0)
    assert list(run.rents.unended) == ["run-m0000"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_machine_that_is_listed_only_after_the_run_stopped_is_ended(tmp_path: Path, is_restarted: bool) -> None:
    """Clouds list a machine some seconds after its request."""
    run = Run(tmp_path)
    lease = run.rent_unlisted()
    run.rents._ends.end(lease)
    if is_restarted:
        # As after `ebbtide down` of a run whose controller was killed in the same moment.
        run.rents._ends = MachineEnds(run.rents._cloud, run.rents._machines, 5.0, print, print, run.clock)
        run.rents._ends.restore([], run.rents._leases)
    looks = []

    def looked() -> None:
        looks.append(run.clock.now_s)
        run.gcp.hides = len(looks) < 2

    run.rents._ends.end_remaining(run.rents._leases, 60.0, 60.0, looked)
    assert [one.state for one in run.gcp.machines] == [LeaseState.RELEASED]


def test_a_vanished_machine_ends_though_another_cloud_never_answered(tmp_path: Path) -> None:
    """Before, it ran for ever, and its training waited for it."""
    run = Run(tmp_path)
    lease = run.rent(A)
    assert kinds(run.look_for(10.0)) == [(Wake.RUNNING, 0)]
    run.aws.machines = []
    assert kinds(run.look_for(200.0)) == [(Wake.ENDED, 0)]
    assert not lease.is_open


@pytest.mark.parametrize("way", ["the end is not answered", "its cloud falls silent", "another cloud is silent"])
def test_a_machine_that_was_requested_just_before_the_end_is_not_told_as_ended(tmp_path: Path, way: str) -> None:
    """Before, one listing without it, or none, was enough, whatever else did not answer."""
    run = Run(tmp_path)
    lease = run.rent_unlisted()
    silent = run.aws if way == "another cloud is silent" else run.gcp
    silent.is_away = way != "its cloud falls silent"
    run.rents._ends.end(lease)
    silent.is_away = way != "the end is not answered"
    looks: list[float] = []

    def looked() -> None:
        looks.append(run.clock.now_s)
        run.gcp.hides = len(looks) < 2

    run.rents._ends.end_remaining(run.rents._leases, 60.0, 60.0, looked)
    if way == "its cloud falls silent":
        assert list(run.rents.unended) == ["run-m0000"]
    else:
        assert [one.state for one in run.gcp.machines] == [LeaseState.RELEASED]


def test_a_machine_that_came_of_an_unanswered_request_is_ended_and_charged(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.gcp.obeys = True
    lease = run.rent(G)
    run.look_for(10.0)
    run.gcp.obeys = False
    assert kinds(run.look_for(200.0)) == [(Wake.LAUNCH_FAILED, 0)]
    run.gcp.is_away = False
    assert kinds(run.look_for(20.0)) == [(Wake.ENDED, 0)]
    assert [one.state for one in run.gcp.machines] == [LeaseState.RELEASED]
    assert (lease.is_charged, lease.ended_s) == (True, START_S + 900.0)


def test_a_machine_that_is_ended_as_its_cloud_answers_again_is_charged(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.gcp.obeys = run.gcp.recovers = True
    lease = run.rent(G)
    # Its cloud tells later when it really ended.
    assert set(kinds(run.look_for(200.0))) == {(Wake.ENDED, 0)}
    assert [one.state for one in run.gcp.machines] == [LeaseState.RELEASED]
    assert (lease.is_charged, lease.ended_s) == (True, START_S + 900.0)
    assert list(run.rents._requests.waiting) == []


def test_a_cloud_that_lacks_permissions_ends_no_run_while_another_rents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    run.gcp.is_away = False
    run.gcp.refusal = "GCP will not rent as it is asked to: its API is not enabled"
    lease = run.rent(G)
    (event,) = run.look_for(5.0)
    assert (event.wake, event.detail) == (Wake.LAUNCH_FAILED, run.gcp.refusal)
    assert (lease.state, lease.is_charged) == (LeaseState.FAILED, False)
    run.rent(G)
    assert kinds(run.look_for(10.0)) == [(Wake.LAUNCH_FAILED, 1)]
    assert [record.message for record in caplog.records] == [f"{run.gcp.refusal}; other zones are asked"]
    run.rent(A)
    assert kinds(run.look_for(10.0)) == [(Wake.RUNNING, 2)]
    # Where the last one refuses, too, the user has to act, and the request is made again once the run is resumed;
    # no machine is at work.
    run.aws.refusal = "EC2 will not rent as it is asked to: UnauthorizedOperation"
    for _ in range(9):
        run.rent(A)
        assert [event.wake for event in run.look_for(5.0)] == [Wake.LAUNCH_FAILED]
    with pytest.raises(InputError, match="UnauthorizedOperation"):
        for market in (*run.gcp.markets, *run.aws.markets):
            run.rent(market)
            run.look_for(5.0)
    assert list(run.rents._requests.waiting) == [len(run.rents._leases) - 1]


def test_a_refusal_ends_no_machine_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, one zone that lacked a machine type ended all machines of a run in one region, unsaved."""
    run = Run(tmp_path)
    run.rent(A)
    run.look_for(5.0)
    monkeypatch.setattr(run.rents._training, "in_use", lambda lease: lease.lease_id == 0)
    monkeypatch.setattr(run.rents._mailboxes, "has_reported", lambda lease_id: lease_id == 0)
    run.aws.refusal = "EC2 will not rent as it is asked to: UnauthorizedOperation"
    for _ in range(9):
        run.rent(A)
        assert kinds(run.look_for(5.0)) == [(Wake.LAUNCH_FAILED, len(run.rents._leases) - 1)]
    run.rents._leases[0].state = LeaseState.RELEASED
    run.gcp.is_away, run.gcp.refusal = False, run.aws.refusal
    with pytest.raises(InputError, match="UnauthorizedOperation"):
        for market in run.rents._cloud.markets:
            run.rent(market)
            run.look_for(5.0)


def test_a_refusal_that_comes_later_ends_no_machine_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyPilot accepts each request, and refuses it minutes later; before, that ended the run."""
    run = Run(tmp_path)
    run.gcp.is_away = False
    refused = Instance("", LeaseState.FAILED, math.nan, math.nan, START_S, "NoCloudAccessError", needs_user=True)
    monkeypatch.setattr(
        Away, "launch", lambda cloud, wanted: cloud.machines.append(replace(refused, token=wanted.token))
    )
    # Elsewhere may be others.
    run.rent(A)
    (event,) = run.look_for(10.0)
    assert (event.wake, event.detail) == (Wake.LAUNCH_FAILED, "NoCloudAccessError")
    monkeypatch.setattr(run.rents._requests, "_is_at_work", lambda: True)
    for market in run.rents._cloud.markets:
        run.rent(market)
        assert [event.wake for event in run.look_for(10.0)] == [Wake.LAUNCH_FAILED]
    monkeypatch.setattr(run.rents._requests, "_is_at_work", lambda: False)
    with pytest.raises(InputError, match="NoCloudAccessError"):
        for market in run.rents._cloud.markets:
            run.rent(market)
            run.look_for(10.0)


def test_where_no_cloud_answers_requests_wait(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.aws.is_away = True
    lease = run.rent(A)
    assert run.look_for(1_000.0) == []
    run.aws.is_away = run.gcp.is_away = False
    assert kinds(run.look_for(20.0)) == [(Wake.RUNNING, 0)]
    assert lease.state is LeaseState.RUNNING


def test_what_was_never_requested_needs_no_end(tmp_path: Path) -> None:
    """Its cloud does not answer, and would be waited for at the run's end."""
    run = Run(tmp_path)
    lease = Lease(0, G, math.inf, on_demand=False, requested_s=START_S)
    run.rents.launch(lease)
    run.rents.terminate(lease)
    assert (lease.state, list(run.rents._requests.waiting)) == (LeaseState.FAILED, [])
    assert run.rents.end_remaining(60.0, 60.0) == []
    assert run.rents.unended == {}
