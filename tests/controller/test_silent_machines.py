"""Machines that are paid for and never heard from: each is ended, and counts as a failed boot."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.cloud_as_told import KEY, Clock
from tests.runs.sweeps import START_S, A

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.messages import MessageLog
from ebbtide.agent.protocol import REPORTS, Channel, Envelope, Up, key_of
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.controller.agent_provider import AgentProvider, Callbacks, PollIntervals
from ebbtide.errors import CloudError, InputError, StorageError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event, Wake
from ebbtide.storage.objects import FolderStore

LIMIT_S = 1800.0


class Cloud:
    """A cloud whose machines are in the state that it is told, from their request on."""

    def __init__(self, clock: Clock, state: LeaseState = LeaseState.RUNNING, started_s: float = START_S) -> None:
        self.clock, self.state, self.started_s = clock, state, started_s
        self.known: dict[str, Instance] = {}
        self.refuses = self.is_away = False
        self.is_over = False

    @property
    def now_s(self) -> float:
        return START_S + self.clock.now_s

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        running_s = self.started_s if self.state is LeaseState.RUNNING else math.nan
        self.known[wanted.token] = Instance(wanted.token, self.state, self.started_s, running_s, math.nan)

    def terminate(self, token: str) -> float:
        if self.refuses:
            raise CloudError("not allowed")
        before = self.known[token]
        self.known[token] = Instance(token, LeaseState.RELEASED, before.started_s, before.running_s, self.now_s)
        return self.now_s

    def instances(self) -> list[Instance]:
        if self.is_away:
            raise CloudError("does not answer")
        return list(self.known.values())


class Rented:
    """A provider with some machines, which looks as time passes."""

    def __init__(
        self, folder: Path, cloud: Cloud, machines: int = 1, poll_s: float = 5.0, controller_limit_s: float = 900.0
    ) -> None:
        self.store, self.cloud = FolderStore(folder), cloud
        self.rents = AgentProvider(
            cloud,  # type: ignore[arg-type]
            self.store,
            AgentConfig("run", "", str(folder), "", controller_limit_s=controller_limit_s),
            Callbacks(lambda _: Assignment("", (), 1, "loss")),
            key=KEY,
            pace=PollIntervals(poll_s, silent_s=LIMIT_S),
            runtime=cloud.clock,
        )
        self.rents._began_s = START_S
        self.leases = [self.rent(number) for number in range(machines)]

    def rent(self, number: int) -> Lease:
        lease = Lease(number, A, 0.21, on_demand=False, requested_s=START_S)
        self.rents.launch(lease)
        self.rents.written()
        return lease

    def hear(self, number: int, every_s: float = 0.0, count: int = 1) -> None:
        """The agent of a machine reports."""
        machine = f"run-m{number:04d}"
        log = MessageLog(self.store, Channel(machine, REPORTS, key_of(KEY, machine)))
        log.write(count, [Envelope("boot", count, 1, Up(every_s))])

    def look_for(self, duration_s: float, every_s: float = 10.0) -> list[Event]:
        found: list[Event] = []
        until_s = self.cloud.clock.now_s + duration_s
        while self.cloud.clock.now_s < until_s:
            with contextlib.suppress(CloudError, OSError):
                self.rents._look()
            found += self.rents._out
            self.rents._out.clear()
            self.cloud.clock.now_s += every_s
        return found


def ended(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.lease_id, event.detail) for event in events if event.wake is Wake.ENDED]


@pytest.mark.parametrize("state", [LeaseState.RUNNING, LeaseState.STARTING])
def test_a_machine_whose_set_up_hangs_ends_and_is_named(
    state: LeaseState, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some clouds, such as those of SkyPilot, say of such a machine that it starts."""
    caplog.set_level(logging.WARNING)
    one = Rented(tmp_path, Cloud(Clock(), state))
    assert ended(one.look_for(LIMIT_S - 20.0)) == []
    assert one.leases[0].is_open
    assert ended(one.look_for(60.0)) == [(0, "its agent was never heard from")]
    assert one.cloud.known["run-m0000"].state is LeaseState.RELEASED
    assert (one.leases[0].state, one.leases[0].is_charged) == (LeaseState.RELEASED, True)
    assert "machine run-m0000 has run for 1800 s, and its agent was never heard from" in caplog.text
    assert one.rents._failed_boots == 1
    assert ended(one.look_for(60.0)) == []


