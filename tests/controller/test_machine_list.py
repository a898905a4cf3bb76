"""What the cloud lists, and what it lists no more."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.runs.cloud_as_told import Clock, provider, running
from tests.runs.sweeps import START_S, A

from ebbtide.clouds.cloud import Instance
from ebbtide.market.leases import Lease, LeaseState


def test_a_machine_that_the_cloud_forgot_has_ended_when_it_was_last_seen(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    lease.running_s = START_S
    clock = Clock()
    listed = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, math.nan)
    rents = provider(tmp_path, listed, None, runtime=clock)
    rents._leases[0] = lease
    rents._look()
    cloud: Any = rents._cloud
    cloud.instances, cloud.now_s = (list), START_S + 5000.0
    rents._look()
    clock.now_s += rents._pace.missing_s / 2.0
    rents._look()
    assert lease.is_open
    clock.now_s += rents._pace.missing_s
    rents._look()
    assert (lease.state, lease.ended_s) == (LeaseState.RELEASED, START_S + 99.0)


def test_a_machine_that_is_heard_from_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, two minutes of old lists wrote it off, and it was killed unsaved once it was listed again."""
    clock = Clock()
    rents = provider(tmp_path, None, None, runtime=clock)
    lease, heard = running(rents), [1]
    monkeypatch.setattr(rents._mailboxes, "reports_heard", lambda _lease_id: heard[0])
    for _ in range(100):
        rents._look()
        clock.now_s += 5.0
        heard[0] += clock.now_s % 20.0 == 0.0
    assert lease.is_open
    for _ in range(26):
        rents._look()
        clock.now_s += 5.0
    assert not lease.is_open


def test_a_machine_of_a_part_of_the_cloud_that_was_silent_ended_when_that_last_listed_it(tmp_path: Path) -> None:
    lease = Lease(0, A, 0.21, on_demand=False, requested_s=START_S, state=LeaseState.RUNNING, started_s=START_S)
    lease.running_s = START_S
    listed = Instance("run-m0000", LeaseState.RUNNING, START_S, START_S, math.nan, listed_s=START_S + 60.0)
    clock = Clock()
    rents = provider(tmp_path, listed, None, runtime=clock)
    rents._leases[0] = lease
    cloud: Any = rents._cloud
    for _ in range(3):
        cloud.now_s += 1000.0
        rents._look()
    assert lease.is_open
    cloud.instances = list
    rents._look()
    assert lease.is_open
    clock.now_s += rents._pace.missing_s
    rents._look()
    assert (lease.state, lease.ended_s) == (LeaseState.RELEASED, START_S + 60.0)
