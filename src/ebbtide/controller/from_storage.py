"""Resumes a run whose journal was lost from what storage has: its checkpoints and machine numbers.

Earlier decisions, measurements and payments are lost. Machines that still run are ended first, since nobody knows
what they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ebbtide.base.runtime import RUNTIME
from ebbtide.base.utc import iso
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.journal.journal import Journal, journal_of, set_aside
from ebbtide.controller.leadership import MachineNumbers, newest_claim
from ebbtide.controller.run_state import phase_of
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_lines import AccountLine
from ebbtide.errors import EbbtideError, InputError
from ebbtide.storage.objects import object_store

# Name of the record among the states of a journal.
FROM_STORAGE = "from_storage"
# States that do not depend on what was lost.
_CARRIED = ("tracking", "environment")


@dataclass(frozen=True)
class FromStorage:
    """Record that a run went on from storage.

    Attributes:
        at_epoch_s: When the run went on, seconds since 1970; payments before that are not known.
        first_machine: Number of the first machine that was rented since.
        why: What was wrong with its journal, in words.
        aside: Name under which the old journal is kept; empty: there was none.
        paid: Earlier payments by its team's account, lines as plain values; empty: none are known, or it has no
            team.
    """

    at_epoch_s: float
    first_machine: int
    why: str
    aside: str = ""
    paid: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def decode(cls, values: dict[str, Any] | None) -> FromStorage | None:
        """Decode plain values of the journal; None stays None."""
        return None if values is None else cls(**values)

    def in_words(self, run: str) -> str:
        """Words for the user: the finding, and its consequence."""
        kept = f"; what there was of it is kept as {self.aside}" if self.aside else ""
        return f"run {run} goes on from its checkpoints: {self.why}{kept}; {self}"

    @property
    def lines(self) -> list[AccountLine]:
        """Earlier payments, as lines of its team's account."""
        return [AccountLine(**values) for values in self.paid]

    def __str__(self) -> str:
        if self.paid:
            return (
                f"of what it paid before {iso(self.at_epoch_s)} only what its team's account has is known, since "
                "its journal was lost"
            )
        return f"what it paid before {iso(self.at_epoch_s)} is unknown, since its journal was lost"


def from_storage_of(journal: Journal) -> FromStorage | None:
    """Read the record that a run went on from storage; None: its journal has all of it."""
    return journal.decoded(FromStorage.decode, journal.state(FROM_STORAGE))


def go_on_from_storage(folder: RunFolder, end: Callable[[], str]) -> FromStorage:
    """Give a run a new journal, with which it is resumed from its checkpoints.

    Args:
        folder: Folder of a run that no controller has.
        end: Ends the machines of the run; returns why some may still run, or nothing.

    Raises:
        InputError: The journal has all of the run, the run has rented nothing, its key is a different one, or
            machines may still run.
        JournalError: The journal's database does not answer.
        OSError: Storage, or the store of its team's accounts, does not answer.
    """
    run = folder.path.name
    objects = object_store(folder.settings.store)
    # With a key other than the run's, nothing would be found below.
    newest_claim(objects, folder.settings.run, folder.key)
    numbers = MachineNumbers(objects, folder.settings.run, folder.key)
    first = numbers.first_free()
    why, known, carried = _known_of(folder)
    if not first:
        raise InputError(
            f"run {run} has rented nothing yet: `ebbtide resume {run}` begins it", field="--from-storage"
        )
    if known >= first:
        raise InputError(
            f"the journal of run {run} has all of it: `ebbtide resume {run}` goes on", field="--from-storage"
        )
    problem = end()
    if problem:
        raise InputError(f"machines of run {run} may still run: {problem}", field="--from-storage")
    why = why or ("its journal was empty" if known <= 0 else "its journal was older than storage")
    # The next controller writes the account anew.
    account = TeamAccount.of(folder, RUNTIME)
    paid = [] if account is None else [line.as_plain() for line in account.last_lines()]
    # Read again: requests that were under way may have taken numbers. Their controller is superseded next.
    found = FromStorage(time.time(), numbers.first_free(), why, set_aside(folder), paid)
    journal_of(folder).keep({**carried, FROM_STORAGE: asdict(found)})
    return found


def _known_of(folder: RunFolder) -> tuple[str, int, dict[str, Any]]:
    """Read what the journal still has.

    Returns:
        Why it cannot be read, empty: it can; the first number of a machine that it does not know; states that are
        carried over.
    """
    carried: dict[str, Any] = {}
    try:
        journal = journal_of(folder, read_only=True)
        for name in _CARRIED:
            with suppress(EbbtideError):
                if (state := journal.state(name)) is not None:
                    carried[name] = state
        before, kept = from_storage_of(journal), journal.run(decisions=False, metrics=False)
        phase_of(journal)
        leases = len(kept["engine"]["leases"]) if kept is not None else 0
        return "", leases + (before.first_machine if before is not None else 0), carried
    except InputError as error:
        return f"its journal could not be read: {error.problem}", 0, carried
