"""A growing record of prices and signals: one file that a monitor adds to while others read (DeepSpotCloud III-D).

SQLite in write-ahead mode: an addition is atomic, and readers see the record as it was before or after it. A price
or signal is stored only when it differs from the one before. The times when regions and sources were polled are
stored too, because the last price or signal holds until then. Files from before there were signals can be read and
added to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.base.utc import Time, to_epoch_s
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.market.signals import Signal, SignalKind
from ebbtide.market.sources.stored import VERSION, check_version, connected, stored_prices
from ebbtide.market.sources.validation import cleaned

if TYPE_CHECKING:
    import pandas as pd

_KEY = ", ".join(MARKET_FIELDS)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS prices (
    {", ".join(f"{name} TEXT NOT NULL" for name in MARKET_FIELDS)},
    time_us INTEGER NOT NULL, price_usd_per_hour REAL NOT NULL, PRIMARY KEY ({_KEY}, time_us)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS looked (
    cloud TEXT NOT NULL, region TEXT NOT NULL, time_us INTEGER NOT NULL, PRIMARY KEY (cloud, region)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS signals (
    source TEXT NOT NULL, kind TEXT NOT NULL, {", ".join(f"{name} TEXT NOT NULL" for name in MARKET_FIELDS)},
    time_us INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (source, kind, {_KEY}, time_us)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS signal_looks (
    source TEXT NOT NULL, time_us INTEGER NOT NULL, PRIMARY KEY (source, time_us)
) WITHOUT ROWID;
"""
_SAME_MARKET = " AND ".join(f"{name} = ?" for name in MARKET_FIELDS)


class PriceStore:
    """Prices in an SQLite file.

    Args:
        path: Path of the file, created by the first addition.

    Raises:
        InputError: The file exists and is not a price store of this version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists():
            check_version(self.path)

    def add(
        self, frame: pd.DataFrame, *, looked_at: Time | None = None, places: Mapping[str, str] | None = None
    ) -> int:
        """Add the prices that differ from the one before them.

        Args:
            frame: Prices in the price schema, in any order; rows already stored change nothing.
            looked_at: Time up to which the frame is complete.
            places: Region to cloud, for the regions polled; by default those of the rows.

        Returns:
            Number of prices stored.

        Raises:
            InputError: A cell is invalid.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        added = 0
        with connected(self.path) as connection, connection:
            connection.executescript(f"{_SCHEMA} PRAGMA user_version = {VERSION};")
            if len(frame):
                frame, _ = cleaned(frame, self.path)
                for market, series in PriceHistory.from_frame(frame).items():
                    added += _add(connection, market, series)
            if looked_at is not None:
                where = dict(places or {})
                if len(frame) and places is None:
                    where = dict(zip(frame["region"].astype(str), frame["cloud"].astype(str), strict=True))
                connection.executemany(
                    "INSERT INTO looked VALUES (?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET time_us = max(time_us, excluded.time_us)",
                    [(cloud, region, _us(to_epoch_s(looked_at))) for region, cloud in where.items()],
                )
        return added

    def add_signals(self, source: str, signals: Iterable[Signal], *, looked_at: Time, whole: bool = False) -> int:
        """Add the signals that differ from the one before them.

        Args:
            source: Name of the source that told them.
            signals: Signals in any order.
            looked_at: When the source was asked.
            whole: Whether markets of the source without a capacity among the signals have none.

        Returns:
            Number of signals stored.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        looked_s = to_epoch_s(looked_at)
        ordered = sorted(signals, key=lambda signal: signal.time_s)
        added = 0
        with connected(self.path) as connection, connection:
            connection.executescript(f"{_SCHEMA} PRAGMA user_version = {VERSION};")
            if whole:
                told = {signal.market for signal in ordered if signal.kind is SignalKind.CAPACITY}
                known = connection.execute(
                    f"SELECT DISTINCT {_KEY} FROM signals WHERE source = ? AND kind = ?",
                    (source, SignalKind.CAPACITY),
                )
                gone = sorted({Market(*row) for row in known} - told)
                ordered += [Signal(looked_s, SignalKind.CAPACITY, market, 0.0) for market in gone]
            for signal in ordered:
                added += _add_signal(connection, source, signal)
            connection.execute("INSERT OR IGNORE INTO signal_looks VALUES (?, ?)", (source, _us(looked_s)))
        return added

    def signals(self, kind: SignalKind | None = None) -> dict[str, list[Signal]]:
        """All stored signals by the source that told them, in order of time within each market.

        Args:
            kind: Only signals of this kind; None: of all kinds.
        """
        where, values = ("WHERE kind = ?", (kind,)) if kind is not None else ("", ())
        order = f"source, kind, {_KEY}, time_us"
        query = f"SELECT source, kind, time_us, value, {_KEY} FROM signals {where} ORDER BY {order}"
        found: dict[str, list[Signal]] = {}
        for source, name, time_us, value, *market in self._rows("signals", query, values):
            found.setdefault(source, []).append(Signal(time_us / 1e6, SignalKind(name), Market(*market), value))
        return found

    def latest_signals(self) -> list[Signal]:
        """The newest signal of every source, kind and market, in order of time."""
        newest = {
            (source, signal.kind, signal.market): signal
            for source, signals in self.signals().items()
            for signal in signals
        }
        return sorted(newest.values(), key=lambda signal: signal.time_s)

    def looks_s(self) -> dict[str, list[float]]:
        """Times at which each source of signals was asked, seconds since 1970, in order."""
        found: dict[str, list[float]] = {}
        for source, time_us in self._rows(
            "signal_looks", "SELECT source, time_us FROM signal_looks ORDER BY 1, 2"
        ):
            found.setdefault(source, []).append(time_us / 1e6)
        return found

    def _rows(self, table: str, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Rows that a query finds; none where the file, or the table in it, does not exist yet."""
        if not self.path.exists():
            return []
        with connected(self.path) as connection:
            named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            if connection.execute(named, (table,)).fetchone() is None:
                return []
            return connection.execute(query, values).fetchall()

    def newest_s(self) -> dict[str, float]:
        """By region, when it was last polled, seconds since 1970."""
        if not self.path.exists():
            return {}
        with connected(self.path) as connection:
            rows = connection.execute("SELECT region, max(time_us) FROM looked GROUP BY region").fetchall()
        return {region: time_us / 1e6 for region, time_us in rows}

    def quotes(self) -> dict[Market, float]:
        """The latest price of every market, USD per hour."""
        if not self.path.exists():
            return {}
        query = f"SELECT {_KEY}, max(time_us), price_usd_per_hour FROM prices GROUP BY {_KEY}"
        with connected(self.path) as connection:
            return {Market(*row[:-2]): row[-1] for row in connection.execute(query)}

    def history(self) -> PriceHistory:
        """All stored prices.

        Raises:
            InputError: Nothing is stored.
        """
        frame, looked_s = stored_prices(self.path)
        found = PriceHistory.from_frame(frame)
        return PriceHistory(found, end_s=max(found.end_s, looked_s))


