"""Which controller acts for a run: the newest, and never one with an older copy of the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cut_objects import CutAnswers
from tests.runs.cloud_as_told import Clock
from tests.runs.sweeps import START_S, A

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.clouds.cloud import Instance
from ebbtide.controller.agent_provider import AgentProvider, Callbacks
from ebbtide.controller.controller import Controller
from ebbtide.controller.leadership import (
    Leadership,
    LostClaimError,
    MachineNumbers,
    OthersRunError,
    SupersededError,
    check_has_claim,
)
from ebbtide.errors import InputError, StorageError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.storage.objects import FolderStore

KEY = bytes(32)


def test_the_newest_claim_holds_and_the_older_ones_say_whose_it_is(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    first = Leadership.take(store, "run", KEY)
    first.check()
    second = Leadership.take(store, "run", KEY)
    assert (first.epoch, second.epoch) == (1, 2)
    second.check()
    with pytest.raises(SupersededError, match=r"another controller has taken this run over: process \d+ on host"):
        first.check()
    assert Leadership.take(store, "other-run", KEY).epoch == 1


def test_claims_that_storage_has_lost_are_not_given_again(tmp_path: Path) -> None:
    """Machines obey the newest controller: a purge of old files makes none of its numbers free."""
    store = FolderStore(tmp_path)
    claim = Leadership.take(store, "run", KEY)
    numbers = MachineNumbers(store, "run", KEY)
    numbers.begin(0, claim.epoch)
    check_has_claim(store, "run", numbers.newest_epoch)
    (tmp_path / "runs/run/controllers/000001").unlink()
    with pytest.raises(LostClaimError, match=r"lacks runs/run/controllers/000001, .* is it mounted\?"):
        check_has_claim(store, "run", numbers.newest_epoch)
    assert Leadership.take(store, "run", KEY, numbers.newest_epoch).epoch == 2
    # A run that was never claimed has nothing there yet.
    check_has_claim(store, "new", MachineNumbers(store, "new", KEY).newest_epoch)


@pytest.mark.parametrize(("pays", "waits_s"), [(True, 300.0), (False, 3600.0)])
def test_a_run_that_is_resumed_waits_for_storage_that_lacks_its_claim(
    tmp_path: Path, pays: bool, waits_s: float
) -> None:
    """A share may not be mounted yet; what is gone for good is not waited for without end."""
    clock = Clock()
    controller: Any = SimpleNamespace(
        _provider=SimpleNamespace(known_epoch=3, has_open_machines=lambda: pays, check_is_newest=lambda: None),
        _settings=SimpleNamespace(run="run"),
        _folder=SimpleNamespace(key=KEY),
        _objects=FolderStore(tmp_path / "store"),
        _runtime=clock,
        _waits_no_more=lambda: False,
    )
    assert Controller._claim(controller).epoch == 4
    assert waits_s <= clock.now_s < waits_s + 1.0
    # The claim of the last controller is there: nothing is waited for.
    controller._provider.known_epoch = 4
    before_s = clock.now_s
    assert Controller._claim(controller).epoch == 5
    assert clock.now_s == before_s


def test_a_claim_that_another_writes_first_is_the_next_one(tmp_path: Path) -> None:
    class Busy(FolderStore):
        """Another controller claims the run between the look at the claims and the write."""

        def put_once(self, key: str, content: bytes) -> bool:
            if key.endswith("000001"):
                super().put_once(key, b"{torn")
            return super().put_once(key, content)

    claim = Leadership.take(Busy(tmp_path), "run", KEY)
    assert claim.epoch == 2
    claim.check()
    store = FolderStore(tmp_path)
    store.put_once("runs/run/controllers/README", b"")
    # What others put there takes nothing over: it is not sealed, or is the claim of another number.
    store.put_once("runs/run/controllers/000003", b'{"host": "evil", "process": 1, "since": "now"}')
    store.put_once("runs/run/controllers/000004", store.get("runs/run/controllers/000002"))
    store.put_once("runs/run/controllers/000005", b"[" * 100_000)
    store.put_once(f"runs/run/controllers/{'9' * 250}", b"")
    claim.check()
    # Another run of that name, whose user has another name to give it.
    with pytest.raises(
        OthersRunError, match=r"a run run already that is somebody else's: process \d+ on host .*another name"
    ):
        Leadership.take(store, "run", bytes(31) + b"x")
    claim.check()
    assert Leadership.take(store, "run", KEY).epoch == 6
    with pytest.raises(SupersededError, match="taken this run over"):
        claim.check()


def test_of_two_runs_of_one_name_that_begin_at_once_one_is_refused(tmp_path: Path) -> None:
    class Busy(FolderStore):
        """The other claims it between the look at the claims and the write."""

        def put_once(self, key: str, content: bytes) -> bool:
            Leadership.take(FolderStore(tmp_path), "run", KEY)
            return super().put_once(key, content)

    with pytest.raises(OthersRunError, match="somebody else's"):
        Leadership.take(Busy(tmp_path), "run", bytes(31) + b"x")
    assert list(FolderStore(tmp_path).keys("runs/run/controllers/")) == ["runs/run/controllers/000001"]


def test_somebody_elses_run_is_refused_before_its_machines_are_looked_at(tmp_path: Path) -> None:
    ended: list[str] = []
    theirs = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, float("nan"))
    Leadership.take(FolderStore(tmp_path), "run", bytes(31) + b"x")
    with pytest.raises(OthersRunError, match="begin this one anew under another name") as caught:
        provider(tmp_path, ended, theirs).check_is_newest()
    assert "down" not in str(caught.value)


def provider(folder: Path, ended: list[str], *instances: Instance) -> AgentProvider:
    cloud: Any = SimpleNamespace(
        now_s=START_S + 99.0,
        is_over=False,
        terminate=ended.append,
        instances=lambda: list(instances),
    )
    callbacks = Callbacks(lambda _: Assignment("", (), 1, "loss"))
    return AgentProvider(cloud, FolderStore(folder), AgentConfig("run", "", str(folder), ""), callbacks, key=KEY)


def test_a_controller_that_was_replaced_ends_no_machine(tmp_path: Path) -> None:
    ended: list[str] = []
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    machine = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, float("nan"))
    older, newer = provider(tmp_path, ended, machine), provider(tmp_path, ended, machine)
    for each in (older, newer):
        each._leases[0] = lease
        each.claim_run(Leadership.take(FolderStore(tmp_path), "run", KEY))
    with pytest.raises(SupersededError):
        older.next_event(START_S + 200.0)
    older.terminate(lease)
    assert ended == []
    newer._look()
    newer.terminate(lease)
    assert ended == ["run-m0000"]


def test_an_older_copy_of_a_run_is_refused_before_it_claims_it(tmp_path: Path) -> None:
    ended: list[str] = []
    known = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, float("nan"))
    later = Instance("run-m0001", LeaseState.RUNNING, START_S, START_S, float("nan"))
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    copy = provider(tmp_path, ended, known, later)
    copy._leases[0] = lease
    with pytest.raises(InputError, match="machine run-m0001 of this run is not in its journal") as caught:
        copy.check_is_newest()
    # They are those of whoever runs it now.
    assert "down" not in str(caught.value)
    copy.terminate(lease)
    assert ended == []
    whole = provider(tmp_path, ended, known)
    whole._leases[0] = lease
    whole.check_is_newest()


def test_a_run_that_cannot_be_checked_does_not_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older copy whose check found no answer acted, and its ledger lacked what the newer one had rented."""
    rents = provider(tmp_path, [])

    def refused(store: FolderStore, key: str) -> bool:
        raise StorageError(f"{key}: AccessDenied (403)")

    monkeypatch.setattr(FolderStore, "has", refused)
    with pytest.raises(StorageError, match="AccessDenied"):
        rents.check_is_newest()


