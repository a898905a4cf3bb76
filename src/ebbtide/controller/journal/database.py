"""Protocol of the database that a journal is kept in: a few tables, and one transaction at a time.

Two databases implement it: a SQLite file (`journal.sqlite`), and a Postgres database that many runs share
(`journal.postgres`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class JournalTable:
    """A table of a journal.

    Attributes:
        name: The name of the table.
        columns: The names of its columns with their types, which both databases know.
        key: The columns that identify a row, which a new one with the same values replaces; none: rows are only
            added.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its columns."""
        return tuple(name for name, _ in self.columns)


STATE = JournalTable("state", (("name", "text"), ("content", "text not null")), ("name",))
MOMENTS = JournalTable(
    "moments",
    (
        ("time_s", "double precision"),
        ("what", "text"),
        ("lease_id", "bigint"),
        ("job_id", "bigint"),
        ("detail", "text"),
    ),
)
RECORDS = JournalTable(
    "records", (("kind", "text"), ("number", "bigint"), ("content", "text")), ("kind", "number")
)
PRICES = JournalTable(
    "prices",
    (("market", "text"), ("time_s", "double precision"), ("usd_per_hour", "double precision")),
    ("market", "time_s"),
)
METRICS = JournalTable(
    "metrics", (("job_id", "bigint"), ("step", "bigint"), ("value", "double precision")), ("job_id", "step")
)
TABLES = (STATE, MOMENTS, RECORDS, PRICES, METRICS)


# The last, the lowest and the highest value of each job.
METRIC_ENDS = """
select here.job_id, here.step, here.value from {metrics} as here join (
    select job_id, max(step) as last, min(value) as low, max(value) as high from {metrics} as each group by job_id
) as ends on here.job_id = ends.job_id and (
    here.step = ends.last or here.value = ends.low or here.value = ends.high
) order by {order}
"""


class Session(Protocol):
    """A transaction on the journal of one run; all that it reads is as of one moment."""

    def version(self) -> int:
        """The schema version of the journal; 0: the journal is new, or older than schema versions."""

    def set_version(self, version: int) -> None:
        """Write the schema version down."""

    def put(self, table: JournalTable, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, replacing those with the same key."""

    def rows(self, table: JournalTable, condition: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows in the order in which they were written; none if there is no such table yet.

        Args:
            table: The table to read.
            condition: SQL condition that they meet, with `?` for each value; empty: all rows.
            values: Values in the condition.
        """

    def metric_ends(self) -> list[tuple[Any, ...]]:
        """The rows of `METRICS` with each job's last step, lowest value and highest value, in order."""

    def remove(self, table: JournalTable, condition: str, values: Sequence[Any]) -> None:
        """Remove the rows that meet a condition."""


class JournalDatabase(Protocol):
    """Keeps the journal of one run. Every method raises `JournalError` if it cannot be done at present."""

    @property
    def place(self) -> str:
        """Location of the database, as errors name it."""

    def make(self) -> None:
        """Create missing tables."""

    def reading(self) -> AbstractContextManager[Session | None]:
        """A transaction that changes nothing; None: there is no journal yet."""

    def writing(self, *, patient: bool = False) -> AbstractContextManager[Session]:
        """A transaction whose changes are kept at its end, all or nothing.

        Args:
            patient: Whether to wait long for other writers; otherwise the caller retries.
        """

    def connected(self) -> AbstractContextManager[None]:
        """Use one connection for everything inside the `with` block, if the database has connections."""

    def controlled(self) -> AbstractContextManager[None]:
        """Be the only controller that writes, as far as the database can tell.

        Raises:
            InputError: Another controller has the run.
        """

    def is_controlled(self) -> bool:
        """Return whether the database knows of a controller that has the run now, on any host."""

    def set_aside(self) -> str:
        """Move whatever there is of the run elsewhere; returns its new name; empty: there was nothing."""

    def stamp(self) -> tuple[int, ...]:
        """A value that changes whenever the journal is written; empty: not known."""
