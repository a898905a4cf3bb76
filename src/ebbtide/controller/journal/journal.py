"""Journal of a run: the state that its controller keeps between two starts, written whole or not at all.

The journal is a file in the run's folder, or in a Postgres database that many runs share; `journal_of` finds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ebbtide.base.json_values import misfit
from ebbtide.clouds.settings import LiveSettings, RunFolder, check_schema_version
from ebbtide.controller.journal.address import PostgresPlace
from ebbtide.controller.journal.changes import DECISIONS, MAILBOXES, NOTHING, Changes, StatePart, joined, split
from ebbtide.controller.journal.compaction import EVERY_ROWS, compact
from ebbtide.controller.journal.database import METRICS, MOMENTS, PRICES, RECORDS, STATE, JournalDatabase, Session
from ebbtide.controller.journal.price_log import PricePoint
from ebbtide.controller.journal.sqlite import SqliteDatabase
from ebbtide.controller.snapshots import RunSnapshot, RunSpending, check_run, migrated_run, spending_of
from ebbtide.errors import InputError, JournalAwayError, JournalError

Found = TypeVar("Found")
# Market time in seconds, kind of event, lease id, job id, detail in words.
Moment = tuple[float, str, int, int, str]

# Increased whenever the content changes in a way that an older Ebbtide would misread.
SCHEMA_VERSION = 2

_FROM_STORAGE = "`ebbtide resume RUN --from-storage` goes on with a new journal"


class Journal:
    """The journal of one run.

    An older schema version is migrated in place when the journal is opened for writing, otherwise as it is read.

    Args:
        place: A SQLite file, which is made if it does not exist and `read_only` is false; or a place in Postgres.
        read_only: Nothing is made or changed, so a reader never waits for the controller's writes.

    Raises:
        InputError: It was written by a newer Ebbtide, or is no journal.
        JournalError: It cannot be made; `JournalAwayError` where its server does not answer.
    """

    def __init__(self, place: Path | PostgresPlace, *, read_only: bool = False) -> None:
        self._database = _database_of(place, read_only=read_only)
        # Events and prices written since the last check whether there are too many.
        self._rows = 0
        if not read_only:
            with self._read() as session:
                version = 0 if session is None else self._version(session)
            self._database.make()
            if version < SCHEMA_VERSION:
                self._migrate()

    def keep(
        self,
        states: Mapping[str, Any],
        moments: Sequence[Moment] = (),
        changes: Changes = NOTHING,
        prices: Sequence[PricePoint] = (),
    ) -> None:
        """Write states, the events and prices since the last call, and the run's changes, all or nothing.

        Raises:
            JournalError: Another process has locked it for long, the disk is full, or its server does not answer.
            SupersededError: Another controller has taken the run over.
        """
        with self._database.writing() as session:
            session.put(STATE, [(name, json.dumps(content)) for name, content in states.items()])
            session.put(MOMENTS, moments)
            session.put(PRICES, prices)
            _write(session, changes)
            rows = self._rows + len(moments) + len(prices)
            if rows >= EVERY_ROWS:
                compact(session)
        self._rows = rows % EVERY_ROWS

    def connected(self) -> AbstractContextManager[None]:
        """Use one connection for all reads inside the `with` block."""
        return self._database.connected()

    def controlled(self) -> AbstractContextManager[None]:
        """Be the only controller that writes inside the `with` block, as far as the database can tell.

        Raises:
            InputError: Another controller has the run.
            JournalError: That cannot be known at present.
        """
        return self._database.controlled()

    def is_controlled(self) -> bool:
        """Return whether the database knows of a controller that has the run now, on any host.

        For a file this is always false: only the lock in the run's folder tells, see `run_state.controller_pid`.

        Raises:
            JournalError: That cannot be known at present.
        """
        return self._database.is_controlled()

    def stamp(self) -> tuple[int, ...]:
        """A value that changes whenever the journal is written; empty: there is no journal.

        Raises:
            JournalError: That cannot be known at present.
        """
        return self._database.stamp()

    def state(self, name: str) -> Any:
        """A state as it was last kept; None: it was never kept.

        Raises:
            InputError: It is no journal, was written by a newer Ebbtide, or is locked for long.
            JournalAwayError: Its server does not answer.
        """
        with self._read() as session:
            if session is None:
                return None
            self._version(session)
            rows = session.rows(STATE, "name = ?", (name,))
        return self.decoded(json.loads, rows[0][1]) if rows else None

    def run(self, *, decisions: bool = True, metrics: bool = True) -> RunSnapshot | None:
        """The run as it was last kept, in the present versions of its parts; None: it was never kept.

        Args:
            decisions: Whether to read decisions, which are most of a long run, and the state of messages as well;
                otherwise both are empty.
            metrics: Whether to read all metrics, or only the last, the lowest and the highest of each trial.

        Raises:
            InputError: It is no journal, is locked for long, or a newer Ebbtide wrote it or a part of it.
            JournalAwayError: Its server does not answer.
        """
        try:
            with self._read() as session:
                if session is None:
                    return None
                self._version(session)
                condition = ("", ()) if decisions else ("kind not in (?, ?)", (DECISIONS, MAILBOXES))
                rows = session.rows(RECORDS, *condition)
                # Decoding thousands at once takes half as long.
                contents = json.loads(f"[{','.join([row[2] for row in rows])}]")
                found = [StatePart(row[0], row[1], each) for row, each in zip(rows, contents, strict=True)]
                values: Any = session.rows(METRICS) if metrics else session.metric_ends()
        except InputError:
            raise
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from None
        kept: Any = self.decoded(joined, found, values)
        if kept is None:
            kept = self.state("run")  # as older versions wrote it
        return None if kept is None else self.decoded(self._checked, kept)

    def figures(self) -> RunSpending | None:
        """Figures of the run's spending as they were last kept; None: they were never kept.

        Raises:
            InputError: It is no journal, was written by a newer Ebbtide, or is locked for long.
            JournalAwayError: Its server does not answer.
        """
        found = self.state("figures")
        return None if found is None else self.decoded(spending_of, found)

    def moments(self) -> list[Moment]:
        """All events of the run, in order."""
        with self._read() as session:
            return [] if session is None else [(r[0], r[1], r[2], r[3], r[4]) for r in session.rows(MOMENTS)]

    def prices(self) -> dict[str, list[tuple[float, float]]]:
        """Price changes of the markets that concern the run: pairs of time and USD per hour, by market.

        Raises:
            JournalAwayError: Its server does not answer.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        try:
            with self._database.reading() as session:
                rows = [] if session is None else session.rows(PRICES)
        except JournalAwayError:
            raise
        except JournalError:
            return {}  # the journal is being made
        for market, time_s, usd in sorted(rows):
            found.setdefault(market, []).append((time_s, usd))
        return found

    @contextmanager
    def _read(self) -> Iterator[Session | None]:
        """A read transaction; None: there is no journal yet."""
        try:
            with self._database.reading() as session:
                yield session
        except JournalAwayError:
            raise
        except JournalError as error:
            way = "" if error.is_passing or _FROM_STORAGE in str(error) else f"; {_FROM_STORAGE}"
            raise InputError(
                f"the run's journal cannot be read: {error}{way}", file=self._database.place
            ) from None

    def decoded(self, decode: Callable[..., Found], *values: Any) -> Found:
        """Decode values of the journal.

        Raises:
            InputError: The journal is damaged: the values are not what was written.
        """
        try:
            return decode(*values)
        except InputError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> InputError:
        problem = f"the run's journal is damaged: {misfit(error)}; {_FROM_STORAGE}"
        return InputError(problem, file=self._database.place)

    def _checked(self, kept: dict[str, Any]) -> RunSnapshot:
        """A snapshot in the present versions of its parts, each of which has what its record says."""
        found = self._migrated_run(kept)
        check_run(found)
        return found

    def _migrated_run(self, kept: dict[str, Any]) -> RunSnapshot:
        try:
            return migrated_run(kept)
        except InputError as error:
            raise InputError(error.problem, file=self._database.place) from None

    def _version(self, session: Session) -> int:
        version = session.version()
        check_schema_version(version, SCHEMA_VERSION, self._database.place)
        return version

    def _migrate(self) -> None:
        """Rewrite the state of an older version in this version's schema, all or nothing."""
        with self._database.writing(patient=True) as session:
            self._version(session)
            rows = session.rows(STATE, "name = ?", ("run",))
            if rows:
                _write(session, split(self._migrated_run(json.loads(rows[0][1]))))
                session.remove(STATE, "name = ?", ("run",))
            session.set_version(SCHEMA_VERSION)


