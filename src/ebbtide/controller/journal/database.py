"""Protocol of the database that a journal is kept in: a few tables, and one transaction at a time.

Two databases implement it: a file of SQLite (`journal_sqlite`), and a database of Postgres that many runs share
(`journal_postgres`).
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
        key: The columns whose values a new row shares with the one that it replaces; none: rows are only added.
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


# Of each job the last, the lowest and the highest value.
METRIC_ENDS = """
select here.job_id, here.step, here.value from {metrics} as here join (
    select job_id, max(step) as last, min(value) as low, max(value) as high from {metrics} as each group by job_id
) as ends on here.job_id = ends.job_id and (
    here.step = ends.last or here.value = ends.low or here.value = ends.high
) order by {order}
"""


class Session(Protocol):
    """A transaction on the journal of one run; what is read in it is as of one moment."""

    def version(self) -> int:
        """The schema version of the journal; 0: it is from before it was written, or is new."""

    def set_version(self, version: int) -> None:
        """Write the schema version down."""

    def put(self, table: JournalTable, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, in place of those with the same key."""

    def rows(self, table: JournalTable, condition: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows in the order in which they were written; none, where there is no such table yet.

        Args:
            table: The table in which they are.
            condition: What holds of them, in SQL with `?` for each value; empty: all are meant.
            values: Values in the condition.
        """

    def metric_ends(self) -> list[tuple[Any, ...]]:
        """Of each job the rows of `METRICS` with the last step, the lowest value and the highest, in order."""

    def remove(self, table: JournalTable, condition: str, values: Sequence[Any]) -> None:
        """Remove the rows of which a condition holds."""


class JournalDatabase(Protocol):
    """Keeps the journal of one run. Every method raises `JournalError` where that cannot be done at present."""

    @property
    def place(self) -> str:
        """Location of the database, as errors name it."""

    def make(self) -> None:
        """Make the tables that are not there."""

    def reading(self) -> AbstractContextManager[Session | None]:
        """A transaction that changes nothing; None: there is no journal yet."""

    def writing(self, *, patient: bool = False) -> AbstractContextManager[Session]:
        """A transaction whose changes are kept at its end, all or nothing.

        Args:
            patient: Whether to wait for others who write; else whoever writes asks again.
        """

    def connected(self) -> AbstractContextManager[None]:
        """Use one connection for all that is done inside the `with` block, where there are connections."""

    def controlled(self) -> AbstractContextManager[None]:
        """Be the only controller that writes, as far as the database can tell.

        Raises:
            InputError: Another controller has the run.
        """

    def is_controlled(self) -> bool:
        """Return whether the database knows of a controller that has the run now, on any host."""

    def set_aside(self) -> str:
        """Keep what there is of the run elsewhere, whatever it is; returns its name there; empty: it is none."""

    def stamp(self) -> tuple[int, ...]:
        """Differs whenever the journal was written; empty: that is not known."""
