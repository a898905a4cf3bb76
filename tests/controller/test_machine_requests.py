"""A machine is requested once, under a number that only this run has."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.runs.cloud_as_told import KEY, Clock, provider
from tests.runs.sweeps import START_S, A

from ebbtide.controller.agent_provider import PollIntervals
from ebbtide.controller.leadership import Leadership, SupersededError
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Wake
from ebbtide.storage.objects import FolderStore


def test_a_request_that_the_cloud_does_not_list_has_failed(tmp_path: Path) -> None:
    rents = provider(tmp_path, None, None)
    rents._pace = PollIntervals(0.01, missing_s=0.0)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S - 20.0)
    rents.launch(lease)
    rents._requests.waiting.clear()
    event = rents.next_event(math.inf)
    assert event is not None
    assert (event.wake, lease.state) == (Wake.LAUNCH_FAILED, LeaseState.FAILED)


def test_a_copy_that_would_rent_under_a_number_of_the_other_s_is_refused(tmp_path: Path) -> None:
    """Neither sees the other's machine listed: before, both thought that the one machine was theirs."""
    store, launched = FolderStore(tmp_path), []
    each = [provider(tmp_path, None, None), provider(tmp_path, None, None)]
    for rents in each:
        cloud: Any = rents._cloud
        cloud.launch = launched.append
        rents.claim_run(Leadership.take(store, "run", KEY))
    older, newer = each
    older.launch(Lease(0, A, 0.21, on_demand=False, requested_s=START_S))
    newer.launch(Lease(0, A, 0.42, on_demand=False, requested_s=START_S))
    for rents in each:
        rents.written()
    # The older one is between its look at the claims and its request.
    older._requests.request_all()
    with pytest.raises(SupersededError, match="machine 0 of this run was rented by another controller"):
        newer._look()
    assert [wanted.max_price_usd_per_hour for wanted in launched] == [0.21]


def test_a_number_that_cannot_be_taken_yet_is_not_requested(tmp_path: Path) -> None:
    store, launched = FolderStore(tmp_path), []

    class Silent(FolderStore):
        def put_once(self, key: str, content: bytes) -> bool:  # noqa: ARG002
            raise OSError("the disk is full")

    rents = provider(tmp_path, None, None)
    cloud: Any = rents._cloud
    cloud.launch = launched.append
    rents.claim_run(Leadership.take(store, "run", KEY))
    rents._requests.numbers.objects = Silent(tmp_path)
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S)
    rents.launch(lease)
    rents.written()
    rents._requests.request_all()
    assert (launched, list(rents._requests.waiting), rents.trouble) == ([], [0], "the disk is full")
    rents._requests.numbers.objects = store
    rents._requests.request_all()
    assert len(launched) == 1
    # One that was ended before is neither requested nor written down.
    lease = Lease(1, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RELEASED)
    rents.launch(lease)
    rents._requests.request_all()
    assert (len(launched), list(rents._requests.waiting), rents._requests.numbers.next) == (1, [], 1)


def test_a_request_that_the_team_s_quota_does_not_allow_is_kept_back(tmp_path: Path) -> None:
    """A controller that was gone for long finds its requests in the journal, and its machines given to others."""
    launched: list[Any] = []
    asked: list[int] = []
    allowed = [1]

    def holds(machines: int) -> bool:
        asked.append(machines)
        return machines <= allowed[0]

    clock = Clock()
    rents = provider(tmp_path, None, None, runtime=clock)
    rents._requests._holds = holds
    cloud: Any = rents._cloud
    cloud.launch = launched.append
    for lease_id in (0, 1):
        rents.launch(Lease(lease_id, A, 0.21, on_demand=False, requested_s=START_S))
    rents.written()
    rents._look()
    assert (launched, asked, list(rents._requests.waiting)) == ([], [2], [0, 1])
    # One that came all the same, since its request was made before, needs none.
    rents._leases[1].state = LeaseState.RUNNING
    rents._requests.request_all()
    assert (launched, list(rents._requests.waiting)) == ([], [0])
    clock.now_s += rents._pace.missing_s + 1.0
    rents._requests.request_all()
    assert rents._requests.unanswered(0, rents._pace.missing_s) == "the team's quota leaves no room for it"
    allowed[0] = 2
    rents._requests.request_all()
    assert [wanted.token for wanted in launched] == ["run-m0000"]
    assert not rents._requests.waiting


def test_a_machine_is_requested_only_once_the_journal_has_its_lease(tmp_path: Path) -> None:
    """A controller that is to stop does not wait for its journal, and the next one knows only what that has."""
    launched: list[Any] = []
    rents = provider(tmp_path, None, None)
    cloud: Any = rents._cloud
    cloud.launch = launched.append
    rents.claim_run(Leadership.take(FolderStore(tmp_path), "run", KEY))
    for lease_id in (0, 1):
        rents.launch(Lease(lease_id, A, 0.21, on_demand=False, requested_s=START_S))
        rents._requests.request_all()
        assert len(launched) == lease_id
        assert rents._requests.numbers.next == lease_id
        rents.written()
        rents._requests.request_all()
        assert len(launched) == lease_id + 1
    assert not rents._requests.waiting
