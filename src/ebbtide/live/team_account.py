"""A run's account with its team: kept up to date by its controller, which obeys the common limits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ebbtide.errors import InputError
from ebbtide.live.account_book import READ_EVERY_S, Account, AccountBook, account_name
from ebbtide.live.account_lines import AccountLine, month_of, sums_by_month
from ebbtide.live.runtime import Runtime
from ebbtide.live.settings import LiveSettings, RunFolder
from ebbtide.live.storage import object_store
from ebbtide.live.team import Accounting, Team
from ebbtide.policies.api.actions import Action, Hold, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.view import View
from ebbtide.policies.budget import WithinBudget

_LOGGER = logging.getLogger(__name__)

# An account is written so often; at its end a run writes it once more.
_WRITE_EVERY_S = 30.0
_WARN_EVERY_S = 300.0
# A request that the quota of machines did not leave room for is made again after so long.
_AGAIN_S = 60.0
# With a common budget the others' accounts are looked at so often while machines are rented, seconds.
LOOK_EVERY_S = 60.0
# Times closer than this are the same, seconds.
_SAME_S = 1e-6
# Less than this is nothing, USD: a limit of zero is none that a policy can be given.
_LEAST_USD = 1e-6


@dataclass(frozen=True)
class Room:
    """What a team's limits leave to a run now.

    Attributes:
        usd: The most that the run may have spent in all, USD; infinity: there is no limit.
        machines: The most machines that it may rent at once; infinity: there is no limit.
        usd_limit: Whose budget binds, in words.
        machines_limit: Whose quota binds, in words.
    """

    usd: float = math.inf
    machines: float = math.inf
    usd_limit: str = ""
    machines_limit: str = ""


class Reader(Protocol):
    """Gives what a team's limits leave to a run now."""

    def room(self) -> Room:
        """What is left."""
        ...


class TeamAccount:
    """The account of one run with its team.

    Args:
        name: Name of the run's account.
        settings: What the run was started with.
        accounting: Whose it is, and the limits of its team.
        book: Where all accounts are kept.
        runtime: Gives the time.
    """

    def __init__(
        self, name: str, settings: LiveSettings, accounting: Accounting, book: AccountBook, runtime: Runtime
    ) -> None:
        assert accounting.team is not None
        self._name = name
        self._settings, self._accounting, self._book, self._runtime = settings, accounting, book, runtime
        self._team: Team = accounting.team
        self._others: list[Account] = []
        self._read_s = self._written_s = self._warned_s = -math.inf
        self._months: dict[str, float] = {}
        self._unwritten: set[str] = set()

    @classmethod
    def of(cls, folder: RunFolder, runtime: Runtime) -> TeamAccount | None:
        """The account of a run; None: it is of no team."""
        accounting = Accounting.of(folder)
        if accounting.team is None:
            return None
        book = AccountBook(object_store(accounting.team.accounts))
        return cls(account_name(folder), folder.settings, accounting, book, runtime)

    def limited(self, policy: Policy) -> Policy:
        """The policy, kept within what the team's limits leave."""
        return WithinTeam(policy, self, self._has_budget)

    def go_on(self, lines: Sequence[AccountLine]) -> None:
        """Take note of what the run spent before: what was in another month is none of this one's.

        Args:
            lines: Every amount of the run so far.
        """
        self._months = sums_by_month(lines)

    def check(self) -> None:
        """Read the others' accounts before anything is rented.

        Raises:
            InputError: They cannot be read, or the limits leave nothing.
        """
        try:
            self._read()
        except OSError as error:
            raise InputError(f"the team's accounts in {self._team.accounts} cannot be read: {error}") from None
        room = self.room()
        if room.usd - math.fsum(self._months.values()) <= _LEAST_USD:
            raise InputError(f"{room.usd_limit} is spent", field="team")

    def room(self) -> Room:
        """What the limits leave now; where the store does not answer, by what was read last."""
        now_s = self._runtime.monotonic_s()
        if now_s - self._read_s >= READ_EVERY_S:
            try:
                self._read()
            except (OSError, InputError) as error:
                self._warn(f"the team's accounts cannot be read: {error}; those read last count")
        at_s, owner = self._runtime.epoch_s(), self._accounting.owner
        month = month_of(at_s)
        earlier_usd = math.fsum(usd for name, usd in self._months.items() if name != month)
        mine = [one for one in self._others if one.owner == owner]
        found = Room()
        for whose, limits, others in (
            ("the team's", self._team, self._others),
            (f"{owner}'s", self._team.owners.get(owner), mine),
        ):
            if limits is None:
                continue
            if limits.monthly_budget_usd is not None:
                usd = limits.monthly_budget_usd - math.fsum(one.committed_usd(at_s) for one in others)
                if earlier_usd + max(usd, 0.0) < found.usd:
                    limit = f"{whose} budget of {limits.monthly_budget_usd:g} USD for {month}"
                    found = replace(found, usd=earlier_usd + max(usd, 0.0), usd_limit=limit)
            if limits.machines is not None:
                machines = limits.machines - sum(one.machines for one in others)
                if machines < found.machines:
                    limit = f"{whose} quota of {limits.machines} machines"
                    found = replace(found, machines=max(machines, 0), machines_limit=limit)
        return found

    def note(
        self,
        lines: Callable[[], Sequence[AccountLine]],
        machines: int,
        usd_per_hour: float,
        state: str,
        *,
        is_last: bool = False,
    ) -> None:
        """Write the run's account, if it is time.

        Args:
            lines: Gives every amount of the run so far.
            machines: Number of machines that it rents.
            usd_per_hour: What they cost now, USD per hour.
            state: What the run does.
            is_last: Write it in any case: nothing follows.
        """
        now_s = self._runtime.monotonic_s()
        if not is_last and now_s - self._written_s < _WRITE_EVERY_S:
            return
        self._written_s = now_s
        at_s, all_lines = self._runtime.epoch_s(), lines()
        before, self._months = self._months, {month_of(at_s): 0.0, **sums_by_month(all_lines)}
        settings, accounting = self._settings, self._accounting
        for month, spent_usd in self._months.items():
            is_current = month == month_of(at_s)
            if not is_current and before.get(month) == spent_usd and month not in self._unwritten:
                continue
            self._unwritten.discard(month)
            account = Account(
                self._name,
                settings.run,
                month,
                accounting.owner,
                accounting.tags,
                settings.provider,
                settings.policy,
                state,
                spent_usd,
                machines if is_current else 0,
                usd_per_hour if is_current else 0.0,
                at_s,
                [line for line in all_lines if line.month == month],
            )
            try:
                self._book.write(account)
            except OSError as error:
                self._unwritten.add(month)
                self._warn(f"the run's account cannot be written for the team: {error}; it is tried again")

    @property
    def _has_budget(self) -> bool:
        own = self._team.owners.get(self._accounting.owner)
        return self._team.monthly_budget_usd is not None or (
            own is not None and own.monthly_budget_usd is not None
        )

    def _read(self) -> None:
        accounts = self._book.read(month_of(self._runtime.epoch_s()), lines=False)
        self._others = [one for one in accounts if one.name != self._name]
        self._read_s = self._runtime.monotonic_s()

    def _warn(self, words: str) -> None:
        now_s = self._runtime.monotonic_s()
        if now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            _LOGGER.warning("%s", words)


