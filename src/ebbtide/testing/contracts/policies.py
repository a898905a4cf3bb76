"""Contract tests of policies: the behaviour that `ebbtide.policies.api.protocol.Policy` promises."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError, PolicyError
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.generator import demo_markets, generate_auction_prices
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.actions import Action, Request
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy, checked_policy
from ebbtide.policies.api.view import View
from ebbtide.testing.scripted import replay

_DAYS = 6.0
_ZONES = ("us-east-1a", "us-east-1b")
# Runs begin a day into the record, so that a policy can look at past prices.
_PAST_S = 24.0 * HOUR_S
_NOTHING = 0
_PLENTY = 1_000


class PolicyContract:
    """Tests of a policy. Inherit from this class in one whose name begins with `Test`, and make your policy:

        from ebbtide.testing import PolicyContract

        class TestMine(PolicyContract):
            def make_policy(self):
                return Mine()

    Every test replays a small job on a generated market of a few days. Override `make_jobs` or `make_prices` if
    your policy needs other jobs or prices.
    """

    def make_policy(self) -> Policy:
        """Make a new object of the policy, with the same parameters at every call."""
        raise NotImplementedError("a test class of PolicyContract needs make_policy(self), which gives the policy")

    def make_jobs(self) -> list[Job]:
        """Make the jobs of the runs: a few hours of work for one machine."""
        checkpoint = Checkpointing(save_s=20.0, restore_s=20.0, size_bytes=50_000_000)
        return [Job(name="small", steps=2_000, other_steps_per_hour_per_vcpu=250.0, checkpoint=checkpoint)]

    def make_prices(self) -> PriceHistory:
        """Make the market of the runs: at least five days, with all prices from the beginning."""
        return _market()

    def test_it_has_a_name_and_says_what_wakes_it(self) -> None:
        policy = checked_policy(self.make_policy())
        assert policy.name == policy.name.strip(), f"name {policy.name!r} begins or ends with a blank"
        assert "\n" not in policy.name, f"name {policy.name!r} has several lines; it stands in tables"
        other = self.make_policy()
        assert other.name == policy.name, f"names differ between objects: {policy.name!r} and {other.name!r}"

    def test_it_finishes_a_small_job_or_says_why_not(self) -> None:
        _check_ends_well(self._run().ending)

    def test_the_same_seed_gives_the_same_decisions(self) -> None:
        policy = self.make_policy()
        first = self._run(policy)
        again = self._run(policy)
        assert again.decisions == first.decisions, (
            f"policy {policy.name}: a second run of the same object with the same seed decides otherwise: "
            f"{_first_difference(first, again)}; keep nothing in the object, and draw from view.random"
        )
        new = self._run(self.make_policy())
        assert new.decisions == first.decisions, (
            f"policy {policy.name}: another object with the same parameters decides otherwise: "
            f"{_first_difference(first, new)}; decide from the view alone, and draw from view.random"
        )

    def test_another_object_goes_on_from_the_stored_memory(self) -> None:
        """A live controller may be restarted between any two decisions: only the memory is kept, as JSON."""
        whole = self._run()
        resumed = self._run(Restarted(self.make_policy))
        assert resumed.decisions == whole.decisions, (
            f"policy {self.make_policy().name}: restarted between decisions it decides otherwise: "
            f"{_first_difference(whole, resumed)}; keep what it needs in view.memory, and nowhere else"
        )

    def test_its_memory_is_what_json_can_hold(self) -> None:
        problems = self._run().problems
        assert not problems, (
            f"policy {self.make_policy().name}: {problems[0]}; JSON holds text, numbers, lists, and dictionaries "
            "with keys in text"
        )

    def test_it_leaves_what_it_is_shown_alone(self) -> None:
        """Jobs, prices and events are read-only: a policy answers with actions."""
        jobs, prices = self.make_jobs(), self.make_prices()
        series = {market: (one.times_s.copy(), one.prices.copy()) for market, one in prices.items()}
        run = self._run(jobs=jobs, prices=prices)
        name = self.make_policy().name
        changed = [shown.name for shown, was in run.shown if shown != was]
        assert not changed, f"policy {name} changed a job that it was shown, {changed}; it answers with actions"
        for market, (times_s, usd) in series.items():
            same = np.array_equal(prices[market].times_s, times_s) and np.array_equal(prices[market].prices, usd)
            assert same, f"policy {name} changed the prices of {market}"
        assert not run.changed_events, f"policy {name} changed the events of the view at {run.changed_events}"

    def test_it_asks_for_nothing_impossible(self) -> None:
        useless = self._run().useless
        assert not useless, (
            f"policy {self.make_policy().name} asked for {useless[0]} for a job that cannot run there; "
            "view.steps_per_s(job.job, market) is 0"
        )

    def test_it_survives_the_loss_of_every_machine(self) -> None:
        """All capacity disappears half an hour into the run, and returns two hours later."""
        run = self._run(capacity=[(0.0, _PLENTY), (0.5 * HOUR_S, _NOTHING), (2.5 * HOUR_S, _PLENTY)])
        _check_ends_well(run.ending)

    def test_it_survives_refusals(self) -> None:
        """Every request in the first two hours is refused for lack of capacity."""
        run = self._run(capacity=[(0.0, _NOTHING), (2.0 * HOUR_S, _PLENTY)])
        _check_ends_well(run.ending)

    def test_it_survives_an_empty_market(self) -> None:
        """No market has a price when the run starts; the first prices come an hour later."""
        prices = self.make_prices()
        begins_s = prices.start_s + _PAST_S
        later = {
            market: PriceSeries(series.times_s + (_PAST_S + HOUR_S), series.prices)
            for market, series in prices.items()
        }
        empty = PriceHistory(later, start_s=begins_s, end_s=prices.end_s + _PAST_S)
        _check_ends_well(self._run(prices=empty, start_s=begins_s).ending)

    def _run(
        self,
        policy: Policy | None = None,
        *,
        jobs: list[Job] | None = None,
        prices: PriceHistory | None = None,
        start_s: float | None = None,
        capacity: list[tuple[float, int]] | None = None,
    ) -> ObservedPolicy:
        """Replay a policy under observation.

        Args:
            policy: The policy to replay; None: a new one.
            jobs: The jobs of the run; None: those of the suite.
            prices: The price history of the run; None: that of the suite.
            start_s: Start of the run, seconds since 1970; None: a day into the history.
            capacity: Capacity of every market, as pairs of seconds after the start and machines; None: unlimited.
        """
        history = self.make_prices() if prices is None else prices
        begins_s = history.start_s + _PAST_S if start_s is None else start_s
        observed = ObservedPolicy(checked_policy(self.make_policy() if policy is None else policy))
        try:
            observed.ending = replay(
                observed,
                self.make_jobs() if jobs is None else jobs,
                history,
                start_s=begins_s,
                availability=_availability(history, begins_s, capacity) if capacity else None,
                seed=1,
            )
        except InputError as error:
            # A policy may refuse a job that it cannot do on this market.
            observed.ending = error
        except PolicyError as error:
            raise AssertionError(f"a policy answers with what can be done: {error}") from error
        return observed


@dataclass
class ObservedPolicy:
    """Wraps a policy, and records its decisions and mistakes.

    Attributes:
        policy: The policy under observation.
        decisions: Time, seconds since 1970, and actions of every decision with actions.
        problems: Descriptions of values in the memory that JSON cannot hold.
        useless: Markets that the policy requested although the job cannot run there.
        changed_events: Times at which the policy changed the events in its view.
        shown: Each job in its view, and a copy from before its first decision.
        ending: The outcome of the run, or the policy's refusal.
    """

    policy: Policy
    decisions: list[tuple[float, list[Action]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    useless: list[str] = field(default_factory=list)
    changed_events: list[float] = field(default_factory=list)
    shown: list[tuple[Job, Job]] = field(default_factory=list)
    ending: Outcome | InputError | None = None

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on

    @property
    def period_lead_s(self) -> float:
        return getattr(self.policy, "period_lead_s", 0.0)

    def decide(self, view: View) -> Iterator[Action]:
        events, actions = list(view.events), []
        if not self.shown:
            self.shown += [(job.job, job.job.model_copy(deep=True)) for job in view.jobs]
        for action in self.policy.decide(view) or ():
            if isinstance(action, Request) and not _can_run(view, action):
                self.useless.append(str(action.market))
            actions.append(action)
            yield action
        if actions:
            self.decisions.append((view.now_s, actions))
        if list(view.events) != events:
            self.changed_events.append(view.now_s)
        self.problems += _not_json(view.memory, "view.memory")


@dataclass(frozen=True)
class Restarted:
    """A policy that is recreated for every decision, with its memory stored as JSON in between.

    Attributes:
        make: Makes a new object of the policy, always with the same parameters.
    """

    make: Callable[[], Policy]

    @property
    def name(self) -> str:
        return self.make().name

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.make().wakes_on

    @property
    def period_lead_s(self) -> float:
        return getattr(self.make(), "period_lead_s", 0.0)

    def decide(self, view: View) -> Iterable[Action]:
        try:
            kept = json.loads(json.dumps(view.memory))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"policy {self.name}: view.memory cannot be stored as JSON: {error}") from None
        view.memory.clear()
        view.memory.update(kept)
        yield from self.make().decide(view) or ()


def _can_run(view: View, request: Request) -> bool:
    """Return whether a request's job can run in its market; the engine finds other mistakes of a request."""
    if request.job is None or request.job not in range(len(view.jobs)):
        return True
    return request.market not in view.markets or view.steps_per_s(view.jobs[request.job].job, request.market) > 0