def test_one_that_is_not_paid_for_is_waited_for(tmp_path: Path) -> None:
    """A spot request may stay open for days."""
    one = Rented(tmp_path, Cloud(Clock(), LeaseState.REQUESTED, math.nan))
    assert ended(one.look_for(3 * LIMIT_S)) == []


def test_one_that_hangs_later_ends_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its kernel hangs, or it has lost the network: nobody else ends it, and it is paid for."""
    caplog.set_level(logging.WARNING)
    one = Rented(tmp_path, Cloud(Clock()))
    for count in range(1, 11):
        one.hear(0, 300.0, count)
        assert ended(one.look_for(300.0)) == []
    assert ended(one.look_for(LIMIT_S - 360.0)) == []
    ((lease_id, why),) = ended(one.look_for(2 * LIMIT_S))
    assert (lease_id, why) == (0, "its agent, which reports every 300 s, was not heard from")
    assert "machine run-m0000 has run for" in caplog.text
    assert "it is ended" in caplog.text
    assert one.rents._failed_boots == 0


def test_one_of_a_former_version_that_was_heard_from_is_left_alone(tmp_path: Path) -> None:
    one = Rented(tmp_path, Cloud(Clock()))
    one.look_for(LIMIT_S - 60.0)
    one.hear(0)
    assert ended(one.look_for(2 * LIMIT_S)) == []
    assert one.rents._failed_boots == 0


def test_what_was_written_while_its_cloud_said_that_it_starts_counts(tmp_path: Path) -> None:
    one = Rented(tmp_path, Cloud(Clock(), LeaseState.STARTING))
    one.hear(0)
    assert ended(one.look_for(2 * LIMIT_S)) == []


def test_of_a_gang_s_machines_the_silent_one_ends(tmp_path: Path) -> None:
    four = Rented(tmp_path, Cloud(Clock()), machines=4)
    four.look_for(60.0)
    for number in (0, 1, 3):
        four.hear(number)
    assert ended(four.look_for(2 * LIMIT_S)) == [(2, "its agent was never heard from")]


def test_after_three_in_a_row_the_run_ends(tmp_path: Path) -> None:
    one = Rented(tmp_path, Cloud(Clock()))
    for number in (1, 2):
        assert len(ended(one.look_for(LIMIT_S + 20.0))) == 1
        one.rent(number)
    with pytest.raises(InputError, match="3 machines ended before their agent began, last run-m0002"):
        one.look_for(LIMIT_S + 20.0)


def test_three_over_days_while_others_begin_and_train_end_nothing(tmp_path: Path) -> None:
    """Before, any three failed boots of a run ended all machines, unsaved."""
    many = Rented(tmp_path, Cloud(Clock()), machines=3)
    for lease_id in range(3):
        many.hear(lease_id)
    many.look_for(20.0)
    for lease_id in (3, 5, 7):
        many.rent(lease_id)
        assert len(ended(many.look_for(LIMIT_S + 20.0))) == 1
        many.rent(lease_id + 1)
        many.hear(lease_id + 1)
        many.look_for(20.0)
        assert many.rents._failed_boots == 0


def test_three_in_a_row_while_others_train_stop_requests_and_end_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Rented(tmp_path, Cloud(Clock()), machines=1)
    monkeypatch.setattr(many.rents._training, "in_use", lambda lease: lease.lease_id == 0)
    many.hear(0)
    many.look_for(20.0)
    for lease_id in (1, 2, 3):
        many.rent(lease_id)
        assert len(ended(many.look_for(LIMIT_S + 20.0))) == 1
    assert many.leases[0].is_open
    assert caplog.text.count("machines that train go on, and one more is requested each hour") == 1
    many.rent(4)
    (event,) = many.look_for(20.0)
    assert (event.wake, event.lease_id) == (Wake.LAUNCH_FAILED, 4)
    # An outage of whatever the set-up needs passes.
    many.look_for(3600.0)
    for lease_id in (5, 6):
        many.rent(lease_id)
    events = many.look_for(20.0)
    assert [(each.wake, each.lease_id) for each in events] == [(Wake.LAUNCH_FAILED, 6), (Wake.RUNNING, 5)]
    many.hear(5)
    many.look_for(20.0)
    many.rent(7)
    assert [each.wake for each in many.look_for(20.0)] == [Wake.RUNNING]
    many.rents._requests.stop(InputError("3 machines ended before their agent began"))
    many.rents._leases[0].state = LeaseState.RELEASED
    many.rent(8)
    with pytest.raises(InputError, match="3 machines ended before their agent began"):
        many.look_for(20.0)


def test_machines_that_were_never_heard_from_are_not_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings are put on machines that their cloud says run; one more is requested while the others hang."""
    many = Rented(tmp_path, Cloud(Clock()), machines=3)
    monkeypatch.setattr(many.rents._training, "in_use", lambda _lease: True)
    many.look_for(LIMIT_S / 2)
    many.rent(3)
    with pytest.raises(InputError, match="3 machines ended before their agent began"):
        many.look_for(LIMIT_S)


