"""A growing record of prices: one file that a monitor adds to while others read (DeepSpotCloud III-D, IV-B).

SQLite in write-ahead mode: an addition is atomic, and readers see the record as it was before or after it. A price
is stored only when it differs from the one before. The time when a region was last polled is stored too, because
the last price holds until then.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ebbtide._input_files import existing_file
from ebbtide._utc import Time, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.validation import cleaned

# The first bytes of every SQLite file.
_MAGIC = b"SQLite format 3\x00"

_VERSION = 1
_KEY = ", ".join(MARKET_FIELDS)
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS prices (
    {", ".join(f"{name} TEXT NOT NULL" for name in MARKET_FIELDS)},
    time_us INTEGER NOT NULL, price_usd_per_hour REAL NOT NULL, PRIMARY KEY ({_KEY}, time_us)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS looked (
    cloud TEXT NOT NULL, region TEXT NOT NULL, time_us INTEGER NOT NULL, PRIMARY KEY (cloud, region)
) WITHOUT ROWID;
"""


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
            with self._connected() as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                raise InputError(f"is no price store of version {_VERSION}", file=self.path)

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
        with self._connected() as connection, connection:
            connection.executescript(f"{_SCHEMA} PRAGMA user_version = {_VERSION};")
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

    def newest_s(self) -> dict[str, float]:
        """By region, when it was last polled, seconds since 1970."""
        if not self.path.exists():
            return {}
        with self._connected() as connection:
            rows = connection.execute("SELECT region, max(time_us) FROM looked GROUP BY region").fetchall()
        return {region: time_us / 1e6 for region, time_us in rows}

    def quotes(self) -> dict[Market, float]:
        """The latest price of every market, USD per hour."""
        if not self.path.exists():
            return {}
        query = f"SELECT {_KEY}, max(time_us), price_usd_per_hour FROM prices GROUP BY {_KEY}"
        with self._connected() as connection:
            return {Market(*row[:-2]): row[-1] for row in connection.execute(query)}

    def history(self) -> PriceHistory:
        """All stored prices.

        Raises:
            InputError: Nothing is stored.
        """
        if not self.path.exists():
            raise InputError("nothing is stored there", file=self.path)
        query = f"SELECT {_KEY}, time_us, price_usd_per_hour FROM prices ORDER BY {_KEY}, time_us"
        with self._connected() as connection:
            frame = pd.read_sql_query(query, connection)
        if frame.empty:
            raise InputError("nothing is stored there", file=self.path)
        frame.insert(0, "timestamp", pd.to_datetime(frame.pop("time_us"), unit="us", utc=True))
        found = PriceHistory.from_frame(frame)
        return PriceHistory(found, end_s=max(found.end_s, *self.newest_s().values(), found.end_s))

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30.0)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            yield connection
        except sqlite3.DatabaseError as error:
            raise InputError(f"cannot be used as a price store: {error}", file=self.path) from None
        finally:
            connection.close()


def is_price_store(path: str | Path) -> bool:
    """Whether a file is an SQLite file, as price stores are.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        with existing_file(path).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", file=path) from None


def _add(connection: sqlite3.Connection, market: Market, series: PriceSeries) -> int:
    """Store the changes of one market and return how many; rows may be older than stored ones."""
    key = tuple(getattr(market, name) for name in MARKET_FIELDS)
    where = " AND ".join(f"{name} = ?" for name in MARKET_FIELDS)
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


def _us(time_s: float) -> int:
    return round(time_s * 1e6)


# From {region: time up to which prices are known, seconds since 1970} to newer prices, as a price-schema frame.
Source = Callable[[Mapping[str, float]], pd.DataFrame]


@dataclass(frozen=True)
class Look:
    """The result of one poll.

    Attributes:
        time_s: When the source was polled, seconds since 1970.
        changes: Number of changed prices stored.
        problem: Why the poll failed, in words; empty where it succeeded.
    """

    time_s: float
    changes: int
    problem: str = ""


@dataclass(frozen=True)
class PriceMonitor:
    """Polls a source and stores what changed; a failed poll is reported, and the next one fetches what it missed.

    Attributes:
        source: Fetches prices newer than a time by region.
        store: Where the prices are stored.
        places: Region to cloud, for every region polled.
        every_s: Time between two polls, seconds.
        overlap_s: How much of the known time to fetch again, seconds: clouds publish some prices minutes late.
        clock: Gives the present time, seconds since 1970.
        stopped: Event that ends `watch` when it is set.
    """

    source: Source
    store: PriceStore
    places: Mapping[str, str]
    every_s: float = 60.0
    overlap_s: float = 900.0
    clock: Callable[[], float] = time.time
    stopped: threading.Event = field(default_factory=threading.Event)

    def look(self) -> Look:
        """Poll once."""
        now_s = self.clock()
        try:
            since_s = {region: known_s - self.overlap_s for region, known_s in self.store.newest_s().items()}
            frame = self.source(since_s)
        except InputError as error:
            return Look(now_s, 0, str(error))
        return Look(now_s, self.store.add(frame, looked_at=now_s, places=self.places))

    def watch(self) -> Iterator[Look]:
        """Poll until `stopped` is set, yielding the result of each poll."""
        while not self.stopped.is_set():
            began_s = self.clock()
            yield self.look()
            self.stopped.wait(max(began_s + self.every_s - self.clock(), 0.0))
