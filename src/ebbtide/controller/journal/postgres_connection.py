"""Connections to a database of journals: every wait has a time limit, and Postgres's errors become ours.

Postgres limits how long a statement takes, and the system how long sent data may stay unacknowledged. Neither ends
a wait for a server that acknowledges data but never answers, so a timer cuts such a connection.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from ebbtide.controller.journal.address import PostgresPlace
from ebbtide.errors import JournalAwayError, JournalError, UnusableJournalError

# Seconds until a server counts as away: to connect, to run a statement, to acknowledge data, and to finish a whole
# transaction.
CONNECT_S, STATEMENT_S, SEND_S, ANSWER_S = 5, 15.0, 10.0, 20.0
# Seconds to wait for other writers, unless a transaction is patient.
LOCK_S = 1.0
# A server that took longer than _LONG_S to fail is not asked again for AWAY_S by readers: they look at many runs.
AWAY_S = 5.0
_LONG_S = 1.0

# These settings belong to a session, so a pooler between us and the server must pass on whole sessions.
_SET = """
set statement_timeout = {statement_ms:.0f};
set lock_timeout = {lock_ms:.0f};
set tcp_keepalives_idle = 20;
set tcp_keepalives_interval = 5;
set tcp_keepalives_count = 4;
select set_config('synchronous_commit', 'on', false)
where current_setting('synchronous_commit') in ('off', 'local')
"""

# By address of a database that took long to fail: until when it is not asked again, and its error.
_away: dict[str, tuple[float, str]] = {}


def connected(place: PostgresPlace, *, asks_always: bool) -> psycopg.Connection:
    """Open a connection on which a commit is on the server's disk before it returns.

    The server also notices within a minute that this end is gone, and releases the session's locks.

    Args:
        place: The database, and the run by whose name the server knows the session.
        asks_always: Whether to connect even if the server did not answer a moment ago.

    Raises:
        psycopg.Error: It does not answer, or refuses.
        JournalAwayError: It did not answer a moment ago.
    """
    until_s, told = _away.get(place.address, (0.0, ""))
    if not asks_always and time.monotonic() < until_s:
        raise JournalAwayError(told)
    ours = {
        "connect_timeout": str(CONNECT_S),
        "tcp_user_timeout": f"{SEND_S * 1000:.0f}",
        "keepalives_idle": "5",
        "keepalives_interval": "5",
        "keepalives_count": "2",
        "application_name": f"ebbtide {place.run}"[:63],
    }
    given = conninfo_to_dict(place.address)
    began_s = time.monotonic()
    try:
        connection = psycopg.connect(
            **{**ours, **given, "client_encoding": "utf8"},  # type: ignore[arg-type]
            autocommit=True,
            # Poolers do not know of prepared statements.
            prepare_threshold=None,
        )
    except psycopg.OperationalError as error:
        if time.monotonic() - began_s >= _LONG_S:
            _away[place.address] = time.monotonic() + AWAY_S, str(_away_error(place, error))
        raise
    _away.pop(place.address, None)
    try:
        with within(connection, ANSWER_S):
            settings = _SET.format(statement_ms=STATEMENT_S * 1000, lock_ms=LOCK_S * 1000)
            connection.execute(settings.encode())
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def within(connection: psycopg.Connection, limit_s: float) -> Iterator[None]:
    """Cut the connection if the block takes longer, so that whatever it waits for fails.

    Args:
        connection: The connection to cut.
        limit_s: Seconds for the whole block.
    """
    timer = threading.Timer(limit_s, _cut(connection))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The caller may close the connection next, when the timer must no longer use it.
        timer.join()


@contextmanager
def answering(place: PostgresPlace) -> Iterator[None]:
    """Turn Postgres's errors inside the `with` block into ours.

    Raises:
        JournalAwayError: The server does not answer, or lets nobody in.
        UnusableJournalError: The server does not allow what is asked.
        JournalError: The same may succeed later.
    """
    try:
        yield
    except (
        errors.DiskFull,
        errors.LockNotAvailable,
        errors.ReadOnlySqlTransaction,
        errors.DeadlockDetected,
        errors.SerializationFailure,
    ) as error:
        raise JournalError(f"{place}: {_line(error)}") from None
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise _away_error(place, error) from None
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        raise UnusableJournalError(
            f"{place} has no journals any more: it failed over to an empty database, or its address names another "
            "one; `ebbtide resume RUN --from-storage` goes on with a new journal"
        ) from None
    except psycopg.Error as error:
        raise UnusableJournalError(f"{place}: {_line(error)}") from None


def _away_error(place: PostgresPlace, error: psycopg.Error) -> JournalAwayError:
    # FATAL is a refusal: no such database, a wrong password, too many sessions, or a server that is just starting.
    does = "lets nobody in" if "FATAL:" in str(error) else "does not answer"
    return JournalAwayError(f"the journal's database at {place.name} {does}: {_line(error)}")


def _cut(connection: psycopg.Connection) -> Callable[[], None]:
    def cut() -> None:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    return cut


def _line(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
