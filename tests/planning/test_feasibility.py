"""The search for the least budget and deadline that will do is bounded, whatever comes of what is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

from tests.markets import C3

from ebbtide.engine.outcome import Outcome
from ebbtide.planning.feasibility import Search
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.baselines import CheapestSpot
from ebbtide.policies.budget import WithinBudget


class Replays:
    """Runs of two hours for 1 USD, which a cap of less than `enough_usd` keeps from their end."""

    def __init__(self, enough_usd: float) -> None:
        self.enough_usd = enough_usd
        self.run = 0

    def __call__(self, policy: Policy, numbers: Sequence[int]) -> Iterator[Outcome]:
        for _ in numbers:
            self.run += 1
            capped = isinstance(policy, WithinBudget) and policy.budget_usd < self.enough_usd
            found: Any = SimpleNamespace(finished=not capped, makespan_s=7200.0, cost_usd=1.0)
            yield cast(Outcome, found)


def search(replays: Replays) -> Search:
    return Search((1.0, C3), lambda _deadline_h: CheapestSpot(), replays, 10_000)


def test_whatever_fails_the_search_ends_after_few_backtests() -> None:
    never = Replays(1e9)
    least = search(never).least(None, late=False)
    assert never.run <= 100
    assert least.least_budget_usd is None
    assert least.least_deadline_h == 2.0


def test_what_is_told_was_tried_and_did() -> None:
    replays = Replays(1.4)
    least = search(replays).least(None, late=False)
    assert least.least_budget_usd is not None
    assert 1.4 <= least.least_budget_usd < 1.7
    assert least.least_budget_takes_h == 2.0
    assert replays.run <= 100


def test_backtests_that_are_known_are_not_made_again() -> None:
    replays = Replays(0.0)
    looking = search(replays)
    looking.knows(2.0, tuple(replays(CheapestSpot(), range(30))))
    replays.run = 0
    least = looking.least(2.0, late=False)
    assert least.least_budget_usd == 1.0
    # The first few under a deadline of an hour, which is missed; then three with the cap.
    assert replays.run == 5 + 3
