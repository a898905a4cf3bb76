"""A run's account with its team, kept up to date by the run's controller, which obeys the team's limits.

Neither needs the run's journal. While the accounts cannot be read or written, those read last count, growing by
what their machines cost. Once that has lasted as long as machines go on without a controller, the limits count as
reached, since others will soon stop counting this run's machines.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ebbtide.base.runtime import Runtime
from ebbtide.base.utc import DAY_S
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.team.account_book import UNSEEN_S, AccountBook, RunAccount, account_name, counts
from ebbtide.controller.team.account_lines import AccountLine, month_of, sums_by_month
from ebbtide.controller.team.quotas import QuotaBook, Reservation
from ebbtide.controller.team.team import Accounting, Team
from ebbtide.controller.team.team import TeamLimits as TeamLimits
from ebbtide.errors import InputError, StorageError
from ebbtide.storage.objects import ObjectStore, object_store

_LOGGER = logging.getLogger(__name__)

# Seconds between writes of an account (at once if the number of machines changes), and between reads of others'.
_WRITE_EVERY_S = 30.0
READ_EVERY_S = 20.0
# Tries to write the last account of a run, and seconds between them.
_LAST_TRIES, _LAST_AGAIN_S = 3, 1.0
_WARN_EVERY_S = 300.0
# Seconds to retry a request to the store before it is left for later.
_STORAGE_S = 8.0
# Seconds for which a slow store may hold everything else up; then the accounts read last count. Before a run rents
# anything, it reads those of all runs that are over, too.
_READ_WITHIN_S, _FIRST_READ_WITHIN_S = 20.0, 180.0
# Seconds by which the clocks of two hosts may differ.
_CLOCKS_S = 600.0
# Seconds after which machines of most runs have ended without their controller.
_UNATTENDED_S = 1800.0
# Days after which it is last month: the first for most days, the second for the last of a long one.
_MONTH_DAYS = (28, 31)
# USD below which nothing is left, since a policy cannot be given a limit of zero.
LEAST_USD = 1e-6


@dataclass(frozen=True)
class Room:
    """Money and machines that a team's limits leave to a run now.

    Attributes:
        usd: The most that the run may have spent in all, as its journal knows, USD; infinity: there is no limit.
        machines: The most machines that it may rent at once; infinity: there is no limit.
        usd_limit: Budget that binds, in words.
        machines_limit: Quota that binds, in words.
    """

    usd: float = math.inf
    machines: float = math.inf
    usd_limit: str = ""
    machines_limit: str = ""


def is_of_team(why: str) -> bool:
    """Return whether a run gave up for a limit of its team (`Room.usd_limit`), and so may go on later."""
    return "the team's" in why or " USD for " in why


class Reader(Protocol):
    """Source of the room that a team's limits leave to a run."""

    def room(self) -> Room:
        """Room that is left now."""
        ...

    def reserve(self, machines: int) -> bool:
        """Reserve this many machines in all, before more are requested; returns whether the quotas allow it."""
        ...


