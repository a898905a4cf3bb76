"""The price monitor: one look after another at a record, at an API that fails, at a real API."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.markets import START_S, history

import ebbtide as eb
from ebbtide.base.utc import from_epoch_s
from ebbtide.errors import CloudError, InputError
from ebbtide.market.markets import Market
from ebbtide.market.monitor import Monitor
from ebbtide.market.price_store import PriceStore
from ebbtide.market.signals import Observation, Signal, SignalKind
from ebbtide.market.sources.ec2_api import Ec2Prices

HERE = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
PRICES = history({HERE: [(0, 0.1), (100, 0.1), (130, 0.2), (250, 0.3), (260, 0.2)]})


class Recorded:
    """A record as an API tells it: all prices up to now, out of order; down when told to be."""

    name, every_s = "recorded", 0.0

    def __init__(self) -> None:
        self.now_s = START_S
        self.down = False
        self.asked: list[dict[str, float]] = []

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:
        assert now_s == self.now_s or now_s > 1.7e9
        return Observation(self.prices(since_s), places={"us-east-1": "aws"})

    def prices(self, since: Mapping[str, float]) -> pd.DataFrame:
        self.asked.append(dict(since))
        if self.down:
            raise InputError("EC2 price history of us-east-1: throttled")
        frame = PRICES.to_frame()
        frame = frame[frame["timestamp"] <= from_epoch_s(self.now_s)]
        if since:
            frame = frame[frame["timestamp"] > from_epoch_s(since["us-east-1"])]
        return frame.iloc[::-1]


def monitor(source: Recorded, folder: Path) -> Monitor:
    return Monitor([source], PriceStore(folder / "prices.db"), clock=lambda: source.now_s)


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

    class Late(Recorded):
        late = True

        def prices(self, since: Mapping[str, float]) -> pd.DataFrame:
            frame = super().prices(since)
            return frame[frame["timestamp"] != from_epoch_s(START_S + 130)] if self.late else frame

    source = Late()
    watching = monitor(source, tmp_path)
    source.now_s = START_S + 300
    watching.look()
    assert watching.store.history()[HERE].at(START_S + 140) == 0.1
    source.late, source.now_s = False, START_S + 310
    assert watching.look().changes == 1
    assert [watching.store.history()[HERE].at(START_S + time_s) for time_s in (0, 140, 255, 300)] == [
        0.1,
        0.2,
        0.3,
        0.2,
    ]


def test_it_watches_until_it_is_stopped(tmp_path: Path) -> None:
    source = Recorded()
    watching = Monitor([source], PriceStore(tmp_path / "prices.db"), every_s=0.01)
    looks = []
    for look in watching.watch():
        looks.append(look)
        if len(looks) == 3:
            watching.stopped.set()
    assert len(looks) == 3


@pytest.mark.usefixtures("aws_credentials")
def test_it_watches_a_real_api(aws_server: str, tmp_path: Path) -> None:
    source = Ec2Prices(["us-east-1"], ["c3.xlarge"], aws_server)
    watching = Monitor([source], PriceStore(tmp_path / "p.db"))
    first, second = watching.look(), watching.look()
    assert first.changes > 0
    assert second.changes == 0
    assert all(market.instance_type == "c3.xlarge" for market in watching.store.quotes())


class Told:
    """A source of signals that tells what it is given, or fails."""

    def __init__(self, name: str, every_s: float = 0.0) -> None:
        self.name, self.every_s = name, every_s
        self.signals: list[Signal] = []
        self.asked_s: list[float] = []
        self.problem, self.whole = "", False

    def observe(self, _since_s: Mapping[str, float], now_s: float) -> Observation:
        self.asked_s.append(now_s - START_S)
        if self.problem:
            raise CloudError(self.problem)
        return Observation(signals=self.signals, whole=self.whole)


def capacity(time_s: float, value: float, market: Market = HERE) -> Signal:
    return Signal(START_S + time_s, SignalKind.CAPACITY, market, value)


def test_one_source_that_fails_is_told_and_asked_less_often_while_others_go_on(tmp_path: Path) -> None:
    good, bad = Told("good"), Told("bad")
    now = [START_S]
    watching = Monitor([bad, good], PriceStore(tmp_path / "p.db"), every_s=60.0, clock=lambda: now[0])
    bad.problem = "bad does not answer"
    for minute in range(20):
        now[0], good.signals = START_S + 60 * minute, [capacity(60 * minute, minute)]
        look = watching.look()
        assert look.signals == 1
        assert look.problem == ("bad does not answer" if "bad" in look.asked else "")
    # A minute later, two minutes, four, eight: it has failed once more each time.
    assert bad.asked_s == [0, 60, 180, 420, 900]
    assert len(good.asked_s) == 20
    bad.problem, now[0] = "", START_S + 1860
    assert watching.look().asked == ("bad", "good")
    # It was answered, so it is asked each time again.
    now[0] += 60
    assert watching.look().asked == ("bad", "good")


def test_it_waits_an_hour_at_most(tmp_path: Path) -> None:
    bad, now = Told("bad"), [START_S]
    bad.problem = "no"
    watching = Monitor([bad], PriceStore(tmp_path / "p.db"), every_s=60.0, clock=lambda: now[0])
    for minute in range(600):
        now[0] = START_S + 60 * minute
        watching.look()
    waits = np.diff(bad.asked_s)
    assert waits.max() == 3600
    assert sorted(waits) == waits.tolist()


def test_a_source_is_asked_no_more_often_than_it_wants(tmp_path: Path) -> None:
    slow, now = Told("slow", 600.0), [START_S]
    watching = Monitor([slow], PriceStore(tmp_path / "p.db"), every_s=60.0, clock=lambda: now[0])
    for minute in range(25):
        now[0] = START_S + 60 * minute
        watching.look()
    assert slow.asked_s == [0, 600, 1200]


def test_signals_are_stored_when_they_change_and_markets_left_out_have_no_capacity(tmp_path: Path) -> None:
    source, now, store = Told("vast"), [START_S], PriceStore(tmp_path / "p.db")
    watching = Monitor([source], store, clock=lambda: now[0])
    there = Market("aws", "us-east-1", "us-east-1b", "c3.xlarge")
    stored = []
    for minute, (signals, whole) in enumerate(
        [
            ([capacity(0, 2.0), capacity(0, 1.0, there)], True),
            ([capacity(60, 2.0), capacity(60, 3.0, there)], True),
            ([capacity(120, 2.0)], True),
            ([capacity(180, 2.0)], True),
            ([], False),
        ]
    ):
        now[0], source.signals, source.whole = START_S + 60 * minute, signals, whole
        stored.append(watching.look().signals)
    assert stored == [2, 1, 1, 0, 0]
    found = store.signals(SignalKind.CAPACITY)["vast"]
    assert found == [
        capacity(0, 2.0),
        capacity(0, 1.0, there),
        capacity(60, 3.0, there),
        capacity(120, 0.0, there),
    ]
    assert store.latest_signals() == [capacity(0, 2.0), capacity(120, 0.0, there)]
    assert store.looks_s() == {"vast": [START_S, START_S + 60, START_S + 120, START_S + 180]}


def test_two_sources_of_one_signal_are_kept_apart(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "p.db")
    for name, value in (("one", 1.0), ("two", 2.0), ("one", 1.0)):
        store.add_signals(name, [capacity(0, value)], looked_at=START_S)
    assert {name: [signal.value for signal in own] for name, own in store.signals().items()} == {
        "one": [1.0],
        "two": [2.0],
    }
    assert PriceStore(tmp_path / "none.db").signals() == {}


def test_a_store_from_before_there_were_signals_is_read_and_added_to(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "p.db")
    store.add(PRICES.to_frame(), looked_at=START_S + 300)
    with sqlite3.connect(store.path) as connection:
        connection.execute("DROP TABLE signals")
        connection.execute("DROP TABLE signal_looks")
    connection.close()
    assert store.signals() == {}
    assert store.latest_signals() == []
    assert store.history().end_s == START_S + 300
    assert store.add_signals("one", [capacity(0, 1.0)], looked_at=START_S + 900) == 1
    # What was asked last tells how far the record goes.
    assert store.history().end_s == START_S + 900


def test_signals_that_come_late_are_put_in_their_place(tmp_path: Path) -> None:
    store = PriceStore(tmp_path / "p.db")
    store.add_signals("gcp", [capacity(100, 1.0)], looked_at=START_S + 100)
    assert store.add_signals("gcp", [capacity(50, 3.0), capacity(100, 1.0)], looked_at=START_S + 200) == 1
    assert [signal.value for signal in store.signals()["gcp"]] == [3.0, 1.0]