def _check_ends_well(ending: Outcome | InputError | None) -> None:
    """Check that the run finished its jobs or was given up with a reason, or was refused in one line."""
    if isinstance(ending, InputError):
        assert "\n" not in str(ending), f"a refusal is told in one line, not as {str(ending)!r}"
        return
    assert ending is not None
    assert ending.finished or ending.gave_up, (
        f"policy {ending.policy} neither finished its jobs in "
        f"{(ending.end_s - ending.start_s) / HOUR_S:.0f} h nor gave up with a reason; it rented "
        f"{len(ending.leases)} machines; after a refusal or a loss ask again, or answer WakeAt"
    )


def _first_difference(one: ObservedPolicy, other: ObservedPolicy) -> str:
    for number, (before, after) in enumerate(zip(one.decisions, other.decisions, strict=False)):
        if before != after:
            return f"decision {number} was {before[1]} at {before[0]:.0f} s, and is {after[1]} at {after[0]:.0f} s"
    return f"there were {len(one.decisions)} decisions with actions, and now there are {len(other.decisions)}"


def _not_json(value: Any, where: str) -> list[str]:
    """Describe the values that JSON cannot hold; empty if there are none."""
    if isinstance(value, dict):
        names = [f"{where} has the key {key!r}" for key in value if type(key) is not str]
        return names + [one for key, inner in value.items() for one in _not_json(inner, f"{where}[{key!r}]")]
    if type(value) is list:
        return [one for number, inner in enumerate(value) for one in _not_json(inner, f"{where}[{number}]")]
    if value is None or type(value) in (str, bool, int, float):
        return []
    return [f"{where} is {value!r:.80}, a {type(value).__name__}"]


def _availability(prices: PriceHistory, begins_s: float, capacity: list[tuple[float, int]]) -> Availability:
    times_s = np.array([prices.start_s, *(begins_s + after_s for after_s, _ in capacity)])
    nodes = np.array([_PLENTY, *(count for _, count in capacity)])
    series = CapacitySeries(times_s, nodes, math.nextafter(prices.end_s, math.inf))
    return Availability(dict.fromkeys(prices, series))


@cache
def _market() -> PriceHistory:
    markets = [market for market in demo_markets() if market.zone in _ZONES]
    return generate_auction_prices(markets, days=_DAYS, seed=1)
