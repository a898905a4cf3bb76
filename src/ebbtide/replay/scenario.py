"""Scenarios: everything about an experiment but the policies and the starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ebbtide.engine.engine import Engine, run_policy
from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job
from ebbtide.market.availability import Availability
from ebbtide.market.billing import Billing
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.egress import EgressPrices
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.speed_noise import NoisyReplay, SpeedNoise
from ebbtide.replay.start_delay import MeasuredStartDelay, StartDelay


@dataclass(frozen=True)
class Scenario:
    """Everything about a backtest but the policies and the starts.

    Attributes:
        jobs: The jobs to be run.
        prices: Price histories of all markets.
        billing: Billing rules of spot leases.
        availability: Recorded capacity of the markets that have a record.
        delay: How long machines take to start.
        catalogue: Instance types and list prices.
        seed: Seed of the policies' random numbers.
        curves: Of each job, what its metric will be as it trains; empty: jobs tell none.
        egress: What data cost that leave a region.
        speed_noise: How much machines of one type differ in speed (see `SpeedNoise`); 0: all are alike.
        goals: Goals of the jobs, which policies see.
    """

    jobs: tuple[Job, ...]
    prices: PriceHistory
    billing: Billing
    availability: Availability | None = None
    delay: StartDelay | MeasuredStartDelay = field(default_factory=StartDelay)
    catalogue: Catalogue = field(default_factory=default_catalogue)
    seed: int = 0
    curves: tuple[Curve | None, ...] = ()
    egress: EgressPrices = field(default_factory=EgressPrices)
    speed_noise: float = 0.0
    goals: Goals = field(default_factory=Goals)

    def __post_init__(self) -> None:
        for job in self.jobs:
            job.check_replayable()
        SpeedNoise(self.speed_noise)

    def at_end(self, policy: Policy) -> View:
        """View of a policy that begins at the end of the prices, those set there included."""
        end_s = self.prices.end_s
        # A history ends before its end: one that is a moment longer has prices there.
        known = PriceHistory(dict(self.prices), start_s=self.prices.start_s, end_s=math.nextafter(end_s, math.inf))
        provider = ReplayProvider(ReplayedMarket(known, end_s, self.billing), catalogue=self.catalogue)
        engine = Engine(
            policy, self.jobs, provider, self.billing, catalogue=self.catalogue, goals=self.goals, seed=self.seed
        )
        engine.events = (Event(Wake.START, end_s),)
        view = engine.view
        view.memory["started_s"] = view.now_s
        return view

    def run(self, policy: Policy, start_s: float, *, record: bool = False) -> Outcome:
        """Run a policy from one start; the outcome is the same every time."""
        market = ReplayedMarket(
            self.prices, start_s, self.billing, availability=self.availability, delay=self.delay
        )
        provider = ReplayProvider(market, catalogue=self.catalogue, curves=self.curves)
        if self.speed_noise > 0.0:
            noise = SpeedNoise(self.speed_noise, self.seed, start_s)
            provider = NoisyReplay(market, catalogue=self.catalogue, curves=self.curves, speed_of=noise.factor)
        return run_policy(
            policy,
            self.jobs,
            provider,
            self.billing,
            catalogue=self.catalogue,
            egress=self.egress,
            goals=self.goals,
            seed=self.seed,
            record=record,
        )