def journal_of(folder: RunFolder, *, read_only: bool = False) -> Journal:
    """The journal of a run, wherever its settings say that it is.

    Args:
        folder: Folder of the run; before the run begins, its journal is there.
        read_only: Nothing is made or changed.

    Raises:
        InputError: The run or its journal cannot be read, or the extra `postgres` is missing.
        JournalError: It cannot be made; `JournalAwayError` where its server does not answer.
    """
    settings = folder.settings if folder.is_begun else None
    if settings is None or not settings.journal:
        return Journal(folder.journal, read_only=read_only)
    return Journal(_in_database(settings), read_only=read_only)


def set_aside(folder: RunFolder) -> str:
    """Move whatever there is of a run's journal elsewhere, so that the run can have a new one.

    Args:
        folder: Folder of the run.

    Returns:
        Its new name; empty: there was none.

    Raises:
        JournalError: That cannot be done at present.
    """
    settings = folder.settings
    place = _in_database(settings) if settings.journal else folder.journal
    return _database_of(place, read_only=False).set_aside()


def check_database(address: str) -> None:
    """Make sure that a database of journals can be used, before anything of a new run is written down.

    Args:
        address: The address of the database; empty: the journal will be a file.

    Raises:
        InputError: A newer Ebbtide made its tables, or the extra `postgres` is missing.
        JournalError: It cannot be used; `JournalAwayError` where its server does not answer.
    """
    if address:
        from ebbtide.controller.journal.postgres import PostgresDatabase

        PostgresDatabase(PostgresPlace.of(address)).make()


