"""What a controller remembers between two starts, in SQLite: each state is written whole or not at all."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ebbtide._json import misfit
from ebbtide.errors import InputError
from ebbtide.live.changes import DECISIONS, NOTHING, Changes, Record, joined, split
from ebbtide.live.price_log import PricePoint
from ebbtide.live.settings import check_schema_version
from ebbtide.live.snapshots import Figures, RunSnapshot, migrated_run

# Market time in seconds, kind of event, lease id, job id, detail in words.
Moment = tuple[float, str, int, int, str]

# Counted up whenever what is kept changes in a way that an older Ebbtide would misread. In the file it is SQLite's
# `user_version`, which is 0 in journals from before it was written.
SCHEMA_VERSION = 2

_TABLES = """
create table if not exists state (name text primary key, content text not null);
create table if not exists moments (time_s real, what text, lease_id integer, job_id integer, detail text);
create table if not exists records (kind text, number integer, content text, primary key (kind, number));
create table if not exists prices (market text, time_s real, usd_per_hour real, primary key (market, time_s));
create table if not exists metrics (job_id integer, step integer, value real, primary key (job_id, step));
"""
_WAIT_S, _WRITE_WAIT_S = 10.0, 1.0


class Journal:
    """The journal of one run.

    An older schema version is migrated: in the file when it is opened for writing, else as it is read.

    Args:
        path: The SQLite file; it is made if it does not exist and `read_only` is false.
        read_only: Nothing is made or changed, so a reader never waits for the controller's writes.

    Raises:
        InputError: The file was written by a newer Ebbtide, or is no journal.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        if not read_only:
            with closing(self._connected()) as database:
                version = self._version(database)
                database.executescript("pragma journal_mode = wal;" + _TABLES)
                if version < SCHEMA_VERSION:
                    self._migrate(database)

    def keep(
        self,
        states: Mapping[str, Any],
        moments: Sequence[Moment] = (),
        changes: Changes = NOTHING,
        prices: Sequence[PricePoint] = (),
    ) -> None:
        """Write states, the events and prices since the last call and what has changed of the run, all or nothing.

        Raises:
            sqlite3.OperationalError: Another process has locked the file for long, or the disk is full.
        """
        # Whoever writes has something else to do meanwhile, and asks again.
        with closing(self._connected(_WRITE_WAIT_S)) as database, database:
            for name, content in states.items():
                database.execute("insert or replace into state values (?, ?)", (name, json.dumps(content)))
            database.executemany("insert into moments values (?, ?, ?, ?, ?)", moments)
            database.executemany("insert or replace into prices values (?, ?, ?)", prices)
            _write(database, changes)

    def state(self, name: str) -> Any:
        """A state as it was last kept; None: it was never kept.

        Raises:
            InputError: The file is no journal, was written by a newer Ebbtide, or is locked for long.
        """
        if self._read_only and not self._path.exists():
            return None
        try:
            with closing(self._connected()) as database:
                self._version(database)
                row = database.execute("select content from state where name = ?", (name,)).fetchone()
        except sqlite3.DatabaseError as error:
            if self._read_only and "no such table" in str(error):
                return None  # it is being made at this moment
            raise InputError(f"the run's journal cannot be read: {error}", file=self._path) from None
        return json.loads(row[0]) if row else None

    def run(self, *, decisions: bool = True) -> RunSnapshot | None:
        """The run as it was last kept, in the present versions of its parts; None: it was never kept.

        Args:
            decisions: Whether its decisions are read as well, which of a long run are most of it.

        Raises:
            InputError: The file is no journal, is locked for long, or a newer Ebbtide wrote it or a part of it.
        """
        if self._read_only and not self._path.exists():
            return None
        try:
            with closing(self._connected()) as database:
                self._version(database)
                # Both as of one moment.
                database.execute("begin")
                records = database.execute(
                    "select kind, number, content from records where ? or kind != ? order by rowid",
                    (decisions, DECISIONS),
                )
                found = [Record(kind, number, json.loads(content)) for kind, number, content in records]
                metrics = database.execute("select job_id, step, value from metrics order by rowid").fetchall()
        except sqlite3.DatabaseError as error:
            if "no such table" not in str(error):
                raise InputError(f"the run's journal cannot be read: {error}", file=self._path) from None
            found, metrics = [], []
        except ValueError as error:
            raise self._damaged(error) from None
        try:
            kept: Any = joined(found, metrics)
            if kept is None:
                kept = self.state("run")  # as older versions wrote it
            return None if kept is None else self._migrated_run(kept)
        except (LookupError, TypeError, AttributeError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"the run's journal is damaged: {misfit(error)}", file=self._path)

    def figures(self) -> Figures | None:
        """What the run had spent when that was last kept; None: it was never kept.

        Raises:
            InputError: The file is no journal, was written by a newer Ebbtide, or is locked for long.
        """
        found: Figures | None = self.state("figures")
        return found

    def moments(self) -> list[Moment]:
        """All events of the run, in order."""
        with closing(self._connected()) as database:
            return list(database.execute("select * from moments order by rowid"))

    def prices(self) -> dict[str, list[tuple[float, float]]]:
        """Price changes of the markets that the run has to do with: pairs of time and USD per hour, by market."""
        found: dict[str, list[tuple[float, float]]] = {}
        try:
            with closing(self._connected()) as database:
                for market, time_s, usd in database.execute("select * from prices order by market, time_s"):
                    found.setdefault(market, []).append((time_s, usd))
        except sqlite3.OperationalError:
            return {}  # it is from before prices were kept, or is being made
        return found

    def _migrated_run(self, kept: dict[str, Any]) -> RunSnapshot:
        try:
            return migrated_run(kept)
        except InputError as error:
            raise InputError(error.problem, file=self._path) from None

    def _version(self, database: sqlite3.Connection) -> int:
        try:
            version = int(database.execute("pragma user_version").fetchone()[0])
        except sqlite3.DatabaseError as error:
            raise InputError(f"the run's journal cannot be read: {error}", file=self._path) from None
        check_schema_version(version, SCHEMA_VERSION, self._path)
        return version

    def _migrate(self, database: sqlite3.Connection) -> None:
        """Write every state of an older version as this one has it, all or nothing."""
        with database:
            database.execute("begin immediate")
            self._version(database)
            row = database.execute("select content from state where name = 'run'").fetchone()
            if row:
                _write(database, split(self._migrated_run(json.loads(row[0]))))
                database.execute("delete from state where name = 'run'")
            database.execute(f"pragma user_version = {SCHEMA_VERSION}")

    def _connected(self, wait_s: float = _WAIT_S) -> sqlite3.Connection:
        if self._read_only:
            return sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True, timeout=wait_s)
        database = sqlite3.connect(self._path, timeout=wait_s)
        # A commit is on disk before it returns.
        database.execute("pragma synchronous = full")
        return database


def _write(database: sqlite3.Connection, changes: Changes) -> None:
    """Write what has changed of a run."""
    database.executemany(
        "insert or replace into records values (?, ?, ?)",
        ((record.kind, record.number, json.dumps(record.content)) for record in changes.records),
    )
    database.executemany("insert or replace into metrics values (?, ?, ?)", changes.metrics)
