"""Scenario of a simulated run, drawn from its seed: sweep, policy, prices, polling interval and team."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.fickle import Fickle

from ebbtide.controller.team.team import Team
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.for_job import within_budget
from ebbtide.policies.registry import policy as policy_named

RUN = "run"
START_S = 1_700_000_000.0
# Seconds in which faults happen, and in which the run has to end.
FAULTS_S, LONGEST_S = 240.0, 2_400.0
_POLICIES = ("fickle", "fickle", "reactive", "on-demand", "cheapest-spot")
_BILLING = ("ec2-second", "ec2-hourly", "gcp-spot")
_MARKETS = tuple(Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "abc")
# Some runs have a second cloud, with markets of its own in place of the last ones.
_TWO_CLOUDS = 0.3
_ELSEWHERE = tuple(Market("gcp", "us-central1", f"us-central1-{zone}", "g2-standard-8") for zone in "ab")
_POLL_S = 3.0
# In some runs trials share machines: each fills one of these shares.
_SHARING, _SHARES = 0.4, (0.5, 0.3)
# Some runs have a small budget. They are longer and slower by these factors, so that they reach it.
TIGHT, _BUDGET_USD, _LONGER, _SLOWER, _TEAM_SLOWER = 0.06, (0.04, 0.09), 8, 6.0, 3.0
_STEPS_PER_HOUR = 1_200
# Some runs belong to a team, with a quota of machines and a budget that its runs may reach. They are charged by
# the second, so that charge periods are short.
TEAMS, _QUOTA, _TEAM_USD = 0.15, (2, 6), (0.05, 0.12)


@dataclass(frozen=True)
class Scenario:
    """A run to simulate.

    Attributes:
        sweep: The sweep to train.
        policy_name: Name of the policy.
        prices: Prices of all markets.
        poll_s: Seconds between polls of cloud and storage.
        many: Number of events of one poll that are handled together.
        team: The team of the run, with its limits; None: it belongs to no team.
    """

    sweep: Sweep
    policy_name: str
    prices: PriceHistory
    poll_s: float
    many: int
    team: Team | None = None

    @classmethod
    def drawn(cls, faults: Faults) -> Scenario:
        """Draw the scenario of a seed."""
        number = faults.number
        is_tight = number("budget", 0.0, 1.0) < TIGHT
        trials = int(number("trials", 1, 4))
        shares = number("sharing", 0.0, 1.0) < _SHARING
        team = _team(faults)
        markets = (*_MARKETS[: len(_ELSEWHERE)], *_ELSEWHERE) if has_two_clouds(faults) else _MARKETS
        is_long = is_tight or (team is not None and team.monthly_budget_usd is not None)
        sweep = Sweep.model_validate(
            {
                "name": "simulated",
                "command": "python program.py {lr}",
                "grid": {"lr": [0.1 * (trial + 1) for trial in range(trials)]},
                "metric": "loss",
                "max_trial_steps": int(number("steps", 10, 36)) * (_LONGER if is_long else 1),
                "theta": 1.0,
                "steps_per_hour": {market.instance_type: _STEPS_PER_HOUR for market in markets},
                "billing": "gcp-spot" if team else _BILLING[int(number("billing", 0, len(_BILLING)))],
                "share": _SHARES[int(number("share", 0, len(_SHARES)))] if shares else 1.0,
                "budget_usd": number("budget of", *_BUDGET_USD) if is_tight else 500.0,
            }
        )
        policy_name = _POLICIES[int(number("policy", 0, len(_POLICIES)))]
        poll_s = _POLL_S * (_SLOWER if is_tight else _TEAM_SLOWER if is_long else 1.0)
        return cls(sweep, policy_name, _prices(faults, markets), poll_s, int(number("many", 1, 8)), team)

    @property
    def clouds(self) -> list[str]:
        """Names of the clouds, in order."""
        return sorted({market.cloud for market in self.prices})

    @property
    def steps(self) -> int:
        """Steps of each training."""
        return self.sweep.max_trial_steps or 0

    @property
    def longest_s(self) -> float:
        """Seconds after which a run is stuck: one machine could do all its trainings three times in that time."""
        alone_s = self.steps * len(self.sweep.trials()) / _STEPS_PER_HOUR * 3600.0
        return LONGEST_S + 3.0 * alone_s

    @property
    def trials(self) -> list[str]:
        """Ids of the trials."""
        return [f"{RUN}-{trial.number:03d}" for trial in self.sweep.trials()]

    def policy(self) -> Policy:
        """The policy, within the sweep's budget."""
        decides = Fickle() if self.policy_name == "fickle" else policy_named(self.policy_name)
        return within_budget(self.sweep, decides)


def has_two_clouds(faults: Faults) -> bool:
    """Draw whether a run has two clouds."""
    return faults.number("two clouds", 0.0, 1.0) < _TWO_CLOUDS


def _team(faults: Faults) -> Team | None:
    if faults.number("team", 0.0, 1.0) >= TEAMS:
        return None
    has_budget = faults.number("team has a budget", 0.0, 1.0) < 0.7
    usd = faults.number("team's budget", *_TEAM_USD)
    machines = int(faults.number("team's quota", *_QUOTA))
    return Team(accounts="accounts", machines=machines, monthly_budget_usd=usd if has_budget else None)


def _prices(faults: Faults, markets: Sequence[Market]) -> PriceHistory:
    series = {}
    for market in markets:
        times_s, usd = [START_S - 86_400.0], [0.04]
        while times_s[-1] < START_S + LONGEST_S:
            begins_s = max(times_s[-1], START_S - 600.0)
            times_s.append(begins_s + faults.number("price lasts", 20.0, 300.0))
            usd.append(faults.number("price", 0.02, 0.25))
        series[market] = PriceSeries(np.array(times_s), np.array(usd))
    return PriceHistory(series, start_s=START_S - 86_400.0, end_s=START_S + 86_400.0)