def test_three_in_a_row_end_a_run_in_which_nothing_trains(tmp_path: Path) -> None:
    """The first machine of a gang waits for the second, which never begins, and is paid for."""
    two = Rented(tmp_path, Cloud(Clock()), machines=1)
    for count in range(1, 30):
        two.hear(0, 300.0, count)
    with pytest.raises(InputError, match="3 machines ended before their agent began"):
        for lease_id in (1, 2, 3):
            two.rent(lease_id)
            two.look_for(LIMIT_S + 20.0)


def test_time_in_which_nobody_could_look_is_not_silence(tmp_path: Path) -> None:
    """The machine could not have been heard either: its store was away, or the controller was suspended."""
    one = Rented(tmp_path, Cloud(Clock()))
    one.look_for(100.0)
    one.cloud.clock.now_s += 10 * LIMIT_S
    assert ended(one.look_for(LIMIT_S / 2)) == []
    assert len(ended(one.look_for(LIMIT_S))) == 1


def test_looks_that_fail_now_and_then_make_no_machine_immortal(tmp_path: Path) -> None:
    one = Rented(tmp_path, Cloud(Clock()))
    for _ in range(10):
        one.look_for(200.0)
        one.cloud.is_away = True
        one.look_for(20.0)
        one.cloud.is_away = False
    assert not one.leases[0].is_open


def test_one_whose_end_is_refused_is_named_and_ended_later(tmp_path: Path) -> None:
    one = Rented(tmp_path, Cloud(Clock()))
    one.cloud.refuses = True
    assert len(ended(one.look_for(LIMIT_S + 20.0))) == 1
    assert one.rents.unended == {"run-m0000": "not allowed"}
    one.cloud.refuses = False
    one.look_for(60.0)
    assert one.rents.unended == {}
    assert one.cloud.known["run-m0000"].state is LeaseState.RELEASED


def test_a_report_that_storage_refuses_holds_up_no_other_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object in an archive, or under a key that is gone, is refused for ever."""
    one = Rented(tmp_path, Cloud(Clock()), machines=12)
    one.look_for(60.0)
    for number in range(12):
        one.hear(number)
    get = FolderStore.get

    def refused(store: FolderStore, key: str) -> bytes:
        if key.split("/")[1] in ("run-m0000", "run-m0003") and "/reports/" in key:
            raise StorageError(f"{key}: AccessDenied (403)")
        return get(store, key)

    monkeypatch.setattr(FolderStore, "get", refused)
    token = "run-m0002"
    before = one.cloud.known[token]
    one.cloud.known[token] = replace(before, state=LeaseState.REVOKED, ended_s=one.cloud.now_s)
    assert [event.lease_id for event in one.look_for(60.0) if event.wake is Wake.ENDED] == [2]
    assert all(one.rents._mailboxes.has_reported(number) for number in range(12) if number not in (0, 2, 3))
    assert "AccessDenied" in one.rents.trouble
    # One that was refused now and then is read again, before those that always are.
    refusals = one.rents._reports._refusals
    refusals[5] = 1
    one.look_for(10.0)
    assert 5 not in refusals
    # Where nothing is ever heard, the machine is of no use; no other ends.
    assert {lease_id for lease_id, _ in ended(one.look_for(2 * LIMIT_S))} == {0, 3}


def test_a_machine_whose_id_was_removed_ends_no_controller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has changed the tags of a machine; before, the controller took itself for an older copy."""
    two = Rented(tmp_path, Cloud(Clock()), machines=2)
    two.look_for(30.0)
    two.cloud.known["i-0abc"] = replace(two.cloud.known.pop("run-m0001"), token="i-0abc")
    assert ended(two.look_for(60.0)) == []
    assert caplog.text.count("machine i-0abc has the run's tag but no machine's id; it is not counted") == 1
    assert [lease_id for lease_id, _ in ended(two.look_for(120.0))] == [1]
    two.rents.check_is_newest()


