"""A market whose prices rise in one zone after the other, to revoke machines when a study needs it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np

from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.actions import Action, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View
from ebbtide.runs.start_local import LocalMarket

_START_S = 1_433_160_000.0
_END_S = _START_S + 48 * 3600.0
_CALM_USD, _HIGH_USD, _MOST_USD = 0.03, 1.0, 0.2
_RETRY_S = 30.0


@dataclass(frozen=True)
class SpikingMarket:
    """Zones of one instance type, with low prices and occasional spikes.

    Attributes:
        zones: Number of zones.
        first_s: Real seconds from the start of a run to the first spike.
        between_s: Real seconds from one spike to the next.
        high_s: Real seconds for which a price stays high.
        speed: Market seconds in a real second.
        instance_type: Name of the instance type.
    """

    zones: int
    first_s: float
    between_s: float
    high_s: float
    speed: float = 30.0
    instance_type: str = "c3.xlarge"

    def local(self, taken: Sequence[int]) -> LocalMarket:
        """Make the market for the local cloud to replay.

        Args:
            taken: Number of zones in which the price rises at each spike; the zones take turns.
        """
        return LocalMarket(self.prices(taken), _START_S, self.speed)

    def prices(self, taken: Sequence[int]) -> PriceHistory:
        """Make the prices of all zones."""
        zones = [
            Market("aws", "us-east-1", f"us-east-1{letter}", self.instance_type)
            for letter in ascii_lowercase[: self.zones]
        ]
        spikes: dict[Market, list[float]] = {market: [] for market in zones}
        turn = 0
        for number, count in enumerate(taken):
            for _ in range(count):
                at_s = _START_S + self.speed * (self.first_s + number * self.between_s)
                spikes[zones[turn % len(zones)]].append(at_s)
                turn += 1
        series = {}
        for market, times in spikes.items():
            points = [(_START_S - 3600.0, _CALM_USD)]
            for at_s in times:
                points += [(at_s, _HIGH_USD), (at_s + self.speed * self.high_s, _CALM_USD)]
            # Prices in a file end with their last change.
            points.append((_END_S - 3600.0, 1.1 * _CALM_USD))
            series[market] = PriceSeries(np.array([at for at, _ in points]), np.array([usd for _, usd in points]))
        return PriceHistory(series, start_s=_START_S - 3600.0, end_s=_END_S)


@dataclass(frozen=True)
class OneAZone:
    """A policy that rents one machine in each calm zone, so that a spike revokes one machine per zone."""

    name: str = "one-a-zone"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        for job in view.jobs:
            steady = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
            missing = 0 if job.is_finished else job.job.most_machines - len(steady)
            taken = {lease.market for lease in steady}
            free = [market for market in view.markets if market not in taken and view.price(market) <= _MOST_USD]
            for market in free[:missing]:
                yield Request(market, _MOST_USD, job=job.job_id)
            if missing > len(free):
                yield WakeAt(view.now_s + _RETRY_S)