@dataclass(frozen=True)
class WithinTeam:
    """Wraps a policy and passes on its requests while its team's limits leave room.

    Attributes:
        policy: The policy that decides what to rent.
        reader: Gives what the limits leave.
        has_budget: Whether money is limited, not machines alone.
    """

    policy: Policy
    reader: Reader
    has_budget: bool
    # Whether this controller has asked the policy: a run that is resumed begins with a timer that nobody has set.
    _begun: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on | ({Wake.PRICE} if self.has_budget else frozenset())

    @property
    def period_lead_s(self) -> float:
        """How long before the end of a charge period the policy is woken, seconds."""
        return float(getattr(self.policy, "period_lead_s", 0.0))

    def decide(self, view: View) -> Iterable[Action]:
        room = self.reader.room()
        policy: Policy = self.policy if self._is_asked(view) else _Silent(self.name)
        if self.has_budget:
            # Another run of the team may spend what this one counted on: the limit is another at each look.
            budget_usd, whose = max(room.usd, _LEAST_USD), room.usd_limit or "team's budget"
            policy = WithinBudget(policy, budget_usd, "team_budget", whose)
        yield from self._in_number(view, policy.decide(view), room)
        if self.has_budget and view.leases and self._own(view).get("look_s", -math.inf) <= view.now_s:
            self._own(view)["look_s"] = view.now_s + LOOK_EVERY_S
            self._own(view).setdefault("looks", []).append(view.now_s + LOOK_EVERY_S)
            yield WakeAt(view.now_s + LOOK_EVERY_S)

    @staticmethod
    def _own(view: View) -> dict[str, Any]:
        """What this wrapper remembers."""
        memory: dict[str, Any] = view.memory.setdefault("team", {})
        return memory

    def _is_asked(self, view: View) -> bool:
        """Whether the policy within is meant: not where time has passed that it did not ask for."""
        own = self._own(view)
        wakes = own.setdefault("wakes", [])
        is_other = any(event.wake is not Wake.TIMER for event in view.events)
        is_first = not self._begun
        if is_first:
            self._begun.append(True)
        if not any(event.wake is Wake.TIMER for event in view.events):
            return True
        looks = own.setdefault("looks", [])
        own["wakes"] = [time_s for time_s in wakes if time_s > view.now_s + _SAME_S]
        own["looks"] = [time_s for time_s in looks if time_s > view.now_s + _SAME_S]
        # The engine has timers of its own, which are meant for the policy; a look alone is not.
        is_look = len(own["looks"]) < len(looks) and len(own["wakes"]) == len(wakes)
        return is_first or is_other or not is_look

    def _in_number(self, view: View, actions: Iterable[Action], room: Room) -> Iterator[Action]:
        for action in actions:
            if isinstance(action, WakeAt):
                self._own(view).setdefault("wakes", []).append(action.time_s)
            if not isinstance(action, Request) or math.isinf(room.machines):
                yield action
                continue
            free = int(room.machines) - len(view.leases)
            if free >= action.count:
                yield action
            else:
                # Machines that work as one are of no use in part.
                if action.job is not None:
                    yield Hold(action.job, Reason(f"{room.machines_limit} leaves none for it now"))
                self._own(view)["wakes"].append(view.now_s + _AGAIN_S)
                yield WakeAt(view.now_s + _AGAIN_S)


@dataclass(frozen=True)
class _Silent:
    """A policy that answers nothing."""

    name: str
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:  # noqa: ARG002
        return ()
