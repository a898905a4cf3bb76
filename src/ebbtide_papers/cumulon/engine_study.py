"""Cümülön-D's skyline on the engine and on real prices: several markets and types, charges of several steps.

The compiled plays of the other studies know one market, and one step a charge. Here a cookbook is solved for each
market that may be cheapest and the best is taken (7), and decisions are made twice in each hour that is charged
(kappa of 2 in Definition 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ebbtide.backtesting.backtest import backtest
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl, Checkpointing, Coupling, Job
from ebbtide.jobs.throughput import ThroughputModel
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.cookbook.by_name import ByCookbook, CookbookRule
from ebbtide.replay.start_delay import StartDelay

# Machine-hours on the slowest type, machines at most, and the deadline.
_WORK_H, _MACHINES, _DEADLINE_H = 48.0, 8, 12.0
_DELAY_S = 600.0
# The first part of a record is only looked back at.
_PAST_SHARE = 0.4
_STEPS_PER_H = 1_000.0

# Policies by name: how many markets have a cookbook solved, and seconds of a step.
_POLICIES = {"one-market": (1, HOUR_S), "several-markets": (12, HOUR_S), "two-steps-a-charge": (1, HOUR_S / 2.0)}


@dataclass(frozen=True)
class EngineStudy:
    """Results of the study on the engine.

    Attributes:
        outcomes: Outcomes of each start by policy: `one-market`, `several-markets` and `two-steps-a-charge`.
        markets: Number of markets to choose from.
        types: Number of their instance types.
    """

    outcomes: Mapping[str, tuple[Outcome, ...]]
    markets: int
    types: int

    def mean_usd(self, name: str) -> float:
        """Mean cost of a policy, USD."""
        return float(np.mean([outcome.cost_usd for outcome in self.outcomes[name]]))

    @property
    def missed(self) -> int:
        """Runs of all policies that were not done in time."""
        late_s = _DEADLINE_H * HOUR_S + 1.0
        every = [outcome for outcomes in self.outcomes.values() for outcome in outcomes]
        return sum(not (outcome.finished and outcome.makespan_s <= late_s) for outcome in every)


def engine_study(prices: PriceHistory, catalogue: Catalogue, *, starts: int, seed: int) -> EngineStudy:
    """Run the skyline over a history's markets, charged by whole hours, with machines on demand beside.

    Args:
        prices: Price history, such as EC2's of 2015.
        catalogue: Instance types and list prices.
        starts: Number of starts after the first part of the history.
        seed: Seed of the starts.

    Raises:
        InputError: There is one market only, or the history is too short.
    """
    listed = [market for market in prices if catalogue.on_demand_usd_per_hour(market, prices.start_s) is not None]
    if len(listed) < 2:
        raise InputError("fewer than two markets with a list price are in the prices given")
    first_s = prices.start_s + _PAST_SHARE * (prices.end_s - prices.start_s)
    last_s = prices.end_s - _DEADLINE_H * HOUR_S - DAY_S
    if last_s <= first_s:
        raise InputError(f"the prices cover less than runs of {_DEADLINE_H:g} h and a past need")
    at_s = np.sort(np.random.default_rng([seed, starts]).uniform(first_s, last_s, starts))
    model = ThroughputModel(1.0, 1.0)
    speeds = {
        market.instance_type: 1.0 / model.seconds_per_step(catalogue.machine_of(market)) for market in listed
    }
    slowest = min(speeds.values())
    job = Job(
        name="matrix-program",
        steps=round(_WORK_H * _STEPS_PER_H),
        steps_per_hour={name: _STEPS_PER_H * speed / slowest for name, speed in speeds.items()},
        machines=_MACHINES,
        coupling=Coupling.INDEPENDENT,
        speedup=Amdahl(parallel=0.95),
        checkpoint=Checkpointing(save_s=0.0, restore_s=0.0),
    )
    policies = [
        ByCookbook(
            CookbookRule.SKYLINE,
            deadline_s=_DEADLINE_H * HOUR_S,
            step_s=step_s,
            delay_s=_DELAY_S,
            on_demand=True,
            markets=markets,
        )
        for markets, step_s in _POLICIES.values()
    ]
    outcomes = {}
    for name, policy in zip(_POLICIES, policies, strict=True):
        found = backtest(
            job,
            [policy],
            prices.select(listed),
            billing="ec2-hourly",
            starts=np.floor(at_s).tolist(),
            seed=seed,
            delay=StartDelay(_DELAY_S, 0.0),
            catalogue=catalogue,
        )
        (outcomes[name],) = found.outcomes.values()
    return EngineStudy(outcomes, len(listed), len(speeds))
