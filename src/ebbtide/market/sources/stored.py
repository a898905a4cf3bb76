"""The file of a price store: how it is opened, and the prices in it as a table of the price schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.base.input_files import existing_file
from ebbtide.errors import InputError
from ebbtide.market.markets import MARKET_FIELDS

if TYPE_CHECKING:
    import pandas as pd

# The first bytes of every SQLite file.
_MAGIC = b"SQLite format 3\x00"

VERSION = 1


def is_price_store(path: str | Path) -> bool:
    """Return whether a file is an SQLite file, as price stores are.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        with existing_file(path).open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", file=path) from None


@contextmanager
def connected(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A connection to a price store, which is closed at the end.

    Raises:
        InputError: The file is none that SQLite can use.
    """
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        yield connection
    except sqlite3.DatabaseError as error:
        raise InputError(f"cannot be used as a price store: {error}", file=path) from None
    finally:
        connection.close()


def check_version(path: str | Path) -> None:
    """Raise `InputError` for an SQLite file that is no price store of this version."""
    with connected(path) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise InputError(f"is no price store of version {VERSION}", file=path)


def stored_prices(path: str | Path) -> tuple[pd.DataFrame, float]:
    """All prices of a price store, and when a region or source was last polled, seconds since 1970.

    Raises:
        InputError: It is no price store of this version, or nothing is stored.
    """
    import pandas as pd

    if not Path(path).exists():
        raise InputError("nothing is stored there", file=path)
    check_version(path)
    key = ", ".join(MARKET_FIELDS)
    query = f"SELECT {key}, time_us, price_usd_per_hour FROM prices ORDER BY {key}, time_us"
    with connected(path) as connection:
        frame = pd.read_sql_query(query, connection)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        looks = [f"SELECT max(time_us) FROM {name}" for name in ("looked", "signal_looks") if name in tables]
        looked_us = [connection.execute(look).fetchone()[0] or 0 for look in looks]
    if frame.empty:
        raise InputError("nothing is stored there", file=path)
    frame.insert(0, "timestamp", pd.to_datetime(frame.pop("time_us"), unit="us", utc=True))
    return frame, max(looked_us, default=0) / 1e6
