"""Policies with the hazard and with prices alone, on recorded capacity: `python -m tests.harness.risk_study`.

A day's job of one machine starts at the same times with either. Three ways of saving it: within each notice, every
half an hour, and not at all while it trains, where no checkpoint fits between notice and revocation. Written to
reports/risk.json, a row for each record, way and policy, with standard errors of the differences over the starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.conftest import TRACES
from tests.harness.study import run_study

from ebbtide.backtesting.backtest import backtest
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Coupling, Job
from ebbtide.market.availability import Availability
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.cookbook.by_name import ByCookbook, CookbookRule
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.spottune.offers import StepCost
from ebbtide.policies.spottune.policy import SpotTune

# Time kept after the beginning of a record, of which cookbooks need a day, and before its end, so that every run
# ends within it.
_PAST_S, _ROOM_S = 25 * HOUR_S, 4 * DAY_S

Record = tuple[PriceHistory, Availability, str]


@dataclass(frozen=True)
class RiskRow:
    """Runs of one policy with the hazard and with prices alone.

    Attributes:
        name: Record, way of saving and policy.
        starts: Number of starts.
        usd: Mean cost with the hazard, and with prices alone, USD.
        usd_difference: Mean difference of cost and its standard error, USD.
        hours: Mean time with the hazard, and with prices alone.
        hours_difference: Mean difference of time and its standard error, hours.
        steps_lost: Mean number of steps lost with the hazard, and with prices alone.
    """

    name: str
    starts: int
    usd: tuple[float, float]
    usd_difference: tuple[float, float]
    hours: tuple[float, float]
    hours_difference: tuple[float, float]
    steps_lost: tuple[float, float]

    @property
    def problems(self) -> list[str]:
        """Nothing fails: the report is a comparison."""
        return []


def v100() -> Record:
    """V100 on EC2 in 2023: prices and launch probes of six zones."""
    prices = PriceHistory.read(TRACES / "ec2-v100-2023.parquet")
    recorded = Availability.read(TRACES / "ec2-gpu-availability-2022-2023.parquet")
    by_place = {(each.zone, each.instance_type): recorded[each] for each in recorded}
    capacity = Availability({market: by_place[market.zone, market.instance_type] for market in prices})
    return prices, capacity, "p3.2xlarge"


def h100() -> Record:
    """H100 on GCP in 2025: launch rounds of zones, at the prices of their regions."""
    prices = PriceHistory.read(TRACES / "today" / "gcp-spot-2023-2026.parquet")
    capacity = Availability.read(TRACES / "gcp-h100-capacity-2025.parquet")
    by_region = {(each.region, each.instance_type): prices[each] for each in prices}
    start_s = min(float(series.times_s[0]) for series in capacity.values()) - 30 * DAY_S
    end_s = max(series.end_s for series in capacity.values())
    found = {
        zone: PriceSeries(*by_region[zone.region, zone.instance_type].between(start_s, end_s))
        for zone in capacity
        if (zone.region, zone.instance_type) in by_region
    }
    return (
        PriceHistory(found, end_s=end_s),
        Availability({zone: capacity[zone] for zone in found}),
        "a3-highgpu-1g",
    )


RECORDS: dict[str, Callable[[], Record]] = {"v100": v100, "h100": h100}
# Seconds that a save takes, and from one to the next; None: only within a notice, of 30 s.
WAYS: dict[str, tuple[float, float | None]] = {
    "within the notice": (15.0, None),
    "every half an hour": (60.0, 1800.0),
    "not saved": (60.0, None),
}


def policies(*, capacity: bool) -> list[Any]:
    """Each policy that asks the hazard."""
    return [
        SpotTune(theta=1.0, provisioner=StepCost(capacity=capacity)),
        *(DeepSpotCloud(when, capacity=capacity) for when in (MoveWhen.PERIOD_END, MoveWhen.WORTHWHILE)),
        DynamicPricing(Goal.COST, capacity=capacity),
        ExoSphere(capacity=capacity),
        # Within three times the length of the work.
        *(ByCookbook(rule, capacity=capacity) for rule in (CookbookRule.DYNAMIC, CookbookRule.SKYLINE)),
    ]


def studied(_runs: Path, starts: int) -> list[RiskRow]:
    """The rows of all records."""
    return [row for name, read in RECORDS.items() for row in rows(name, read(), starts)]


def rows(name: str, record: Record, starts: int) -> Iterator[RiskRow]:
    """The rows of one record."""
    prices, capacity, instance_type = record
    begin_s = max(float(series.times_s[0]) for series in capacity.values()) + _PAST_S
    last_s = min(prices.end_s, *(series.end_s for series in capacity.values())) - _ROOM_S
    starts_s = np.linspace(begin_s, last_s, starts).tolist()
    for way, (save_s, interval_s) in WAYS.items():
        saved = {"size_bytes": 4_000_000_000, "save_s": save_s, "restore_s": 90, "interval_s": interval_s}
        rates = {instance_type: 1000}
        job = Job.model_validate({"name": "day", "steps": 24_000, "steps_per_hour": rates, "checkpoint": saved})
        for with_hazard, alone in zip(policies(capacity=True), policies(capacity=False), strict=True):
            # A cookbook is made for any number of machines.
            is_any = isinstance(with_hazard, ByCookbook)
            work = job.model_copy(update={"coupling": Coupling.INDEPENDENT}) if is_any else job
            pair = [
                backtest(
                    work, [each], prices, billing="gcp-spot", starts=starts_s, availability=capacity
                ).outcomes[each.name]
                for each in (with_hazard, alone)
            ]
            yield row_of(f"{name}, {way}, {with_hazard.name}", *pair)


def row_of(name: str, with_hazard: tuple[Outcome, ...], alone: tuple[Outcome, ...]) -> RiskRow:
    """The row of two tuples of runs from the same starts."""
    both = (with_hazard, alone)

    def column(of: Callable[[Outcome], float]) -> list[np.ndarray]:
        return [np.array([of(each) for each in runs]) for runs in both]

    usd, lost = column(lambda each: each.cost_usd), column(lambda each: each.steps_lost)
    hours = column(lambda each: each.makespan_s / HOUR_S)

    def difference(values: list[np.ndarray]) -> tuple[float, float]:
        apart = values[0] - values[1]
        return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(apart)))

    def means(values: list[np.ndarray]) -> tuple[float, float]:
        return float(values[0].mean()), float(values[1].mean())

    return RiskRow(
        name=name,
        starts=len(with_hazard),
        usd=means(usd),
        usd_difference=difference(usd),
        hours=means(hours),
        hours_difference=difference(hours),
        steps_lost=means(lost),
    )


if __name__ == "__main__":
    run_study(__doc__, "reports/risk.json", studied, starts=24)
