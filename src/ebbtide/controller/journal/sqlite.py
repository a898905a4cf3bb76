"""A journal in a SQLite file in the run's folder; each write is there whole or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from ebbtide.base.files import private
from ebbtide.controller.journal.database import METRIC_ENDS, METRICS, TABLES, JournalTable
from ebbtide.errors import JournalError, UnusableJournalError

_WAIT_S, _WRITE_WAIT_S = 10.0, 1.0


class SqliteDatabase:
    """The journal of one run in a file.

    Args:
        path: The file; it is made if it does not exist and `read_only` is false.
        read_only: Nothing is made or changed, so a reader never waits for the controller's writes.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only

    @property
    def place(self) -> str:
        """Path of the file."""
        return str(self._path)

    def make(self) -> None:
        """Create the file, and missing tables in it."""
        with _told(), closing(self._connected()) as connection:
            connection.executescript("pragma journal_mode = wal;" + "".join(map(_created, TABLES)))

    @contextmanager
    def reading(self) -> Iterator[SqliteSession | None]:
        """A transaction that changes nothing; None: there is no file."""
        if self._read_only and not self._path.exists():
            yield None
            return
        with _told(), closing(self._connected()) as connection:
            connection.execute("begin")
            yield SqliteSession(connection)

    @contextmanager
    def writing(self, *, patient: bool = False) -> Iterator[SqliteSession]:
        """A transaction whose changes are on disk when it has ended."""
        # A controller has something else to do meanwhile, and retries.
        with _told(), closing(self._connected(_WAIT_S if patient else _WRITE_WAIT_S)) as connection:
            connection.execute("begin immediate")
            yield SqliteSession(connection)
            # Without a commit, closing the connection rolls everything back.
            connection.execute("commit")

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Nothing to do: opening a file is cheap."""
        yield

    @contextmanager
    def controlled(self) -> Iterator[None]:
        """Nothing to do: the lock of the run's folder keeps other controllers from the file."""
        yield

    def is_controlled(self) -> bool:
        """Always false: only the lock of the run's folder tells."""
        return False

    def set_aside(self) -> str:
        """Rename the file, whatever is in it, to make room for a new one; returns its new name; empty: none."""
        named = (f"{self._path.name}.lost-{number}" for number in count(1))
        aside = next(name for name in named if not self._path.with_name(name).exists())
        for end in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                self._path.with_name(f"{self._path.name}{end}").rename(self._path.with_name(f"{aside}{end}"))
        return aside if self._path.with_name(aside).exists() else ""

    def stamp(self) -> tuple[int, ...]:
        """Time of the last write and size of the file, and of its write-ahead log where there is one."""
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        found = [one.stat() for one in files if one.exists()]
        return tuple(value for one in found for value in (one.st_mtime_ns, one.st_size))

    def _connected(self, wait_s: float = _WAIT_S) -> sqlite3.Connection:
        if self._read_only:
            address = f"{self._path.resolve().as_uri()}?mode=ro"
            return sqlite3.connect(address, uri=True, timeout=wait_s, isolation_level=None)
        # Output of programs is private to the file's owner; SQLite gives its other files the same mode.
        with suppress(OSError):
            os.close(private(str(self._path), os.O_CREAT | os.O_RDWR))
        connection = sqlite3.connect(self._path, timeout=wait_s, isolation_level=None)
        # A commit has to be on disk before it returns.
        connection.execute("pragma synchronous = full")
        return connection


class SqliteSession:
    """A transaction on the file.

    Args:
        connection: The connection on which it is open.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def version(self) -> int:
        """SQLite's `user_version`, which is 0 in journals from before it was written."""
        return int(self._connection.execute("pragma user_version").fetchone()[0])

    def set_version(self, version: int) -> None:
        """Write the schema version down."""
        self._connection.execute(f"pragma user_version = {version}")

    def put(self, table: JournalTable, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, replacing those with the same key; a replaced row moves to the end of the order."""
        values = ", ".join("?" for _ in table.columns)
        self._connection.executemany(f"insert or replace into {table.name} values ({values})", rows)

    def rows(self, table: JournalTable, condition: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows in the order in which they were written; none if there is no such table yet."""
        where = f" where {condition}" if condition else ""
        return self._rows(f"select {', '.join(table.names)} from {table.name}{where} order by rowid", values)

    def metric_ends(self) -> list[tuple[Any, ...]]:
        """The rows of `METRICS` with each job's last step, lowest value and highest value, in order."""
        return self._rows(METRIC_ENDS.format(metrics=METRICS.name, order="here.rowid"), ())

    def _rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []  # an older Ebbtide made the file, or it is being made at this moment
            raise

    def remove(self, table: JournalTable, condition: str, values: Sequence[Any]) -> None:
        """Remove the rows that meet a condition."""
        self._connection.execute(f"delete from {table.name} where {condition}", values)


def _created(table: JournalTable) -> str:
    columns = [f"{name} {kind}" for name, kind in table.columns]
    key = [f"primary key ({', '.join(table.key)})"] if table.key else []
    return f"create table if not exists {table.name} ({', '.join(columns + key)});"


@contextmanager
def _told() -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise JournalError(str(error)) from None
    except sqlite3.Error as error:
        raise UnusableJournalError(str(error)) from None
