"""Spending gate of a run: checks every limit, the run's own and its team's, without the journal.

The policy itself keeps the run's own budget, and the gate cuts its requests to what the team's limits leave.
Between decisions, the gate is asked by the controller, at each poll (so before each request to the cloud) and
while it waits for its journal, and by the attendant while a policy decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from ebbtide.base.runtime import Runtime
from ebbtide.controller.team.account import LEAST_USD, Reader, Room, TeamAccount
from ebbtide.errors import CloudError, InputError
from ebbtide.policies.api.actions import Action, Hold, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.view import View
from ebbtide.policies.budget import WithinBudget

# Seconds after which a request that exceeded the machine quota is made again.
_AGAIN_S = 60.0
# Reading the team's accounts at polls may take only one part in this many of the time.
_READING_SHARE = 20.0


class SpendingGate:
    """Every limit of a run: once one is reached, the gate stays closed for this controller.

    Args:
        policy: The policy that decides.
        budget_usd: The run's own budget, USD; None: it has none.
        account: The run's account with its team; None: it has no team.
        lead_s: Market seconds that may pass between two checks.
        runtime: Gives the time.

    Attributes:
        why: The limit that is reached, in words; empty: none is.
    """

    def __init__(
        self,
        policy: Policy,
        budget_usd: float | None,
        account: TeamAccount | None,
        lead_s: float,
        runtime: Runtime,
    ) -> None:
        self._policy, self._account, self._lead_s, self._runtime = policy, account, lead_s, runtime
        self._own = WithinBudget(policy, budget_usd) if budget_usd else None
        # By budget, until when it pays for all machines, as last known: prices are not always known.
        self._until_s: dict[str, float] = {}
        self._read_s, self._reading_s = -math.inf, 0.0
        self.why = ""

    def limited(self, unended: Callable[[], int]) -> Policy:
        """The policy, limited to what the team's limits leave.

        Args:
            unended: Gives the number of machines that still run although their end was requested.
        """
        if self._account is None:
            return self._policy
        return WithinTeam(self._policy, self._account, self._account.has_budget, unended)

    def check(self) -> None:
        """Check the team's limits before anything is rented.

        Raises:
            InputError: They leave nothing, or cannot be known.
        """
        if self._account is not None:
            self._account.check()

    def closes_at_poll(self, view: View) -> bool:
        """Tell whether the team's budget is reached; the policy, which decides meanwhile, keeps the run's own."""
        now_s = self._runtime.monotonic_s()
        if not self.why and self._account is not None:
            # Otherwise the accounts read last count, and what their machines have cost since.
            is_due = now_s - self._read_s >= _READING_SHARE * self._reading_s
            reads = is_due or bool(self._account.silence)
            self.why = self._by_team(view, reads=reads)
            if reads:
                self._read_s = self._runtime.monotonic_s()
                self._reading_s = self._read_s - now_s
        return bool(self.why)

    def closes(self, view: View, when: str) -> bool:
        """Tell whether any budget is reached.

        Args:
            view: The view of a policy.
            when: What the controller waits for, in words for its user.
        """
        if not self.why:
            why = self._by_own(view) or self._by_team(view)
            self.why = f"{why} while {when}" if why else ""
        return bool(self.why)

    def _by_own(self, view: View) -> str:
        if self._own is None or not self._is_passed(self._own, view):
            return ""
        return f"budget of {self._own.budget_usd:g} USD reached"

    def _by_team(self, view: View, *, reads: bool = True) -> str:
        if self._account is None:
            return ""
        room = self._account.room(reads=reads)
        if not self._account.has_budget:
            # Others soon stop counting these machines, and rent what the quota leaves them.
            silence = self._account.silence
            return f"{silence} reached" if silence and view.leases else ""
        return f"{room.usd_limit} reached" if self._is_passed(_within(self._policy, room), view) else ""

    def _is_passed(self, limit: WithinBudget, view: View) -> bool:
        if not view.leases:
            return False
        # Prices may not be known at the moment.
        with suppress(CloudError, InputError):
            self._until_s[limit.key] = limit.affordable_until_s(view)
        return self._until_s.get(limit.key, math.inf) <= view.now_s + self._lead_s


def _within(policy: Policy, room: Room) -> WithinBudget:
    """The policy limited to what the team's budget leaves now, from which other runs spend as well."""
    return WithinBudget(policy, max(room.usd, LEAST_USD), "team_budget", room.usd_limit or "team's budget")


@dataclass(frozen=True)
class WithinTeam:
    """Wraps a policy and passes on its requests while its team's limits leave room.

    Attributes:
        policy: The policy that decides what to rent.
        reader: Gives what the limits leave.
        has_budget: Whether money is limited, not only machines.
        unended: Gives the number of machines that still run although their end was requested.
    """

    policy: Policy
    reader: Reader
    has_budget: bool
    unended: Callable[[], int] = lambda: 0

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on | ({Wake.PRICE} if self.has_budget else frozenset())

    @property
    def period_lead_s(self) -> float:
        """Seconds before the end of a charge period at which the policy is woken."""
        return float(getattr(self.policy, "period_lead_s", 0.0))

    def decide(self, view: View) -> Iterable[Action]:
        room = self.reader.room()
        policy = _within(self.policy, room) if self.has_budget else self.policy
        yield from self._in_number(view, policy.decide(view), room)

    def _in_number(self, view: View, actions: Iterable[Action], room: Room) -> Iterator[Action]:
        for action in actions:
            if not isinstance(action, Request) or math.isinf(room.machines):
                yield action
                continue
            wanted = len(view.leases) + self.unended() + action.count
            # Do not try to reserve what is known to be taken.
            if wanted <= room.machines and self.reader.reserve(wanted):
                yield action
            else:
                # Part of a gang is of no use.
                if action.job is not None:
                    yield Hold(action.job, Reason(f"{room.machines_limit} leaves none for it now"))
                yield WakeAt(view.now_s + _AGAIN_S)
