"""Journals in a Postgres database that many runs share; each row has the id of its run.

A controller keeps one session and holds its run's lock in it, so that other hosts see the controller and a second
one is refused. A session may be lost while its controller lives, and the lock with it. So each controller also has
a number, and a write by a controller with an older number is refused: no two controllers mix their states,
whatever happens to sessions.

Every wait for an answer has a time limit (`postgres_connection`): a network that hangs counts as a server that is
away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.pq import TransactionStatus

from ebbtide.clouds.settings import check_schema_version
from ebbtide.controller.journal import postgres_connection
from ebbtide.controller.journal.address import PostgresPlace
from ebbtide.controller.journal.database import METRIC_ENDS, METRICS, TABLES, JournalTable
from ebbtide.controller.journal.postgres_connection import answering, within
from ebbtide.controller.leadership import SupersededError
from ebbtide.errors import InputError, JournalWentBackError, UnusableJournalError

# Version of the tables, which all runs share; each run's content has its own. Increased whenever an older Ebbtide
# would misread the tables, or write what a newer one misreads.
LAYOUT_VERSION = 1

# Seconds that a patient transaction waits for other writers.
_PATIENT_LOCK_S = 10.0
# The session of a killed process ends a moment later: seconds to wait for that, and between tries.
_HELD_FOR_S, _LOOK_AGAIN_S = 2.0, 0.1
# First key of our advisory locks, which sets them apart from other locks in the database.
_LOCKS = 0x45626274

# Errors while nobody has created the tables yet.
_NO_TABLES = (errors.UndefinedTable, errors.InvalidSchemaName)

_LOST = ", or that failed over to an empty one; `ebbtide resume RUN --from-storage` goes on with a new journal"

_MADE_ONCE = "select pg_advisory_xact_lock(%s, 0)"
_RUNS = """
create table if not exists ebbtide.runs (
    run text primary key,
    number integer generated always as identity unique,
    owner text not null default '',
    version integer not null default 0,
    controller integer not null default 0,
    writes bigint not null default 0
)
"""
_IS_CONTROLLED = """
select exists (
    select from pg_locks join ebbtide.runs on objid::bigint = number
    where run = %s and locktype = 'advisory' and classid::bigint = %s and objsubid = 2 and granted
    and database = (select oid from pg_database where datname = current_database())
)
"""


class _OlderCopyError(Exception):
    """The database has lost what this controller wrote."""


class PostgresDatabase:
    """The journal of one run in a database.

    Args:
        place: The database, and the id of the run.
    """

    def __init__(self, place: PostgresPlace) -> None:
        self._place, self._run = place, place.run
        # The connection kept for the next transaction, and whether to keep one.
        self._kept: psycopg.Connection | None = None
        self._keeps = False
        # For a controller: its number, the number of its run's lock, and whether its session holds the lock.
        self._is_controlling = False
        self._controller: int | None = None
        self._lock, self._has_lock = 0, False
        # Number of the run's events in the database; None: not known yet.
        self._events: int | None = None
        # For a controller: the run's count of writes after its own last write; None: it has written nothing.
        self._writes: int | None = None

    @property
    def place(self) -> str:
        """The database, without what only a connection needs."""
        return str(self._place)

    def make(self) -> None:
        """Create missing tables, and the row of the run.

        Raises:
            InputError: A newer Ebbtide made them.
        """
        with self._transaction() as connection:
            if self._layout(connection) is None:
                # Two processes that create the tables at once would fail.
                connection.execute(_MADE_ONCE, (_LOCKS,))
                for statement in _tables():
                    connection.execute(statement.encode())
            if self._run:
                connection.execute(
                    "insert into ebbtide.runs (run) values (%s) on conflict (run) do nothing", (self._run,)
                )

    def reserve(self, owner: str) -> None:
        """Take the id of a new run.

        Args:
            owner: Identifies the folder of the run, and copies of it.

        Raises:
            InputError: The database has another run with that id.
        """
        self.make()
        with self._transaction() as connection:
            found = connection.execute(
                "update ebbtide.runs set owner = %s where run = %s "
                "and (owner = %s or (owner = '' and controller = 0 and writes = 0)) returning run",
                (owner, self._run, owner),
            ).fetchone()
        if found is None:
            raise InputError(f"{self.place} has another run {self._run}; give this one another name", field="name")

    @contextmanager
    def reading(self) -> Iterator[PostgresSession | None]:
        """A transaction that changes nothing; None: there is no such run."""
        with self._transaction(reads=True) as connection:
            row = self._row(connection, "version")
            yield None if row is None else PostgresSession(connection, self._run, row[0])

    @contextmanager
    def writing(self, *, patient: bool = False) -> Iterator[PostgresSession]:
        """A transaction whose changes are kept at its end, all or nothing.

        Raises:
            SupersededError: Another controller has taken the run over.
        """
        try:
            with self._transaction() as connection:
                if patient:
                    connection.execute(f"set local lock_timeout = '{_PATIENT_LOCK_S:g}s'".encode())
                row = connection.execute(
                    "update ebbtide.runs set writes = writes + 1 where run = %s "
                    "returning version, controller, writes",
                    (self._run,),
                ).fetchone()
                if row is None:
                    raise UnusableJournalError(f"run {self._run} was removed from {self.place}{_LOST}")
                if self._writes is not None and row[2] <= self._writes and row[1] <= (self._controller or 0):
                    raise _OlderCopyError
                if self._controller not in (None, row[1]):
                    raise SupersededError("another controller has taken this run over; this one ends")
                session = PostgresSession(connection, self._run, row[0], self._events)
                yield session
                if self._is_controlling:
                    # The reply to the commit may be lost. Then the same events are written again, in the same
                    # places.
                    self._events = session.first_event
        except _OlderCopyError:
            lost = self._go_on_with_older_copy()
            raise JournalWentBackError(
                f"{self.place} has lost what was written last: it failed over to an older copy", lost
            ) from None
        if self._is_controlling:
            self._events, self._writes = session.events, row[2]

    def _go_on_with_older_copy(self) -> int:
        """Become the run's controller in the older copy; returns how many of the last events it has lost."""
        with self._transaction() as connection:
            found = connection.execute(
                "select coalesce(max(place), 0) from ebbtide.moments where run = %s", (self._run,)
            ).fetchone()
            connection.execute(
                "update ebbtide.runs set controller = %s, writes = %s where run = %s",
                (self._controller, self._writes, self._run),
            )
        before, self._events = self._events, int(found[0]) if found else 0
        return max((before or 0) - self._events, 0)

    def set_aside(self) -> str:
        """Move the run's rows to another id, so that it begins anew; returns that id."""
        self.make()
        with self._transaction() as connection:
            for number in count(1):
                other = f"{self._run}~lost-{number}"
                if connection.execute(
                    "insert into ebbtide.runs (run, version) select %s, version from ebbtide.runs where run = %s "
                    "on conflict do nothing returning run",
                    (other, self._run),
                ).fetchone():
                    break
            for table in TABLES:
                connection.execute(
                    f"update ebbtide.{table.name} set run = %s where run = %s".encode(), (other, self._run)
                )
        return other

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Use one connection for everything inside the `with` block."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            self._drop()

    @contextmanager
    def controlled(self) -> Iterator[None]:
        """Hold the run's lock in a session of its own, and be the controller with the newest number.

        Raises:
            InputError: Another controller holds the lock.
        """
        self._keeps = self._is_controlling = True
        self._events = self._writes = None
        try:
            until_s = time.monotonic() + _HELD_FOR_S
            while not self._takes_lock():
                if time.monotonic() > until_s:
                    raise InputError(
                        f"run {self._run} has a controller already, on another host or by another copy of its "
                        f"folder, says {self.place}; `ebbtide stop` there ends it"
                    )
                time.sleep(_LOOK_AGAIN_S)
            with self._transaction() as connection:
                row = connection.execute(
                    "update ebbtide.runs set controller = controller + 1 where run = %s returning controller",
                    (self._run,),
                ).fetchone()
            assert row is not None
            self._controller = int(row[0])
            yield
        finally:
            self._keeps = self._is_controlling = False
            self._controller = None
            self._drop()

    def is_controlled(self) -> bool:
        """Return whether a controller holds the run's lock, on any host."""
        with self._transaction(reads=True) as connection:
            try:
                row = connection.execute(_IS_CONTROLLED, (self._run, _LOCKS)).fetchone()
            except _NO_TABLES:
                return False
        return bool(row and row[0])

    def stamp(self) -> tuple[int, ...]:
        """Number of controllers that the run has had, and number of its writes; empty: there is no such run."""
        with self._transaction(reads=True) as connection:
            row = self._row(connection, "controller, writes")
        return row or ()

    def _takes_lock(self) -> bool:
        with self._transaction() as connection:
            row = connection.execute("select number from ebbtide.runs where run = %s", (self._run,)).fetchone()
            assert row is not None
            self._lock = int(row[0])
            self._has_lock = _locked(connection, self._lock)
        return self._has_lock

    def _row(self, connection: psycopg.Connection, columns: str) -> tuple[Any, ...] | None:
        """Columns of the run's row; None: there is no such run.

        Raises:
            InputError: A newer Ebbtide made the tables.
        """
        query = (
            f"select layout, {columns} from (select max(version) as layout from ebbtide.layout) as known "
            "left join ebbtide.runs on run = %s"
        )
        try:
            found = connection.execute(query.encode(), (self._run,)).fetchone()
        except _NO_TABLES:
            return None
        assert found is not None
        check_schema_version(found[0], LAYOUT_VERSION, self.place)
        return None if found[1] is None else tuple(found[1:])

    def _layout(self, connection: psycopg.Connection) -> int | None:
        """The version of the tables; None: there are none.

        Raises:
            InputError: A newer Ebbtide made them.
        """
        row = connection.execute("select to_regclass('ebbtide.layout') is not null").fetchone()
        if not (row and row[0]):
            return None
        found = connection.execute("select max(version) from ebbtide.layout").fetchone()
        version: Any = found[0] if found else None
        check_schema_version(version, LAYOUT_VERSION, self.place)
        return int(version)

    @contextmanager
    def _transaction(self, *, reads: bool = False) -> Iterator[psycopg.Connection]:
        """A transaction, in the session of the controller or in a short one."""
        with answering(self._place):
            connection = self._kept or postgres_connection.connected(self._place, asks_always=self._is_controlling)
            if self._keeps:
                self._kept = connection
            try:
                with within(connection, postgres_connection.ANSWER_S):
                    if self._controller is not None and not self._has_lock:
                        # Our own earlier session may still hold the lock. Only the number counts.
                        self._has_lock = _locked(connection, self._lock)
                    connection.isolation_level = IsolationLevel.REPEATABLE_READ if reads else None
                    connection.read_only = reads
                    with connection.transaction():
                        yield connection
            finally:
                if connection is not self._kept:
                    connection.close()
                elif connection.info.transaction_status is not TransactionStatus.IDLE:
                    # The connection is lost, or in the middle of a transaction that was broken off.
                    self._drop()

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept, self._has_lock = None, False


