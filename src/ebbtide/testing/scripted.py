"""A policy that does what a test tells it, and one call that replays a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ebbtide.engine.engine import Engine
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Job
from ebbtide.market.availability import Availability
from ebbtide.market.billing import billing_preset
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.start_delay import StartDelay

# In this module's replays, requests take 20 s and boots another 100 s.
DELAY = StartDelay(request_s=20.0, boot_s=100.0)
READY_S = DELAY.request_s + DELAY.boot_s


@dataclass(frozen=True)
class Scripted:
    """Answers each event with the script for its kind, and records every event.

    Attributes:
        script: The answer to an event, by its kind; other kinds are not answered.
        wakes_on: Kinds of events that it subscribes to, beyond those that every policy gets.
        name: Its name in tables and errors.
        period_lead_s: Seconds before the end of a charge period at which it is woken.
        seen: All events so far, in order.
    """

    script: dict[Wake, Callable[[View, Event], Iterable[Action]]]
    wakes_on: frozenset[Wake] = frozenset()
    name: str = "scripted"
    period_lead_s: float = 0.0
    seen: list[Event] = field(default_factory=list)

    def decide(self, view: View) -> Iterable[Action]:
        for event in view.events:
            self.seen.append(event)
            if event.wake in self.script:
                yield from self.script[event.wake](view, event)

    def times(self, wake: Wake) -> list[float]:
        """Return the times of events of this kind, in seconds after the run's first event."""
        return [event.time_s - self.seen[0].time_s for event in self.seen if event.wake is wake]


def replay(
    policy: Policy,
    jobs: Sequence[Job],
    prices: PriceHistory,
    billing: str = "ec2-second",
    *,
    start_s: float | None = None,
    availability: Availability | None = None,
    delay: StartDelay = DELAY,
    seed: int = 0,
) -> Outcome:
    """Run a policy once in a replay, with a timeline; the last save before a revocation ends just in time.

    Args:
        policy: The policy that decides.
        jobs: The jobs to do, in the order of their ids.
        prices: The price history that is replayed.
        billing: Name of the billing preset of spot leases.
        start_s: Start of the run, seconds since 1970; None: at the start of the history.
        availability: Recorded capacity of the markets that have a record; None: all are unlimited.
        delay: Time that requests and boots take.
        seed: Seed of the policy's random numbers.

    Raises:
        PolicyError: The policy raised an exception or asked for something impossible.
    """
    rule = billing_preset(billing)
    begins_s = prices.start_s if start_s is None else start_s
    market = ReplayedMarket(prices, begins_s, rule, availability=availability, delay=delay)
    provider = ReplayProvider(market, save_margin_s=0.0)
    return Engine(policy, jobs, provider, rule, record=True, seed=seed).run()
