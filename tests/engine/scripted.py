"""A policy that does what a test tells it, and a runner around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.markets import START_S

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
from ebbtide.simulation.replay import ReplayProvider
from ebbtide.simulation.replayed_market import ReplayedMarket
from ebbtide.simulation.start_delay import StartDelay

# In these tests a machine comes after 20 s and has booted after 100 s more.
DELAY = StartDelay(request_s=20.0, boot_s=100.0)
READY_S = 120.0


@dataclass(frozen=True)
class Scripted:
    """Answers each event with what the script says of its kind; remembers every event."""

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
        """When it was woken by this, in seconds after START_S."""
        return [event.time_s - START_S for event in self.seen if event.wake is wake]


def replay(
    policy: Policy,
    jobs: Sequence[Job],
    prices: PriceHistory,
    billing: str = "ec2-second",
    *,
    start_s: float = START_S,
    availability: Availability | None = None,
    delay: StartDelay = DELAY,
    save_margin_s: float = 0.0,
) -> Outcome:
    """Run a policy in replay, with a timeline."""
    rule = billing_preset(billing)
    market = ReplayedMarket(prices, start_s, rule, availability=availability, delay=delay)
    provider = ReplayProvider(market, save_margin_s=save_margin_s)
    return Engine(policy, jobs, provider, rule, record=True).run()