def reserve(folder: RunFolder, address: str) -> None:
    """Take a new run's place in the database of journals, for this folder and its copies.

    Args:
        folder: Folder of the run, not begun yet.
        address: The address of the database; empty: the journal will be a file.

    Raises:
        InputError: The database has another run with that unique name.
        JournalError: It cannot be used; `JournalAwayError` where its server does not answer.
    """
    if address:
        from ebbtide.controller.journal.postgres import PostgresDatabase

        # No two folders have the same key, except for copies of one folder.
        owner = hashlib.sha256(b"journal of " + folder.key).hexdigest()
        PostgresDatabase(PostgresPlace.of(address, folder.unique_name)).reserve(owner)


def _in_database(settings: LiveSettings) -> PostgresPlace:
    return PostgresPlace.of(settings.journal, settings.journal_name or settings.run)


def _database_of(place: Path | PostgresPlace, *, read_only: bool) -> JournalDatabase:
    if not isinstance(place, PostgresPlace):
        return SqliteDatabase(place, read_only=read_only)
    # Imported here: it needs an extra, and takes a while.
    from ebbtide.controller.journal.postgres import PostgresDatabase

    return PostgresDatabase(place)


def _write(session: Session, changes: Changes) -> None:
    """Write the changes of a run."""
    session.put(RECORDS, ((record.kind, record.number, json.dumps(record.content)) for record in changes.records))
    session.put(METRICS, changes.metrics)
