"""Record a policy's decisions, and compare those of two runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from ebbtide.base.utc import iso
from ebbtide.engine.ledger import Ledger, LedgerLine
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View

# Tolerance of times, whose terms are summed in different orders.
SAME_S = 1e-6
# Tolerance of prices and amounts.
SAME_USD = 1e-9


@dataclass(frozen=True)
class Decision:
    """A call of a policy, with its answer.

    Attributes:
        time_s: Time of the call, seconds since 1970.
        events: Events that caused the call, in order.
        actions: Actions that the policy answered, in order.
    """

    time_s: float
    events: tuple[Event, ...]
    actions: list[Action] = field(default_factory=list)

    def __str__(self) -> str:
        events = ", ".join(map(_event_text, self.events))
        return (
            f"{iso(self.time_s)} ({self.time_s!r}): {events} -> {', '.join(map(str, self.actions)) or 'nothing'}"
        )


class Recorded:
    """Wraps a policy and records its decisions, without changing it otherwise.

    Args:
        policy: The policy that decides.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.decisions: list[Decision] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    @property
    def name(self) -> str:
        return self._policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self._policy.wakes_on

    def decide(self, view: View) -> Iterable[Action]:
        decision = Decision(view.now_s, tuple(view.events))
        self.decisions.append(decision)
        for action in self._policy.decide(view):
            decision.actions.append(action)
            yield action


@dataclass(frozen=True)
class Difference:
    """A decision that differs between a replay and a live run.

    Attributes:
        number: Number of the decision, from 0.
        replayed: Decision of the replay; None: it had no more.
        lived: Decision of the live run; None: it had no more.
    """

    number: int
    replayed: Decision | None
    lived: Decision | None

    def __str__(self) -> str:
        return f"decision {self.number}\n  replay: {self.replayed}\n  live:   {self.lived}"


def differences(replayed: Sequence[Decision], lived: Sequence[Decision]) -> list[Difference]:
    """Return each decision whose time, events or actions differ from that of the same number in the other run."""
    return [
        Difference(number, one, other)
        for number, (one, other) in enumerate(zip_longest(replayed, lived))
        if one is None or other is None or not _is_same(one, other)
    ]


def ledger_difference_usd(replayed: Ledger, lived: Ledger) -> float:
    """Sum the differences between the lines of two ledgers, USD; lines for different things count in full.

    Each lease's lines are compared in order; leases that end at the same moment may be charged in any order.
    """
    total_usd = 0.0
    of_both = (sorted(ledger.lines, key=lambda line: line.lease_id) for ledger in (replayed, lived))
    for one, other in zip_longest(*of_both):
        if one is None or other is None or not _is_same_line(one, other):
            total_usd += sum(abs(line.usd) for line in (one, other) if line is not None)
        elif abs(one.usd - other.usd) > SAME_USD:
            total_usd += abs(one.usd - other.usd)
    return total_usd


def _is_same(one: Decision, other: Decision) -> bool:
    return (
        is_near(one.time_s, other.time_s, SAME_S)
        and len(one.events) == len(other.events)
        and all(map(_is_same_event, one.events, other.events))
        and len(one.actions) == len(other.actions)
        and all(map(_is_same_action, one.actions, other.actions))
    )


def _is_same_event(one: Event, other: Event) -> bool:
    """Return whether two events have the same kind, subject and time; their details may differ."""
    subjects = [(event.wake, event.lease_id, event.job_id, event.market) for event in (one, other)]
    return subjects[0] == subjects[1] and is_near(one.time_s, other.time_s, SAME_S)


def _is_same_action(one: Action, other: Action) -> bool:
    if type(one) is not type(other):
        return False
    # Skip fields such as reasons, which do not change the action.
    pairs = [
        (getattr(one, each.name), getattr(other, each.name), each.name) for each in fields(one) if each.compare
    ]
    return all(
        is_near(before, after, SAME_S if name.endswith("_s") else SAME_USD)
        if isinstance(before, float) and isinstance(after, float)
        else list(before) == list(after)
        if name == "leases"
        else before == after
        for before, after, name in pairs
    )


def _is_same_line(one: LedgerLine, other: LedgerLine) -> bool:
    """Return whether two lines are for the same time of the same lease, at the same price."""
    about = [(line.entry, line.lease_id, line.market, line.on_demand) for line in (one, other)]
    # An amount without a price must have none in either line.
    prices = [math.nan if line.price_usd_per_hour is None else line.price_usd_per_hour for line in (one, other)]
    return (
        about[0] == about[1]
        and is_near(one.start_s, other.start_s, SAME_S)
        and is_near(one.end_s, other.end_s, SAME_S)
        and is_near(prices[0], prices[1], SAME_USD)
    )


def is_near(one: float, other: float, within: float) -> bool:
    """Return whether two numbers differ by at most `within`; equal infinities, and two NaN, count as equal."""
    return one == other or (math.isnan(one) and math.isnan(other)) or abs(one - other) <= within


def _event_text(event: Event) -> str:
    about = [
        f"lease {event.lease_id}" if event.lease_id >= 0 else "",
        f"job {event.job_id}" if event.job_id >= 0 else "",
        str(event.market or ""),
    ]
    return " ".join(filter(None, [str(event.wake), *about]))
