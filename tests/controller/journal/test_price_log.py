"""Prices that a run's journal keeps: each change once, of the markets that it has to do with, whatever is written
when."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.markets import C3, R3, START_S, history, job
from tests.postgres import Places

from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.journal.price_log import PriceLog, PricePoint
from ebbtide.engine.engine import Engine
from ebbtide.market.billing import billing_preset
from ebbtide.policies.api.actions import Request
from ebbtide.policies.api.events import Wake
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.testing.scripted import Scripted

PRICES = history({C3: [(0, 0.1), (500, 0.2), (1500, 0.1), (3000, 0.15)], R3: [(0, 0.05)]})


def test_each_change_is_found_once(journal_place: Places) -> None:
    rule = billing_preset("gcp-spot")
    market = ReplayedMarket(PRICES, PRICES.start_s, rule)
    policy = Scripted({Wake.START: lambda _view, _event: [Request(C3, job=0)]}, frozenset({Wake.SAVED}))
    found: list[list[PricePoint]] = []
    looks = {"refused": 1}
    journal = Journal(journal_place("journal"))

    def keep(engine: Engine) -> None:
        log = logs.setdefault("log", PriceLog(engine))
        points = log.changes()
        if looks["refused"] and points:
            # The write fails: the same is found again.
            looks["refused"] = 0
            assert log.changes() == points
        journal.keep({}, prices=points)
        log.written()
        found.append(points)

    logs: dict[str, PriceLog] = {}
    work = job(4000, save_s=10, restore_s=20, interval_s=100)
    Engine(policy, [work], ReplayProvider(market), rule, record=True, keep=keep).run()
    points = [point for each in found for point in each if point[0] == str(C3)]
    expected = [(START_S + at, usd) for at, usd in ((0, 0.1), (500, 0.2), (1500, 0.1), (3000, 0.15))]
    assert points == [(str(C3), *one) for one in expected]
    assert journal.prices() == {str(C3): expected, str(R3): [(START_S, 0.05)]}
    # A controller that resumes the run finds all again, which changes nothing.
    journal.keep({}, prices=points)
    assert journal.prices()[str(C3)] == expected


def test_a_journal_from_before_has_no_prices(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("drop table prices")
    assert Journal(path, read_only=True).prices() == {}