def test_orders_carry_the_epoch_of_their_controller(tmp_path: Path) -> None:
    from ebbtide.agent.protocol import SaveOrder

    store = FolderStore(tmp_path)
    for epoch in (1, 2):
        rents = provider(tmp_path, [])
        rents.claim_run(Leadership.take(store, "run", KEY))
        rents._mailboxes.order(0, SaveOrder())
        rents._mailboxes.write([0])
        key = f"machines/run-m0000/orders/{epoch:08d}"
        (order,) = json.loads(store.get(key))
        assert (order["epoch"], order["kind"]) == (epoch, "save")


def numbers(
    store: FolderStore, epoch: int, known: MachineNumbers | None = None, newest: int = -1
) -> MachineNumbers:
    """Those of a controller that goes on from a copy of the run's folder."""
    found = MachineNumbers(store, "run", KEY)
    if known is not None:
        found.restore(json.loads(json.dumps(known.record())))
    found.begin(newest + 1, epoch)
    return found


def test_of_two_copies_of_a_run_only_one_gets_the_next_numbers(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    first = numbers(store, 1)
    first.take(3)
    copy = numbers(store, 2, first, newest=3)
    copy.check(3)
    copy.take(5)
    with pytest.raises(
        SupersededError, match=r"machine 4 of this run was rented by another controller: process \d+"
    ):
        first.take(4)
    # So it is when it is resumed, from its own folder and any copy of that.
    with pytest.raises(SupersededError, match="this folder is an older copy; resume the run where it ran last"):
        numbers(store, 3, first, newest=3).check(3)
    copy.check(5)
    copy.take(9)
    assert copy.next == 10


def test_numbers_that_were_asked_for_by_both_are_theirs_until_they_part(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    # Both know that machines 0 and 1 were asked for, and neither whether that was written down.
    first, copy = numbers(store, 1), numbers(store, 1)
    copy.begin(2, 2)
    first.take(1)
    copy.take(1)
    copy.take(2)
    with pytest.raises(SupersededError):
        first.take(2)


def test_a_copy_from_before_numbers_were_asked_for_is_older(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    first, copy = numbers(store, 1), numbers(store, 1)
    first.take(3)
    # It knows of machines 0 and 1 alone, by the same controller.
    with pytest.raises(SupersededError):
        copy.take(1)
    with pytest.raises(SupersededError):
        copy.check(1)


def test_numbers_whose_reply_was_lost_are_taken_again(tmp_path: Path) -> None:
    class Loses(FolderStore):
        """The first reply is lost."""

        lost = False

        def put_once(self, key: str, content: bytes) -> bool:
            found = super().put_once(key, content)
            if not self.lost:
                self.lost = True
                raise OSError("the connection was closed")
            return found

    ours = numbers(Loses(tmp_path), 1)
    with pytest.raises(OSError, match="closed"):
        ours.take(1)
    assert ours.next == 0
    # Meanwhile more are asked for, and the controller is resumed.
    again = numbers(FolderStore(tmp_path), 2, ours, newest=2)
    again.take(4)
    assert again.next == 5
    stored = FolderStore(tmp_path)
    by_epoch = [json.loads(stored.get(key))["epoch"] for key in stored.keys("runs/run/rented/")]
    assert by_epoch == [1, 1, 2]


def test_what_others_write_under_a_number_is_passed_over_by_all_alike(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put_once("runs/run/rented/00000000", b"{torn")
    store.put_once("runs/run/rented/00000000-1", b'{"epoch": 1, "last": 5}')
    first, copy = numbers(store, 1), numbers(store, 2)
    first.check(-1)
    first.take(0)
    with pytest.raises(SupersededError):
        copy.take(0)


def test_a_number_of_which_an_answer_is_cut_off_is_still_another_s(tmp_path: Path) -> None:
    """Before, it counted as a stranger's, and a copy of the run requested the same machine."""
    store = CutAnswers(tmp_path)
    first, copy = numbers(store, 1), numbers(store, 2)
    first.take(0)
    store.cuts = [20]
    with pytest.raises(SupersededError):
        copy.take(0)
