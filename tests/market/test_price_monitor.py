"""The price monitor: one look after another at a record, at an API that fails, at a real API."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from tests.markets import START_S, history

import ebbtide as eb
from ebbtide._utc import from_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.price_store import PriceMonitor, PriceStore
from ebbtide.market.sources.ec2_api import fetch_prices

HERE = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
PRICES = history({HERE: [(0, 0.1), (100, 0.1), (130, 0.2), (250, 0.3), (260, 0.2)]})


class Recorded:
    """A record as an API tells it: all prices up to now, out of order; down when told to be."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.down = False
        self.asked: list[dict[str, float]] = []

    def __call__(self, since: Mapping[str, float]) -> pd.DataFrame:
        self.asked.append(dict(since))
        if self.down:
            raise InputError("EC2 price history of us-east-1: throttled")
        frame = PRICES.to_frame()
        frame = frame[frame["timestamp"] <= from_epoch_s(self.now_s)]
        if since:
            frame = frame[frame["timestamp"] > from_epoch_s(since["us-east-1"])]
        return frame.iloc[::-1]


def monitor(source: Recorded, folder: Path) -> PriceMonitor:
    return PriceMonitor(source, PriceStore(folder / "prices.db"), {"us-east-1": "aws"}, clock=lambda: source.now_s)


def test_it_asks_for_what_is_new_and_stores_what_changed(tmp_path: Path) -> None:
    source = Recorded()
    watching = monitor(source, tmp_path)
    changes = []
    for minute in range(6):
        source.now_s = START_S + 60 * minute
        changes.append(watching.look().changes)
    assert changes == [1, 0, 0, 1, 0, 2]
    assert source.asked[0] == {}
    assert source.asked[5] == {"us-east-1": START_S + 240 - watching.overlap_s}
    found = watching.store.history()
    assert found.end_s == START_S + 300
    assert [found[HERE].at(START_S + time_s) for time_s in (0, 140, 255, 300)] == [0.1, 0.2, 0.3, 0.2]


def test_a_look_that_fails_is_made_up_for(tmp_path: Path) -> None:
    source = Recorded()
    watching = monitor(source, tmp_path)
    watching.look()
    source.down, source.now_s = True, START_S + 200
    failed = watching.look()
    assert (failed.changes, failed.problem) == (0, "EC2 price history of us-east-1: throttled")
    assert watching.store.quotes() == {HERE: 0.1}
    source.down, source.now_s = False, START_S + 300
    assert watching.look().changes == 3


def test_a_price_that_is_told_late_is_kept(tmp_path: Path) -> None:
    """The price of second 130 is told three minutes later only, after the one of second 250."""
    source = Recorded()
    late: list[bool] = [True]

    def telling(since: Mapping[str, float]) -> pd.DataFrame:
        frame = source(since)
        return frame[frame["timestamp"] != from_epoch_s(START_S + 130)] if late[0] else frame

    watching = PriceMonitor(
        telling, PriceStore(tmp_path / "p.db"), {"us-east-1": "aws"}, clock=lambda: source.now_s
    )
    source.now_s = START_S + 300
    watching.look()
    assert watching.store.history()[HERE].at(START_S + 140) == 0.1
    late[0], source.now_s = False, START_S + 310
    assert watching.look().changes == 1
    assert [watching.store.history()[HERE].at(START_S + time_s) for time_s in (0, 140, 255, 300)] == [
        0.1,
        0.2,
        0.3,
        0.2,
    ]


def test_it_watches_until_it_is_stopped(tmp_path: Path) -> None:
    source = Recorded()
    watching = PriceMonitor(source, PriceStore(tmp_path / "prices.db"), {"us-east-1": "aws"}, every_s=0.01)
    looks = []
    for look in watching.watch():
        looks.append(look)
        if len(looks) == 3:
            watching.stopped.set()
    assert len(looks) == 3


@pytest.mark.usefixtures("aws_credentials")
def test_it_watches_a_real_api(aws_server: str, tmp_path: Path) -> None:
    fetch = partial(fetch_prices, ["us-east-1"], instance_types=["c3.xlarge"], endpoint_url=aws_server)
    watching = PriceMonitor(lambda since: fetch(since=since), PriceStore(tmp_path / "p.db"), {"us-east-1": "aws"})
    first, second = watching.look(), watching.look()
    assert first.changes > 0
    assert second.changes == 0
    assert all(market.instance_type == "c3.xlarge" for market in watching.store.quotes())
