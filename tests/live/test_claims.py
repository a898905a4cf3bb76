"""Which controller acts for a run: the newest, and never one with an older copy of the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.live.sweeps import START_S, A

from ebbtide.errors import InputError
from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent_provider import AgentProvider, Callbacks
from ebbtide.live.claims import Claim, SupersededError
from ebbtide.live.clouds.cloud import Instance
from ebbtide.live.storage import FolderStore
from ebbtide.market.leases import Lease, LeaseState


def test_the_newest_claim_holds_and_the_older_ones_say_whose_it_is(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    first = Claim.take(store, "run")
    first.check()
    second = Claim.take(store, "run")
    assert (first.epoch, second.epoch) == (1, 2)
    second.check()
    with pytest.raises(SupersededError, match=r"another controller has taken this run over: process \d+ on host"):
        first.check()
    assert Claim.take(store, "other-run").epoch == 1


def test_a_claim_that_another_writes_first_is_the_next_one(tmp_path: Path) -> None:
    class Busy(FolderStore):
        """Another controller claims the run between the look at the claims and the write."""

        def put_once(self, key: str, content: bytes) -> bool:
            if key.endswith("000001"):
                super().put_once(key, b"{torn")
            return super().put_once(key, content)

    claim = Claim.take(Busy(tmp_path), "run")
    assert claim.epoch == 2
    claim.check()
    store = FolderStore(tmp_path)
    store.put_once("runs/run/controllers/README", b"")
    store.put_once("runs/run/controllers/000003", b"{torn")
    with pytest.raises(SupersededError, match="taken this run over; this one ends"):
        claim.check()


def provider(folder: Path, ended: list[str], *instances: Instance) -> AgentProvider:
    cloud: Any = SimpleNamespace(
        now_s=START_S + 99.0,
        is_over=False,
        terminate=ended.append,
        instances=lambda: list(instances),
    )
    callbacks = Callbacks(lambda _: Assignment("", (), 1, "loss"))
    return AgentProvider(
        cloud, FolderStore(folder), AgentConfig("run", "", str(folder), ""), callbacks, key=bytes(32)
    )


def test_a_controller_that_was_replaced_ends_no_machine(tmp_path: Path) -> None:
    ended: list[str] = []
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    machine = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, float("nan"))
    older, newer = provider(tmp_path, ended, machine), provider(tmp_path, ended, machine)
    for each in (older, newer):
        each._leases[0] = lease
        each.claim_run(Claim.take(FolderStore(tmp_path), "run"))
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
    with pytest.raises(InputError, match="machine run-m0001 of this run is not in its journal"):
        copy.check_is_newest()
    copy.terminate(lease)
    assert ended == []
    whole = provider(tmp_path, ended, known)
    whole._leases[0] = lease
    whole.check_is_newest()


def test_orders_carry_the_epoch_of_their_controller(tmp_path: Path) -> None:
    from ebbtide.live.agent.protocol import Save

    store = FolderStore(tmp_path)
    for epoch in (1, 2):
        rents = provider(tmp_path, [])
        rents.claim_run(Claim.take(store, "run"))
        rents._mailboxes.order(0, Save())
        rents._mailboxes.write([0])
        key = f"machines/run-m0000/orders/{epoch:08d}"
        (order,) = json.loads(store.get(key))
        assert (order["epoch"], order["kind"]) == (epoch, "save")
