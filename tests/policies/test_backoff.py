"""Backing off from markets that refuse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.policies.backoff import BacksOff, backing_off
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.registry import policy
from ebbtide.testing.scripted import replay

HOURS = 100.0
PRICES = history({C3: [(0, 0.03)], R3: [(0, 0.05)]}, hours=HOURS)
BRIEF = history({C3: [(0, 0.03)], R3: [(0, 0.05)]}, hours=2.0)


def capacity(*points: tuple[float, int]) -> CapacitySeries:
    """From (seconds after START_S, machines) pairs."""
    times, nodes = zip(*points, strict=True)
    return CapacitySeries(START_S + np.array(times, dtype=float), np.array(nodes), START_S + HOURS * 3600)


def asked(outcome: eb.types.Outcome) -> Sequence[tuple[str, float]]:
    """Which type was asked for when, in seconds after START_S."""
    return [(lease.market.instance_type, lease.requested_s - START_S) for lease in outcome.leases]


def test_the_next_best_is_asked_at_once() -> None:
    availability = Availability({C3: capacity((0, 0))})
    outcome = replay(BacksOff(policy("spottune")), [job(600)], PRICES, availability=availability)
    assert outcome.finished
    # The answer comes after twenty seconds.
    assert asked(outcome) == [("c3.xlarge", 0.0), ("r3.large", 20.0)]
    # It asks again and again, until the prices end.
    alone = replay(policy("spottune"), [job(600)], BRIEF, availability=availability)
    assert not alone.finished


def test_one_that_refuses_is_asked_again_later_and_later() -> None:
    none = Availability({C3: capacity((0, 0), (1_000, 1)), R3: capacity((0, 0), (90_000, 1))})
    outcome = replay(BacksOff(policy("spottune"), first_s=100.0), [job(600)], PRICES, availability=none)
    assert outcome.finished
    times = [at for kind, at in asked(outcome) if kind == "c3.xlarge"]
    # It is answered twenty seconds later.
    assert times[-1] + 20 >= 1_000
    gaps = np.diff(times)
    assert gaps[0] >= 100
    assert gaps[-1] > gaps[0]


def test_a_market_that_never_gives_is_asked_until_the_end() -> None:
    """More refusals in a row than a power of two may have as its exponent."""
    never, alone = Availability({C3: capacity((0, 0))}), history({C3: [(0, 0.03)]}, hours=30.0)
    outcome = replay(
        BacksOff(policy("spottune"), first_s=60.0, longest_s=60.0), [job(600)], alone, availability=never
    )
    assert len(outcome.leases) > 1_100
    assert outcome.cost_usd == 0.0


def test_where_none_refuses_nothing_changes() -> None:
    plain = replay(policy("spottune"), [job(3600)], PRICES)
    assert asked(replay(BacksOff(policy("spottune")), [job(3600)], PRICES)) == asked(plain)


def test_times_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="need 0 < first_s <= longest_s, not 10 and 5"):
        BacksOff(policy("spottune"), first_s=10.0, longest_s=5.0)


def test_who_backs_off_by_itself_is_not_wrapped() -> None:
    own = policy("ebbtide")
    assert backing_off(own) is own
    within = WithinBudget(own, 5.0)
    assert backing_off(within) is within
    assert isinstance(backing_off(policy("spottune")), BacksOff)
