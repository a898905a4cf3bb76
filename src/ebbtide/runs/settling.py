"""Settles a run whose machines were ended without its controller: in its journal, and in its team's account."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.from_storage import from_storage_of
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.run_state import State, controller_of, phase_of
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_lines import AccountLine, WallClock, lines_of
from ebbtide.engine.snapshot import lease_of, ledger_of
from ebbtide.errors import EbbtideError, InputError
from ebbtide.runs.cost_summary import settled_figures

# States in which a scheduled run would be continued by itself, so that `ebbtide down` has to end it.
_CONTINUED = frozenset({State.STOPPED, State.BROKEN, State.REFUSED})


def settle(folder: RunFolder, refused: Mapping[str, str], runtime: Runtime = RUNTIME) -> str:
    """Record that the machines of a run have ended, and what they cost, if the run has no controller.

    Args:
        folder: Folder of the run.
        refused: Why a machine that still runs could not be ended, by machine id.
        runtime: Gives the time, and waits.

    Returns:
        Why its team's account could not be written; empty: it was, or the run has no team.
    """
    if controller_of(folder) is not None:
        return ""
    with suppress(OSError, EbbtideError, ValueError, TypeError, LookupError, AttributeError):
        journal = journal_of(folder)
        phase = phase_of(journal)
        if phase is not None:
            down = phase.end(State.DOWN) if phase.state is State.RUNNING else phase
            if phase.state in _CONTINUED:
                down = replace(phase, state=State.DOWN)
            figures = None if refused else settled_figures(folder)
            settled = {} if figures is None else {"figures": figures}
            journal.keep({"phase": down.encode(), "unended": refused} | settled)
    try:
        account = TeamAccount.of(folder, runtime)
        return "" if account is None else _settle_account(folder, account, len(refused))
    except (EbbtideError, OSError) as error:
        return str(error)


def _settle_account(folder: RunFolder, account: TeamAccount, left: int) -> str:
    """Write the last account: by the journal or, if that has nothing, as the controller last wrote it."""
    usd_per_hour = 0.0
    try:
        known: list[AccountLine] = []
        with suppress(InputError):
            # A damaged account is written anew by the journal.
            known = account.last_lines()
        before, own = _journal_lines(folder)
        lines = [*before, *_with_known(own, [line for line in known if line not in before])]
        journal = journal_of(folder, read_only=True)
        with journal.connected():
            figures, phase = journal.figures(), phase_of(journal)
        if figures is not None and left:
            usd_per_hour = figures["usd_per_hour"] or 0.0
        state = State.DOWN if phase is None else phase.state
    except (EbbtideError, OSError, ValueError, LookupError, TypeError, AttributeError):
        lines, state = account.last_lines(), State.DOWN
    # Where the accounts are gone, none may begin anew.
    account.go_on(lines)
    return account.note(lambda: lines, left, usd_per_hour, str(state), is_last=True)


def _with_known(lines: Sequence[AccountLine], known: Sequence[AccountLine]) -> list[AccountLine]:
    """Every amount of a journal, with those of the account that it lacks: its database may have gone back in time.

    A lease that is billed in the journal is known for good; of any other, the larger amount counts.

    Args:
        lines: Amounts of the journal.
        known: Amounts as the controller last wrote them into the run's account.
    """

    def by_lease(found: Sequence[AccountLine]) -> dict[int, list[AccountLine]]:
        grouped: dict[int, list[AccountLine]] = {}
        for line in found:
            grouped.setdefault(line.lease_id, []).append(line)
        return grouped

    if not lines:
        return [*known]
    own, others = by_lease(lines), by_lease(known)
    for lease_id, amounts in others.items():
        before = own.setdefault(lease_id, amounts)
        is_billed = any(line.entry in ("charge", "refund") for line in before)
        if not is_billed and math.fsum(line.usd for line in amounts) > math.fsum(line.usd for line in before):
            own[lease_id] = amounts
    return [line for _, amounts in sorted(own.items()) for line in amounts]


def lines_of_journal(folder: RunFolder) -> list[AccountLine]:
    """Every amount of a run, as its controller last wrote it; none if it has begun nothing.

    If the run went on from storage, earlier amounts of its team's account are included.

    Raises:
        JournalError: The journal cannot be read.
    """
    before, own = _journal_lines(folder)
    return [*before, *own]


def _journal_lines(folder: RunFolder) -> tuple[list[AccountLine], list[AccountLine]]:
    """The amounts of a run from before its journal was lost, if it was, and those of the journal."""
    journal = journal_of(folder, read_only=True)
    with journal.connected():
        kept, figures = journal.run(decisions=False, metrics=False), journal.figures()
        lost = from_storage_of(journal)
    before = [] if lost is None else list(lost.lines)
    if kept is None or figures is None:
        return before, []
    leases = [lease_of(values) for values in kept["engine"]["leases"]]
    clock = WallClock.of(figures)
    return before, lines_of(ledger_of(kept["engine"]), leases, dict(figures["open_usd"]), clock)