def _add(connection: sqlite3.Connection, market: Market, series: PriceSeries) -> int:
    """Store the changes of one market and return how many; rows may be older than stored ones."""
    key = tuple(getattr(market, name) for name in MARKET_FIELDS)
    where = _SAME_MARKET
    first_us = _us(float(series.times_s[0]))
    held = connection.execute(
        f"SELECT time_us, price_usd_per_hour FROM prices WHERE {where} AND time_us >= "
        f"coalesce((SELECT max(time_us) FROM prices WHERE {where} AND time_us <= ?), 0) ORDER BY time_us",
        (*key, *key, first_us),
    ).fetchall()
    merged = dict(held) | {_us(time_s): price for time_s, price in zip(series.times_s, series.prices, strict=True)}
    times = np.array(sorted(merged))
    prices = np.array([merged[time_us] for time_us in times.tolist()])
    changed = np.append(True, prices[1:] != prices[:-1])
    kept = {int(time_us): float(price) for time_us, price in zip(times[changed], prices[changed], strict=True)}
    gone = [(*key, time_us) for time_us, _ in held if time_us not in kept]
    connection.executemany(f"DELETE FROM prices WHERE {where} AND time_us = ?", gone)
    new = [(*key, time_us, price) for time_us, price in kept.items() if dict(held).get(time_us) != price]
    marks = ", ".join("?" * (len(MARKET_FIELDS) + 2))
    connection.executemany(f"INSERT OR REPLACE INTO prices VALUES ({marks})", new)
    return len(new)


def _add_signal(connection: sqlite3.Connection, source: str, signal: Signal) -> int:
    """Store a signal unless it is as the one before it said; returns how many were stored."""
    key = (source, signal.kind, *(getattr(signal.market, name) for name in MARKET_FIELDS))
    before = connection.execute(
        f"SELECT value FROM signals WHERE source = ? AND kind = ? AND {_SAME_MARKET} AND time_us <= ? "
        "ORDER BY time_us DESC LIMIT 1",
        (*key, _us(signal.time_s)),
    ).fetchone()
    if before is not None and before[0] == signal.value:
        return 0
    marks = ", ".join("?" * (len(key) + 2))
    connection.execute(
        f"INSERT OR REPLACE INTO signals VALUES ({marks})", (*key, _us(signal.time_s), signal.value)
    )
    return 1


def _us(time_s: float) -> int:
    return round(time_s * 1e6)
