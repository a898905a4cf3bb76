"""What a controller remembers, in SQLite: its state whole, or as it was before."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ebbtide.errors import InputError

# When, what, which lease, which job, in words.
Moment = tuple[float, str, int, int, str]

_TABLES = """
create table if not exists state (name text primary key, content text not null);
create table if not exists moments (time_s real, what text, lease_id integer, job_id integer, detail text);
"""
_WAIT_S = 10.0


class Journal:
    """One run's.

    Args:
        path: The file; made if it is not there.
        read_only: Nothing is made or changed: whoever only looks does not wait for the controller's writes.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        if not read_only:
            with closing(self._connected()) as database:
                database.executescript("pragma journal_mode = wal;" + _TABLES)

    def keep(self, states: Mapping[str, Any], moments: Sequence[Moment] = ()) -> None:
        """Write states, and what happened since the last time, all or nothing.

        Raises:
            sqlite3.OperationalError: It is locked by another process for long, or the disk is full.
        """
        with closing(self._connected()) as database, database:
            for name, content in states.items():
                database.execute("insert or replace into state values (?, ?)", (name, json.dumps(content)))
            database.executemany("insert into moments values (?, ?, ?, ?, ?)", moments)

    def state(self, name: str) -> Any:
        """As last kept; None: never.

        Raises:
            InputError: The file is no journal, or is locked by another process for long.
        """
        if self._read_only and not self._path.exists():
            return None
        try:
            with closing(self._connected()) as database:
                row = database.execute("select content from state where name = ?", (name,)).fetchone()
        except sqlite3.DatabaseError as error:
            if self._read_only and "no such table" in str(error):
                return None  # it is being made at this moment
            raise InputError(f"the run's journal cannot be read: {error}", file=self._path) from None
        return json.loads(row[0]) if row else None

    def moments(self) -> list[Moment]:
        """All that happened, in order."""
        with closing(self._connected()) as database:
            return list(database.execute("select * from moments order by rowid"))

    def _connected(self) -> sqlite3.Connection:
        if self._read_only:
            return sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)
        database = sqlite3.connect(self._path, timeout=_WAIT_S)
        # A commit is on disk before it returns.
        database.execute("pragma synchronous = full")
        return database