def test_machines_whose_reports_storage_refuses_all_are_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They train and report; before, all of them were ended after half an hour."""
    three = Rented(tmp_path, Cloud(Clock()), machines=3)
    get, count = FolderStore.get, 1
    for number in range(3):
        three.hear(number, 300.0)
    three.look_for(60.0)
    # Another waits for its machine, and has nothing to read.
    three.cloud.state, three.cloud.started_s = LeaseState.REQUESTED, math.nan
    three.rent(3)

    def refused(store: FolderStore, key: str) -> bytes:
        if "/reports/" in key:
            raise StorageError(f"{key}: AccessDenied (403)")
        return get(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "get", refused)
        for _ in range(30):
            count += 1
            for number in range(3):
                three.hear(number, 300.0, count)
            assert ended(three.look_for(300.0)) == []
    assert "AccessDenied" in three.rents.trouble
    assert ended(three.look_for(LIMIT_S - 60.0)) == []
    assert {lease_id for lease_id, _ in ended(three.look_for(600.0))} == {0, 1, 2}


def test_one_machine_whose_report_is_refused_for_ever_ends_some_hours_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training may have ended, and nobody would ever know."""
    one = Rented(tmp_path, Cloud(Clock()))
    one.hear(0, 300.0)
    one.look_for(60.0)

    def refused(store: FolderStore, key: str) -> bytes:
        if "/reports/" in key:
            raise StorageError(f"{key}: InvalidObjectState (403)")
        return get(store, key)

    get = FolderStore.get
    monkeypatch.setattr(FolderStore, "get", refused)
    one.hear(0, 300.0, 2)
    assert ended(one.look_for(6 * 3600.0, every_s=30.0)) == []
    assert [lease_id for lease_id, _ in ended(one.look_for(3600.0, every_s=30.0))] == [0]


def test_one_whose_last_reports_are_refused_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Rented(tmp_path, Cloud(Clock()), machines=2)
    one.look_for(60.0)
    get = FolderStore.get

    def refused(store: FolderStore, key: str) -> bytes:
        if "run-m0000/reports/" in key:
            raise StorageError(f"{key}: AccessDenied (403)")
        return get(store, key)

    one.hear(0)
    monkeypatch.setattr(FolderStore, "get", refused)
    before = one.cloud.known["run-m0000"]
    one.cloud.known["run-m0000"] = replace(before, state=LeaseState.REVOKED, ended_s=one.cloud.now_s)
    # They may say that its training has finished, so they are asked for again for a while.
    assert ended(one.look_for(60.0)) == []
    assert [lease_id for lease_id, _ in ended(one.look_for(600.0))] == [0]


def test_one_that_may_train_alone_for_longer_is_waited_for(tmp_path: Path) -> None:
    """Storage may be away from an agent for as long as its settings allow."""
    one = Rented(tmp_path, Cloud(Clock()), controller_limit_s=3 * LIMIT_S)
    one.hear(0, 300.0)
    assert ended(one.look_for(3 * LIMIT_S - 60.0)) == []
    assert [lease_id for lease_id, _ in ended(one.look_for(120.0))] == [0]


def test_silence_lasts_as_long_however_seldom_the_controller_looks(tmp_path: Path) -> None:
    one = Rented(tmp_path, Cloud(Clock()), poll_s=200.0)
    assert ended(one.look_for(LIMIT_S, every_s=200.0)) == []
    assert [lease_id for lease_id, _ in ended(one.look_for(400.0, every_s=200.0))] == [0]


def test_one_that_hangs_while_no_controller_runs_ends(tmp_path: Path) -> None:
    one = Rented(tmp_path, Cloud(Clock()))
    one.hear(0, 300.0)
    one.look_for(60.0)
    kept = json.loads(json.dumps(one.rents.snapshot()))
    again = Rented(tmp_path, one.cloud, machines=0)
    again.rents.resume_from(kept, one.leases)
    again.rents.start([], watch_prices=False)
    assert ended(again.look_for(LIMIT_S - 120.0)) == []
    assert [lease_id for lease_id, _ in ended(again.look_for(LIMIT_S))] == [0]
