"""Cost reports of a month: what each owner, run, policy or tag has spent, and every amount of the sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import SIMULATED, RunFolder, known_runs
from ebbtide.controller.from_storage import from_storage_of
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.run_state import phase_of, state_now
from ebbtide.controller.team.account_book import AccountBook, RunAccount, account_name
from ebbtide.controller.team.team import Accounting, Team
from ebbtide.errors import EbbtideError, InputError, unknown_name
from ebbtide.runs.settling import lines_of_journal
from ebbtide.storage.objects import object_store

# What a report may be grouped by; besides these `tag:NAME`.
GROUPS = ("owner", "run", "policy", "provider", "market")
_TAG = "tag:"
UNNAMED = "-"

# Of the audit, in this order.
COLUMNS = (
    *("month", "run", "owner", "tags", "provider", "policy", "entry", "lease_id", "market", "on_demand"),
    *("start", "end", "usd_per_hour", "usd"),
)


@dataclass(frozen=True)
class MonthReport:
    """Spending of a month.

    Attributes:
        month: Calendar month (UTC), as `2026-11`.
        lines: Every amount, a row each, with the columns `COLUMNS`.
        team: Limits of the team; None: there is none.
        unreadable: Runs that cannot be read, and why.
        outside: Runs that are not of the team, as `lines` has them: its budgets do not limit them.
    """

    month: str
    lines: pd.DataFrame
    team: Team | None
    unreadable: Mapping[str, str]
    outside: frozenset[str] = frozenset()

    @property
    def total_usd(self) -> float:
        """Total spending, simulated runs included, USD."""
        return math.fsum(self.lines["usd"])

    @property
    def simulated_usd(self) -> float:
        """Spending of runs on a replayed market, USD; it was never paid."""
        return math.fsum(self.lines["usd"][self.lines["provider"].isin(SIMULATED)])

    def by(self, group: str) -> pd.DataFrame:
        """Sums by owner, run, policy, provider, market or `tag:NAME`, the highest first.

        Columns: the group, number of runs, machine-hours, USD charged, refunded, for egress, and in all.

        Raises:
            InputError: There is no such group.
        """
        if group not in GROUPS and not group.startswith(_TAG):
            raise unknown_name("group", group, [*GROUPS, f"{_TAG}NAME"])
        lines = self.lines
        if group.startswith(_TAG):
            name = group.removeprefix(_TAG)
            keys = [tags.get(name, UNNAMED) for tags in lines["tags"]]
        else:
            keys = [str(value) or UNNAMED for value in lines[group]]
        rows = []
        for key, part in lines.groupby(pd.Series(keys, index=lines.index, dtype=object), sort=True):
            hours = (
                pd.to_datetime(part["end"], utc=True) - pd.to_datetime(part["start"], utc=True)
            ).dt.total_seconds()
            is_time = part["entry"].isin(["charge", "open"])
            rows.append(
                {
                    group: key,
                    "runs": part["run"].nunique(),
                    "machine_hours": float(hours[is_time].sum()) / HOUR_S,
                    "charged_usd": math.fsum(part["usd"][is_time]),
                    "refunded_usd": math.fsum(-part["usd"][part["entry"] == "refund"]),
                    "egress_usd": math.fsum(part["usd"][part["entry"] == "egress"]),
                    "usd": math.fsum(part["usd"]),
                }
            )
        columns = [group, "runs", "machine_hours", "charged_usd", "refunded_usd", "egress_usd", "usd"]
        return pd.DataFrame(rows, columns=columns).sort_values(
            ["usd", group], ascending=[False, True], ignore_index=True
        )

    def budgets(self) -> list[tuple[str, float, float]]:
        """For each budget whose it is, what was spent of it and what it is, USD."""
        if self.team is None:
            return []
        found = []
        lines = self.lines[~self.lines["run"].isin(self.outside)]
        if self.team.monthly_budget_usd is not None:
            found.append(("the team", math.fsum(lines["usd"]), self.team.monthly_budget_usd))
        for owner, limits in sorted(self.team.owners.items()):
            if limits.monthly_budget_usd is not None:
                spent = math.fsum(lines["usd"][lines["owner"] == owner])
                found.append((owner, spent, limits.monthly_budget_usd))
        return found

    def audit(self) -> pd.DataFrame:
        """Every amount, in order of run and time, tags as text; what `usd` sums up to is the report's total."""
        found = self.lines.sort_values(["run", "start", "lease_id", "entry"], kind="stable", ignore_index=True)
        tags = [";".join(f"{name}={value}" for name, value in sorted(one.items())) for one in found["tags"]]
        found = found.assign(tags=tags)
        for name in ("run", "owner", "tags", "provider", "policy", "market"):
            found[name] = [_as_text(str(value)) for value in found[name]]
        return found


