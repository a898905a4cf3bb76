"""A policy sees everything and can change nothing: whatever it tries, the books are those of an honest run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.markets import START_S, history

import ebbtide as eb
from ebbtide.errors import PolicyError
from ebbtide.policies.api.actions import Action, WakeAt
from ebbtide.policies.api.view import View
from ebbtide.policies.baselines import Reactive

C3 = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
PRICES = history({C3: [(0, 0.05), (3_600, 0.06), (7_200, 0.05)]})


def job() -> eb.Job:
    return eb.Job(name="one", steps=3_000, steps_per_hour={"c3.xlarge": 1_000.0})


def _set(found: object, name: str, value: object) -> None:
    setattr(found, name, value)


def _reset(found: object, name: str, value: object) -> None:
    object.__setattr__(found, name, value)


# Each tries to finish the job, to lower what it costs, or to stop the engine. Asked again and again.
ATTEMPTS: dict[str, Callable[[View], object]] = {
    "set a job's saved steps": lambda view: _set(view.jobs[0], "steps_saved", 3_000.0),
    "set them past the class": lambda view: _reset(view.jobs[0], "steps_saved", 3_000.0),
    "set a job's steps done": lambda view: _set(view.jobs[0], "steps_done", 3_000.0),
    "say that a job is finished": lambda view: _set(view.jobs[0], "finished_s", view.now_s),
    "delete a job's steps": lambda view: delattr(view.jobs[0], "steps_lost"),
    "write into the steps by lease": lambda view: view.jobs[0].steps_on.__setitem__(0, 9e9),  # type: ignore[attr-defined]
    "empty a job's leases": lambda view: view.jobs[0].leases.clear(),  # type: ignore[attr-defined]
    "append a transfer": lambda view: view.jobs[0].transfers.append(None),  # type: ignore[attr-defined]
    "make the job shorter": lambda view: _set(view.jobs[0].job, "steps", 1.0),
    "make the job shorter past the class": lambda view: _reset(view.jobs[0].job, "steps", 1.0),
    "make machines faster": lambda view: view.jobs[0].job.steps_per_hour.update({"c3.xlarge": 9e9}),
    "replace the job": lambda view: view.jobs.__setitem__(0, None),  # type: ignore[attr-defined]
    "begin a lease later": lambda view: [_set(lease, "started_s", view.now_s) for lease in _some(view.leases)],
    "begin it later past the class": lambda view: [
        _reset(one, "started_s", view.now_s) for one in _some(view.leases)
    ],
    "say that a lease was revoked": lambda view: [_set(lease, "state", "revoked") for lease in _some(view.leases)],
    "copy a lease with another price": lambda view: [
        dataclasses.replace(lease, market=None)
        for lease in _some(view.leases)  # type: ignore[type-var]
    ],
    "forget the leases": lambda view: view.leases.clear(),  # type: ignore[attr-defined]
    "run the engine": lambda view: view.run(),  # type: ignore[attr-defined]
    "give the run up": lambda view: view.give_up("mine"),  # type: ignore[attr-defined]
    "reach for the engine": lambda view: view._engine,  # type: ignore[attr-defined]
    "reach for a job's progress": lambda view: view.jobs[0]._progress,  # type: ignore[attr-defined]
    "reach for a lease's record": lambda view: [lease._lease for lease in _some(view.leases)],  # type: ignore[attr-defined]
    "reach into its dictionary": lambda view: view.__dict__,
    "put another price in": lambda view: view.past_prices(C3, 3_600.0)[1].__setitem__(0, 0.0),
    "change the rule of charging": lambda view: _set(view.billing, "period_s", 1e9),
    "change the clock": lambda view: _set(view, "now_s", START_S + 1e9),
    "change what was spent": lambda view: _set(view, "spent_usd", 0.0),
    "put an event of its own in": lambda view: view.events.append(None),  # type: ignore[attr-defined]
    "take a market away": lambda view: view.markets.clear(),  # type: ignore[attr-defined]
    "pickle the view": lambda view: view.__reduce__(),
    "make recorded prices writable": lambda view: _overwrite(view.past_prices(C3, 1e9)[1]),
    "charge nothing": lambda view: _reset(view.billing, "bill", lambda *_: None),
    "charge rarely past the class": lambda view: _reset(view.billing, "period_s", 1e-9),
}

# Of copies that are this run's alone, and not in the books: they may be written, to no avail.
HARMLESS = {
    "make the job shorter past the class",
    "make machines faster",
    "make recorded prices writable",
    "charge nothing",
    "charge rarely past the class",
}


def _overwrite(prices: Any) -> None:
    prices.flags.writeable = True
    prices[:] = 1e-6
    while isinstance(prices.base, np.ndarray):
        prices = prices.base
        prices.flags.writeable = True
        prices[:] = 1e-6


def _some(leases: Iterable[object]) -> Iterable[object]:
    found = list(leases)
    if not found:
        raise AttributeError("no lease yet")
    return found


@dataclass(frozen=True)
class Hostile(Reactive):
    """Tries it whenever it is asked, and goes on as if nothing were."""

    attempt: str = ""
    came: list[bool] = field(default_factory=list)

    def decide(self, view: View) -> Iterable[Action]:
        try:
            ATTEMPTS[self.attempt](view)
            self.came.append(True)
        except (AttributeError, TypeError, ValueError, LookupError):
            self.came.append(False)
        yield from Reactive.decide(self, view)
        yield WakeAt(view.now_s + 600.0)


@dataclass(frozen=True)
class Honest(Reactive):
    """Asked as often."""

    def decide(self, view: View) -> Iterable[Action]:
        yield from Reactive.decide(self, view)
        yield WakeAt(view.now_s + 600.0)


def replayed(policy: eb.policies.Policy) -> eb.types.Outcome:
    result = eb.backtest(job(), [policy], PRICES, billing="ec2-second", starts=[START_S])
    (outcome,) = result.outcomes[policy.name]
    return outcome


@pytest.mark.parametrize("attempt", sorted(HARMLESS))
def test_what_one_run_writes_into_its_copies_no_other_run_sees(attempt: str) -> None:
    """Two starts and an honest policy beside it, in one process, on one job, one record and one billing rule."""
    shared, prices = job(), history({C3: [(0, 0.05), (3_600, 0.06), (7_200, 0.05)]}, hours=48)
    starts = [START_S, START_S + 7200.0]
    alone = eb.backtest(job(), [Honest()], prices, billing="ec2-second", starts=starts).outcomes["reactive"]

    @dataclass(frozen=True)
    class Named(Hostile):
        name: str = "hostile"

    both = eb.backtest(shared, [Named(attempt=attempt), Honest()], prices, billing="ec2-second", starts=starts)
    for name in ("hostile", "reactive"):
        assert [one.cost_usd for one in both.outcomes[name]] == [one.cost_usd for one in alone]
    assert shared == job()


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_whatever_a_policy_tries_the_books_are_those_of_an_honest_run(attempt: str) -> None:
    honest, came = replayed(Honest()), []
    outcome = replayed(Hostile(attempt=attempt, came=came))
    assert len(came) > 10
    if attempt not in HARMLESS:
        assert not any(came), "it was let through"
    assert outcome.finished
    assert outcome.cost_usd == honest.cost_usd
    assert outcome.end_s == honest.end_s
    assert outcome.ledger.to_frame().equals(honest.ledger.to_frame())
    assert [found.steps_done for found in outcome.jobs] == [3_000.0]
    assert PRICES[C3].at(START_S) == 0.05


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (
            lambda view: _set(view.jobs[0], "steps_saved", 1.0),
            "steps_saved cannot be set: what a policy sees is read-only",
        ),
        (lambda view: _set(view, "now_s", 0.0), "now_s cannot be set"),
        (lambda view: delattr(view.jobs[0], "steps_run"), "steps_run cannot be deleted"),
    ],
)
def test_an_attempt_that_is_not_caught_ends_as_the_policy_s_mistake(
    attempt: Callable[[View], object], said: str
) -> None:
    @dataclass(frozen=True)
    class Writes(Reactive):
        def decide(self, view: View) -> Iterable[Action]:
            attempt(view)
            return ()

    with pytest.raises(PolicyError, match=said):
        replayed(Writes())


def test_a_view_is_up_to_date_in_the_midst_of_a_decision() -> None:
    seen: list[tuple[int, int]] = []

    @dataclass(frozen=True)
    class Looks(Reactive):
        def decide(self, view: View) -> Iterable[Action]:
            before = len(view.leases)
            yield from Reactive.decide(self, view)
            seen.append((before, len(view.leases)))

    replayed(Looks())
    assert seen[0] == (0, 1)


def test_a_price_set_at_this_very_moment_is_among_the_past_prices() -> None:
    seen: list[tuple[list[float], list[float]]] = []

    @dataclass(frozen=True)
    class Looks(Reactive):
        def decide(self, view: View) -> Iterable[Action]:
            if view.now_s == START_S + 3_600.0:
                times_s, prices = view.past_prices(C3, 1_800.0)
                seen.append(((times_s - START_S).tolist(), prices.tolist()))
            yield from Reactive.decide(self, view)
            if view.now_s < START_S + 3_600.0:
                yield WakeAt(START_S + 3_600.0)

    replayed(Looks())
    # The price half an hour ago, and the one that begins now.
    assert seen == [([1_800.0, 3_600.0], [0.05, 0.06])]
