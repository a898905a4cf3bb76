"""What a local cloud writes down of its machines."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tests.runs.sweeps import START_S, A, flapping
from tests.waiting import eventually

from ebbtide.agent.config import AgentConfig
from ebbtide.clouds.cloud import MachineRequest
from ebbtide.clouds.local.client import LocalCloudSettings, start_local_cloud
from ebbtide.clouds.local.server import CLOCK, _write_changed, bills_of
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.leases import LeaseState

pytestmark = pytest.mark.usefixtures("processes")


def test_a_file_is_written_where_it_differs_whatever_it_held(tmp_path: Path) -> None:
    path = tmp_path / "ended.json"
    path.write_bytes(b"\xff\xfe damaged")
    _write_changed(path, "[1]")
    assert path.read_text() == "[1]"
    written = path.stat().st_ino
    _write_changed(path, "[1]")
    assert path.stat().st_ino == written


def test_machines_of_a_killed_cloud_are_billed_until_they_were_last_alive(tmp_path: Path) -> None:
    flapping(every_h=5.0).write(tmp_path / "prices.parquet")
    place, speed = tmp_path / "cloud", 120.0
    settings = LocalCloudSettings(str(place), str(tmp_path / "prices.parquet"), START_S, speed)
    agent = asdict(AgentConfig("run", "m0", str(tmp_path / "objects"), "", controller_limit_s=60.0))
    wanted = MachineRequest("m0", A, math.inf, False, agent)
    cloud = start_local_cloud(settings)
    try:
        cloud.launch(wanted)
        eventually(lambda: [one for one in cloud.instances() if not math.isnan(one.running_s)])
        (before,) = cloud.instances()
        # Every second it writes down the time and then its machines: at the third time those after the first are there.
        times_s = [cloud.now_s]
        for _ in range(3):
            times_s.append(eventually(lambda: found if (found := _written(place)) > times_s[-1] else None))
        os.kill(cloud.pid, signal.SIGKILL)
        os.waitpid(cloud.pid, 0)
        killed_s = cloud.now_s
        cloud = start_local_cloud(settings)
        (after,) = cloud.instances()
        assert (after.token, after.started_s, after.why) == ("m0", before.started_s, "the local cloud was killed")
        assert times_s[1] <= after.ended_s <= killed_s
        # It was one machine, and is no other one.
        cloud.launch(wanted)
        assert len(cloud.instances()) == 1
        # At 0.03 USD/h.
        usd = pytest.approx((after.ended_s - after.started_s) / 3600.0 * 0.03, rel=0.02)
        eventually(lambda: bills_of(place))
        assert [(bill["token"], bill["usd"]) for bill in bills_of(place)] == [("m0", usd)]
    finally:
        bills = cloud.end()
    assert [(bill["token"], bill["usd"]) for bill in bills] == [("m0", usd)]


def test_a_machine_goes_when_its_capacity_does(tmp_path: Path) -> None:
    flapping(every_h=5.0).write(tmp_path / "prices.parquet")
    # Ten real seconds later: by then the first machine runs.
    gone_s = START_S + 2_400.0
    nodes = CapacitySeries(np.array([START_S - 60.0, gone_s]), np.array([1, 0]), START_S + 24 * 3600.0)
    Availability({A: nodes}).write(tmp_path / "capacity.parquet")
    settings = LocalCloudSettings(
        str(tmp_path / "cloud"),
        str(tmp_path / "prices.parquet"),
        START_S,
        240.0,
        least_notice_s=0.5,
        availability=str(tmp_path / "capacity.parquet"),
    )
    cloud = start_local_cloud(settings)
    try:
        for token in ("first", "second"):
            agent = asdict(AgentConfig("run", token, str(tmp_path / "objects"), "", controller_limit_s=60.0))
            cloud.launch(MachineRequest(token, A, math.inf, False, agent))
        eventually(lambda: all(not math.isnan(one.ended_s) for one in cloud.instances()))
        found = {one.token: one for one in cloud.instances()}
    finally:
        cloud.end()
    assert (found["first"].state, found["second"].state) == (LeaseState.REVOKED, LeaseState.FAILED)
    assert "capacity" in found["first"].why
    assert "capacity" in found["second"].why
    # It was told half a real second before it went.
    assert found["first"].ended_s == pytest.approx(gone_s + 120.0, abs=1.0)


def _written(place: Path) -> float:
    """The market's time when a cloud last wrote down how things are; 0: it has not."""
    clock = place / CLOCK
    return float(json.loads(clock.read_text())["now_s"]) if clock.exists() else 0.0
