"""What requests to storage cost is an estimate, by how often machines and controller look."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.cli.test_live_table import ended, printed
from tests.runs.sweeps import START_S, A

from ebbtide.cli.live_table import run_table
from ebbtide.clouds.settings import LiveSettings
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.runs.storage_requests import estimated_requests_usd

HOUR_S = 3600.0


def settings(store: str, poll_s: float = 5.0) -> LiveSettings:
    return LiveSettings("run", "ec2", "p", {}, "", store, {"ec2": {"poll_s": poll_s}, "code": "x"}, 0)


def lease(state: LeaseState, hours: float = math.nan) -> Lease:
    ended_s = START_S + hours * HOUR_S
    return Lease(0, A, 0.1, False, START_S, state, START_S, START_S, ended_s=ended_s)


def test_it_goes_with_hours_of_machines_and_how_often_they_look() -> None:
    leases = [lease(LeaseState.RELEASED, 2.0), lease(LeaseState.RUNNING), Lease(1, A, 0.1, False, START_S)]
    found = estimated_requests_usd(settings("s3://bucket/x"), leases, START_S + HOUR_S)
    # In an hour 720 looks each way and 720 reports, and 120 looks for heartbeats, of which each is read.
    hourly = (2 * 720 + 120) * 0.0004 / 1_000 + (720 + 120) * 0.005 / 1_000
    assert found == pytest.approx(3 * hourly)
    assert estimated_requests_usd(settings("s3://bucket/x"), leases, math.nan) == pytest.approx(2 * hourly)
    assert estimated_requests_usd(settings("gs://bucket", 10.0), leases, START_S) < 2 * hourly
    assert estimated_requests_usd(settings("/a/folder"), leases, START_S) == 0.0


def test_it_is_called_an_estimate_and_is_in_no_sum() -> None:
    one = replace(ended("ec2"), requests_usd_estimate=0.0123)
    shown = printed(run_table(one))
    assert "requests to storage: about 0.0123 USD more (an estimate)" in shown
    assert "paid 0.0500 USD" in shown
    assert one.as_plain()["requests_usd_estimate"] == 0.0123