def _as_text(value: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def month_report(month: str, runs: Path | None = None, team: Team | None = None) -> MonthReport:
    """Report the spending of a month.

    Args:
        month: Calendar month (UTC), as `2026-11`.
        runs: Folder of runs of this machine, whose journals are read; None: only the team's accounts.
        team: The team, whose accounts are read; a run that is in both counts once, by its journal.

    Raises:
        InputError: Neither is given, or the team's accounts cannot be read.
    """
    found: dict[str, RunAccount] = {}
    unreadable: dict[str, str] = {}
    unread: dict[str, str] = {}
    outside: set[str] = set()
    for folder in _folders(runs):
        name = ""
        try:
            name = account_name(folder)
            if name in found:
                continue  # a copy of another folder
            found[name] = _account_of_journal(folder, month, name)
            if (lost := from_storage_of(journal_of(folder, read_only=True))) is not None:
                unreadable[folder.path.name] = str(lost)
            own = Accounting.of(folder).team
            if own is None or team is None or own.accounts != team.accounts:
                outside.add(name)
        except (EbbtideError, OSError, ValueError, TypeError, LookupError) as error:
            unreadable[folder.path.name] = " ".join(str(error).split())
            unread[name] = folder.path.name
    if team is not None:
        try:
            accounts = AccountBook(object_store(team.accounts)).read(month, unreadable)
        except OSError as error:
            raise InputError(f"the team's accounts in {team.accounts} cannot be read: {error}") from None
        # Runs of earlier versions name the same store by another path.
        outside -= {account.name for account in accounts}
        for name in found:
            unreadable.pop(name, None)  # its journal says what is to be known
        for account in accounts:
            if found.setdefault(account.name, account) is account:
                unreadable.pop(unread.get(account.name, ""), None)
    spent = {name: account for name, account in found.items() if account.lines}
    # Several people may have a run of one id; then it is told whose it is.
    times = Counter(account.run for account in spent.values())
    shown = {name: name if times[account.run] > 1 else account.run for name, account in spent.items()}
    rows = [row for name, account in spent.items() for row in _rows(account, shown[name])]
    lines = pd.DataFrame(rows, columns=list(COLUMNS))
    beside = frozenset() if team is None else frozenset(shown[name] for name in outside & set(shown))
    return MonthReport(month, lines, team, unreadable, beside)


def _folders(runs: Path | None) -> Sequence[RunFolder]:
    if runs is None:
        return ()
    try:
        return known_runs(runs)
    except InputError:
        return ()


def _account_of_journal(folder: RunFolder, month: str, name: str) -> RunAccount:
    lines = lines_of_journal(folder)
    settings, accounting = folder.settings, Accounting.of(folder)
    state, _ = state_now(folder, phase_of(journal_of(folder, read_only=True)))
    account = RunAccount(
        *(name, settings.run, month, accounting.owner, accounting.tags, settings.provider),
        *(settings.policy, str(state), 0.0, 0, 0.0, 0.0),
    )
    return replace(account, lines=tuple(line for line in lines if line.month == month))


def _rows(account: RunAccount, run: str) -> list[dict[str, Any]]:
    about = {
        "run": run,
        "owner": account.owner,
        "tags": dict(account.tags),
        "provider": account.provider,
        "policy": account.policy,
    }
    return [{**line.as_plain(), **about} for line in account.lines]
