"""Exponential back-off from markets that refuse machines: the next best is tried at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ebbtide.errors import InputError
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.policies.api.actions import Action, Request, WakeAt
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View

# Beyond so many, any time is as long as it may be, and the power would be too large for a number.
_MOST_DOUBLINGS = 64.0


@dataclass(frozen=True)
class RefusedMarkets:
    """Markets that have just refused a machine, as kept in a policy's memory.

    Refusals of spot and on-demand machines are counted apart: a market without spot capacity may have on-demand
    capacity.

    Attributes:
        view: What the policy sees.
        first_s: Back-off after a market's first refusal, seconds; it doubles with each further refusal in a row.
        longest_s: The longest back-off, seconds.
        key: Key in the memory; a policy and a wrapper around it use different keys.
    """

    view: View
    first_s: float
    longest_s: float
    key: str = "refused"

    def note(self) -> Iterator[WakeAt]:
        """Take note of this decision's refusals and successes, and ask to be woken when a market may be asked."""
        for event in self.view.events:
            if event.wake is Wake.LAUNCH_FAILED:
                lease = self.view.lease(event.lease_id)
                key = _key(lease.market, lease.on_demand)
                times = self._refused.get(key, [0.0, 0.0])[1] + 1.0
                doubled = 2.0 ** min(times - 1.0, _MOST_DOUBLINGS)
                until_s = self.view.now_s + min(self.first_s * doubled, self.longest_s)
                self._refused[key] = [until_s, times]
                yield WakeAt(until_s)
            elif event.wake is Wake.RUNNING:
                lease = self.view.lease(event.lease_id)
                self._refused.pop(_key(lease.market, lease.on_demand), None)

    def may_ask(self, market: Market, on_demand: bool) -> bool:
        """Return whether a market may be asked for a machine now."""
        return self._refused.get(_key(market, on_demand), [0.0])[0] <= self.view.now_s

    @property
    def is_any(self) -> bool:
        """True if some market may not be asked now."""
        return any(until_s > self.view.now_s for until_s, _ in self._refused.values())

    @property
    def _refused(self) -> dict[str, list[float]]:
        """By market: when it may be asked again, and the number of refusals in a row."""
        refused: dict[str, list[float]] = self.view.memory.setdefault(self.key, {})
        return refused


@dataclass(frozen=True)
class BacksOff:
    """Wraps another policy and hides from it, for a while, markets that have just refused a machine.

    The time doubles with each refusal in a row. If every market refuses, the policy sees them all, but its
    requests are passed on only when their time is over. Refusals of spot and on-demand machines are counted apart:
    a market without spot capacity may have on-demand capacity.

    Attributes:
        policy: The policy that decides what to rent.
        first_s: How long a market is hidden after its first refusal, seconds.
        longest_s: The longest time that a market is hidden, seconds.
    """

    policy: Policy
    first_s: float = 120.0
    longest_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s:
            raise InputError(f"need 0 < first_s <= longest_s, not {self.first_s:g} and {self.longest_s:g}")

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on

    @property
    def period_lead_s(self) -> float:
        """Seconds before the end of a charge period at which the policy is woken."""
        return float(getattr(self.policy, "period_lead_s", 0.0))

    def decide(self, view: View) -> Iterable[Action]:
        refusals = RefusedMarkets(view, self.first_s, self.longest_s, "backed_off")
        yield from refusals.note()
        if not refusals.is_any:
            yield from self.policy.decide(view)
            return
        gives = refusals.may_ask

        # Each action is passed on before the policy is asked for the next: it may look at what has come of it.
        shown = [market for market in view.markets if gives(market, False) and gives(market, True)]
        if not shown:
            for action in self.policy.decide(view):
                if not isinstance(action, Request) or (action.on_demand and gives(action.market, True)):
                    yield action
            return
        if len(shown) == len(view.markets):
            # Those that have refused have no price at the moment.
            yield from self.policy.decide(view)
            return
        events = list(view.events)
        if any(event.wake is Wake.LAUNCH_FAILED for event in events):
            # Other markets are left, so the policy should try again now.
            events.append(Event(Wake.TIMER, view.now_s))
        seen: Any = _Shown(view, shown, events)
        yield from self.policy.decide(seen)


def backing_off(policy: Policy) -> Policy:
    """The policy, backing off from markets that refuse: as it is if it does so itself, else in `BacksOff`."""
    return policy if _backs_off(policy) else BacksOff(policy)


def _backs_off(policy: Any) -> bool:
    if hasattr(policy, "groups"):
        return all(_backs_off(group.policy) for group in policy.groups)
    inner = getattr(policy, "policy", None)
    return bool(getattr(policy, "backs_off", False)) or (inner is not None and _backs_off(inner))


class _Shown:
    """A view that shows only some of the markets."""

    def __init__(self, view: View, markets: Sequence[Market], events: Sequence[Event]) -> None:
        self._view = view
        self.markets, self.events = markets, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


@lru_cache(maxsize=65_536)
def _key(market: Market, on_demand: bool) -> str:
    way = ["on-demand"] if on_demand else []
    return "/".join([*(str(getattr(market, name)) for name in MARKET_FIELDS), *way])