class PostgresSession:
    """A transaction on the rows of one run.

    Attributes:
        first_event: Number of events before this transaction; None: not known.
        events: Number of events with those that it added; None: not known, and it added none.
    """

    def __init__(self, connection: psycopg.Connection, run: str, version: int, events: int | None = None) -> None:
        self._connection, self._run, self._version = connection, run, version
        self.first_event, self.events = events, events

    def version(self) -> int:
        """The schema version of the run's journal; 0: it is new."""
        return self._version

    def set_version(self, version: int) -> None:
        """Write the schema version down."""
        self._connection.execute("update ebbtide.runs set version = %s where run = %s", (version, self._run))

    def put(self, table: JournalTable, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, replacing those with the same key; a replaced row moves to the end of the order."""
        columns, key = ("run", *table.names), ("run", *table.key)
        if not table.key:
            columns, key = (*columns, "place"), ("run", "place")
            rows = self._placed(table, list(rows))
        replaced = [*(name for name in columns if name not in key), *(["place"] if table.key else [])]
        statement = (
            f"insert into ebbtide.{table.name} ({', '.join(columns)}) values ({', '.join('%s' for _ in columns)}) "
            f"on conflict ({', '.join(key)}) do update set "
            + ", ".join(f"{name} = excluded.{name}" for name in replaced)
        )
        values = [(self._run, *map(_kept, row)) for row in rows]
        if values:
            self._connection.cursor().executemany(statement.encode(), values)

    def rows(self, table: JournalTable, condition: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows in the order in which they were written."""
        where = f" and {condition.replace('?', '%s')}" if condition else ""
        query = f"select {', '.join(table.names)} from ebbtide.{table.name} where run = %s{where} order by place"
        return self._connection.execute(query.encode(), (self._run, *values)).fetchall()

    def metric_ends(self) -> list[tuple[Any, ...]]:
        """The rows of `METRICS` with each job's last step, lowest value and highest value, in order."""
        metrics = f"(select * from ebbtide.{METRICS.name} where run = %s)"
        query = METRIC_ENDS.format(metrics=metrics, order="here.place")
        return self._connection.execute(query.encode(), (self._run, self._run)).fetchall()

    def remove(self, table: JournalTable, condition: str, values: Sequence[Any]) -> None:
        """Remove the rows that meet a condition."""
        where = condition.replace("?", "%s")
        self._connection.execute(
            f"delete from ebbtide.{table.name} where run = %s and {where}".encode(), (self._run, *values)
        )

    def _placed(self, table: JournalTable, rows: list[Sequence[Any]]) -> list[Sequence[Any]]:
        """Rows of a table to which rows are only added, each with its place in it."""
        if not rows:
            return []
        if self.first_event is None:
            found = self._connection.execute(
                f"select coalesce(max(place), 0) from ebbtide.{table.name} where run = %s".encode(), (self._run,)
            ).fetchone()
            self.first_event = int(found[0]) if found else 0
        self.events = self.first_event + len(rows)
        return [(*row, place) for place, row in enumerate(rows, self.first_event + 1)]


def _tables() -> list[str]:
    """Statements that create whatever is missing."""
    made = ["create schema if not exists ebbtide", _RUNS]
    for table in TABLES:
        columns = ", ".join(f"{name} {kind}" for name, kind in table.columns)
        key = ", ".join(("run", *(table.key or ("place",))))
        made.append(
            f"create table if not exists ebbtide.{table.name} "
            f"(run text not null references ebbtide.runs on delete cascade, {columns}, "
            f"place bigint generated by default as identity, primary key ({key}))"
        )
    # Last, so that a reader that finds this table finds all the others.
    made.append("create table if not exists ebbtide.layout (version integer primary key)")
    made.append(f"insert into ebbtide.layout values ({LAYOUT_VERSION}) on conflict do nothing")
    return made


def _locked(connection: psycopg.Connection, number: int) -> bool:
    """Take the lock of a run in this session, unless another session has it."""
    row = connection.execute("select pg_try_advisory_lock(%s, %s)", (_LOCKS, number)).fetchone()
    return bool(row and row[0])


def _kept(value: Any) -> Any:
    """A value without NUL characters, which Postgres does not store in text."""
    return value.replace("\0", "") if isinstance(value, str) else value