class TeamAccount:
    """The account of one run with its team.

    Args:
        name: Name of the run's account.
        settings: What the run was started with.
        accounting: Owner of the run, and the limits of its team.
        objects: Store of all accounts.
        runtime: Gives the time, and waits.
    """

    def __init__(
        self, name: str, settings: LiveSettings, accounting: Accounting, objects: ObjectStore, runtime: Runtime
    ) -> None:
        assert accounting.team is not None
        self._name, self._settings, self._accounting, self._runtime = name, settings, accounting, runtime
        self._team: Team = accounting.team
        self._book, self._quotas = AccountBook(objects, runtime), QuotaBook(objects)
        # Both the controller's thread and its attendant's ask.
        self._lock = threading.RLock()
        self._others: dict[str, RunAccount] = {}
        # By account: when it was written, when that was first seen, and whether it was seen to change.
        self._seen: dict[str, tuple[float, float, bool]] = {}
        self._damaged: dict[str, str] = {}
        # Since when each account has been missing that was there before.
        self._missing_s: dict[str, float] = {}
        self._tried_s = self._warned_s = -math.inf
        # When the accounts were last read and written; the grace begins with the controller, not its machines.
        self._read_s = self._kept_s = runtime.monotonic_s()
        self._written_s = -math.inf
        self._written: tuple[int, str] | None = None
        # Months of which a former controller of this run has written its account.
        self._earlier: set[str] = set()
        self._months: dict[str, float] = {}
        self._lost_usd = 0.0
        self._unwritten: set[str] = set()
        # Machines reserved for this run in the quotas; None: not known.
        self._reserved: int | None = None
        # Most machines that the quotas allowed this controller to request, less those that it gave back.
        self._granted = 0

    @classmethod
    def of(cls, folder: RunFolder, runtime: Runtime, objects: ObjectStore | None = None) -> TeamAccount | None:
        """The account of a run; None: the run has no team.

        Args:
            folder: Folder of the run.
            runtime: Gives the time, and waits.
            objects: Store of all accounts; None: the one that the team names.
        """
        accounting = Accounting.of(folder)
        if accounting.team is None:
            return None
        objects = objects or object_store(accounting.team.accounts, within_s=_STORAGE_S)
        return cls(account_name(folder), folder.settings, accounting, objects, runtime)

    def go_on(self, lines: Sequence[AccountLine], lost: Sequence[AccountLine] = ()) -> None:
        """Note what the run spent before: spending in another month does not count in this one.

        Args:
            lines: Every amount of the run so far.
            lost: Those of the lines that the journal lost, so that the policy does not know of them.
        """
        self._months = sums_by_month(lines)
        self._earlier = self._recent_months() & self._months.keys()
        self._lost_usd = math.fsum(line.usd for line in lost)

    def last_lines(self) -> list[AccountLine]:
        """Every amount of this month and the one before, as the run's account was written last.

        Raises:
            InputError: The account is damaged.
            OSError: The store does not answer.
        """
        damaged: dict[str, str] = {}
        accounts = [
            one
            for month in self._recent_months()
            for one in self._book.read(month, damaged)
            if one.name == self._name
        ]
        if self._name in damaged:
            raise InputError(damaged[self._name])
        return [line for one in accounts for line in one.lines]

    def _recent_months(self) -> set[str]:
        """This month and the one before."""
        at_s = self._runtime.epoch_s()
        return {month_of(at_s), *(month_of(at_s - days * DAY_S) for days in _MONTH_DAYS)}

    def check(self) -> None:
        """Read the others' accounts, and write this run's, before anything is rented.

        Raises:
            InputError: The accounts cannot be read or written, or the limits leave nothing.
        """
        try:
            self._read(_FIRST_READ_WITHIN_S)
        except OSError as error:
            raise InputError(f"the team's accounts in {self._team.accounts} cannot be read: {error}") from None
        room = self.room()
        if room.usd + self._lost_usd - math.fsum(self._months.values()) <= LEAST_USD:
            raise InputError(f"{room.usd_limit} is spent", field="team")
        # One that has spent nothing has no account: a store that cannot be written is told before it rents.
        if not self._months and (problem := self.note(list, 0, 0.0, "running")):
            raise InputError(f"the team's accounts in {self._team.accounts} cannot be written: {problem}")

    def room(self, *, reads: bool = True) -> Room:
        """Return what the limits leave now: by the accounts last read, or nothing once those are too old.

        Args:
            reads: Whether to read the accounts first, if that is due.
        """
        with self._lock:
            if reads:
                self._read_if_due()
            at_s = self._runtime.epoch_s()
            month, silence = month_of(at_s), self.silence
            earlier_usd = math.fsum(usd for name, usd in self._months.items() if name != month) - self._lost_usd
            found = Room()
            for whose, owner, limits in self._limits:
                others = [one for one in self._others.values() if owner in (None, one.owner)]
                if limits.monthly_budget_usd is not None:
                    usd = limits.monthly_budget_usd - math.fsum(
                        one.committed_usd(self._age_s(one)) for one in others
                    )
                    usd = 0.0 if silence else earlier_usd + max(usd, 0.0)
                    if usd < found.usd:
                        limit = silence or f"{whose} budget of {limits.monthly_budget_usd:g} USD for {month}"
                        found = replace(found, usd=usd, usd_limit=limit)
                if limits.machines is not None:
                    machines = limits.machines - sum(one.machines_left(self._age_s(one)) for one in others)
                    machines = 0 if silence else max(machines, 0)
                    if machines < found.machines:
                        limit = silence or f"{whose} quota of {limits.machines} machines"
                        found = replace(found, machines=machines, machines_limit=limit)
            return found

    def reserve(self, machines: int) -> bool:
        """Reserve this many machines in all, before more are requested; returns whether the quotas allow it."""
        with self._lock:
            if not self._has_quota:
                return True
            # Not known until the answer has come: whoever asks may be interrupted meanwhile.
            reserved, self._reserved = self._reserved, None
            try:
                self._check_is_there()
                is_free = self._quotas.write(
                    self._name, self._reservation(machines), partial(self._fits, machines)
                )
            except OSError as error:
                self._warn(f"no machines can be reserved of the team's quota: {error}; tried again")
                return False
            if is_free:
                self._granted = machines
            self._reserved = machines if is_free else reserved
            return is_free

    def holds(self, machines: int) -> bool:
        """Tell whether this many machines are reserved in all, or can be now.

        A resumed run may lack them: others may have taken what its former controller had reserved.
        """
        with self._lock:
            return machines <= self._granted or self.reserve(machines)

    def note(
        self,
        lines: Callable[[], Sequence[AccountLine]],
        machines: int,
        usd_per_hour: float,
        state: str,
        *,
        is_last: bool = False,
    ) -> str:
        """Write the run's account, if it is due.

        Args:
            lines: Gives every amount of the run so far.
            machines: Number of machines that it rents.
            usd_per_hour: What they cost now, USD per hour.
            state: State of the run, in words.
            is_last: Write the account in any case, since this is the last write.

        Returns:
            Why it could not be written; empty: it was written, or was not due.
        """
        with self._lock:
            for _ in range(_LAST_TRIES if is_last else 1):
                problem = self._note(lines, machines, usd_per_hour, state, is_last=is_last)
                if not problem or not is_last:
                    break
                self._runtime.sleep(_LAST_AGAIN_S)
            return problem

    def _note(
        self,
        lines: Callable[[], Sequence[AccountLine]],
        machines: int,
        usd_per_hour: float,
        state: str,
        *,
        is_last: bool,
    ) -> str:
        now_s, at_s = self._runtime.monotonic_s(), self._runtime.epoch_s()
        # Others wait for machines that this run releases, and must not count on those that it has begun to rent.
        has_changed = self._written != (machines, month_of(at_s)) or self._reserved != machines
        every_s = READ_EVERY_S if self._kept_s < self._written_s else 0.0 if has_changed else _WRITE_EVERY_S
        if not is_last and now_s - self._written_s < every_s:
            return ""
        self._written_s = now_s
        try:
            self._check_is_there()
            # A writer that saw an old list of versions may have replaced the table, and left this run out.
            if self._has_quota and (self._reserved != machines or not self._quotas.has(self._name, machines)):
                self._reserved = None
                self._quotas.write(self._name, self._reservation(machines))
            self._reserved, self._granted = machines, min(self._granted, machines)
            self._write(lines(), machines, usd_per_hour, state, at_s)
        except OSError as error:
            self._warn(f"the run's account cannot be written for the team: {error}; it is tried again")
            return str(error)
        self._kept_s, self._written = self._runtime.monotonic_s(), (machines, month_of(at_s))
        return ""

    def _write(
        self, lines: Sequence[AccountLine], machines: int, usd_per_hour: float, state: str, at_s: float
    ) -> None:
        before, self._months = self._months, {month_of(at_s): 0.0, **sums_by_month(lines)}
        settings, accounting = self._settings, self._accounting
        self._unwritten |= {
            month for month, usd in self._months.items() if month == month_of(at_s) or before.get(month) != usd
        }
        for month in sorted(self._unwritten):
            is_current = month == month_of(at_s)
            self._book.write(
                RunAccount(
                    self._name,
                    settings.run,
                    month,
                    accounting.owner,
                    accounting.tags,
                    settings.provider,
                    settings.policy,
                    state,
                    # A month that has only refunds for another month counts as zero.
                    max(self._months.get(month, 0.0), 0.0),
                    machines if is_current else 0,
                    usd_per_hour if is_current else 0.0,
                    at_s,
                    [line for line in lines if line.month == month],
                    settings.controller_limit_s,
                )
            )
            self._unwritten.discard(month)

    def _check_is_there(self) -> None:
        """Make sure that the store is that of the team: a folder may not be mounted any more.

        Raises:
            StorageError: The store lacks this run's account, which was written, and all others that are known.
            OSError: The store does not answer.
        """
        months = self._earlier if self._written is None else {self._written[1]}
        if not months or any(self._book.has(month, self._name) for month in months):
            return
        # A controller that has just begun knows no others yet.
        is_lost = self._written is not None or all(map(self._book.is_empty, months | self._recent_months()))
        if is_lost and not any(self._book.has(one.month, one.name) for one in self._others.values()):
            raise StorageError(f"{self._team.accounts} lacks the accounts that were there: is it mounted?")

    @property
    def _limits(self) -> list[tuple[str, str | None, TeamLimits]]:
        """Each set of limits: whose they are, the owner whose runs count (None: all), and the limits."""
        owner = self._accounting.owner
        own = self._team.owners.get(owner)
        return [("the team's", None, self._team), *([] if own is None else [(f"{owner}'s", owner, own)])]

    @property
    def has_budget(self) -> bool:
        """Tell whether money is limited, not only machines."""
        return any(limits.monthly_budget_usd is not None for _, _, limits in self._limits)

    @property
    def _carried_s(self) -> float:
        """Seconds into a month for which last month's account may tell of machines, if there is no newer one."""
        return _CLOCKS_S + max(self._settings.controller_limit_s, _UNATTENDED_S) + UNSEEN_S

    @property
    def _has_quota(self) -> bool:
        return any(limits.machines is not None for _, _, limits in self._limits)

    @property
    def silence(self) -> str:
        """Reason why the limits count as reached without the accounts; empty: those were available recently."""
        grace_s = self._settings.controller_limit_s
        if self._runtime.monotonic_s() - min(self._read_s, self._kept_s) <= grace_s:
            return ""
        return f"the grace of {grace_s:.0f} s without the team's accounts in {self._team.accounts}"

    def _reservation(self, machines: int) -> Reservation:
        limit_s = self._settings.controller_limit_s
        return Reservation(self._accounting.owner, machines, self._runtime.epoch_s(), limit_s)

    def _fits(self, machines: int, others: dict[str, Reservation]) -> bool:
        """Tell whether so many machines fit beside what others have reserved, or rent by their accounts."""
        at_s, known = self._runtime.epoch_s(), self._others
        for name, one in list(others.items()):
            if name in known:
                # The same host wrote both times, so its clock cancels out.
                age_s = self._age_s(known[name]) - max(one.at_epoch_s - known[name].at_epoch_s, 0.0)
            else:
                age_s = abs(at_s - one.at_epoch_s) - _CLOCKS_S
            if not counts(age_s, one.unattended_s):
                del others[name]
        for _, owner, limits in self._limits:
            if limits.machines is None:
                continue
            taken = {name: one.machines for name, one in others.items() if owner in (None, one.owner)}
            for name, account in known.items():
                if owner in (None, account.owner):
                    taken[name] = max(taken.get(name, 0), account.machines_left(self._age_s(account)))
            if machines + sum(taken.values()) > limits.machines:
                return False
        return True

    def _age_s(self, account: RunAccount) -> float:
        """Seconds since an account was written: since we saw that, or longer if clock skew cannot explain it."""
        at_s, since_s, has_changed = self._seen[account.name]
        seen_for_s = self._runtime.monotonic_s() - since_s
        return seen_for_s if has_changed else max(self._runtime.epoch_s() - at_s - _CLOCKS_S, seen_for_s)

    def _read_if_due(self) -> None:
        if self._runtime.monotonic_s() - self._tried_s >= READ_EVERY_S:
            try:
                self._read()
            except OSError as error:
                self._warn(f"the team's accounts cannot be read: {error}; those read last count")

    def _read(self, within_s: float = _READ_WITHIN_S) -> None:
        self._tried_s = self._runtime.monotonic_s()
        self._check_is_there()
        at_s, damaged = self._runtime.epoch_s(), dict[str, str]()
        month, before = month_of(at_s), month_of(at_s - self._carried_s)
        read = partial(self._book.read, lines=False, within_s=within_s)
        found = {one.name: one for one in read(month, damaged)}
        if before != month:
            # Others soon write their machines into the new month's account, unless their controller is gone.
            for one in read(before, {}):
                if one.machines:
                    found.setdefault(one.name, replace(one, month=month, spent_usd=0.0))
        for name, why in damaged.items():
            known = self._others.get(name)
            if known is not None:
                found[name] = known if known.month == month else replace(known, month=month, spent_usd=0.0)
            if name != self._name and self._damaged.get(name) != why:
                counted = "nothing was ever read of it" if known is None else "what was last read of it counts"
                _LOGGER.warning("%s; %s", why, counted)
        self._damaged = damaged
        found |= self._missing(found, month)
        found.pop(self._name, None)
        self._others = found
        self._read_s = self._runtime.monotonic_s()
        for name, one in found.items():
            seen = self._seen.get(name)
            if seen is None or seen[0] != one.at_epoch_s:
                self._seen[name] = (one.at_epoch_s, self._read_s, seen is not None)

    def _missing(self, found: Collection[str], month: str) -> dict[str, RunAccount]:
        """Missing accounts that still count for a while: a listing may be old, or the store not mounted."""
        now_s, grace_s = self._runtime.monotonic_s(), self._settings.controller_limit_s
        missing = {name: one for name, one in self._others.items() if name not in found and one.month == month}
        for name in sorted(missing.keys() - self._missing_s):
            _LOGGER.warning("the team's account of %s is gone; it counts for %.0f s more", name, grace_s)
        self._missing_s = {name: self._missing_s.get(name, now_s) for name in missing}
        return {name: one for name, one in missing.items() if now_s - self._missing_s[name] <= grace_s}

    def _warn(self, words: str) -> None:
        now_s = self._runtime.monotonic_s()
        if now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            _LOGGER.warning("%s", words)
