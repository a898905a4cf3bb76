"""Offers: the expected cost of a step of a trial in each market, and the two ways to estimate it.

`StepCost` is SpotTune's own rule (Eq. 1 and 2). `BestBid` (`spottune-bid`) chooses market and max price together.
The max price decides when a machine is revoked, and so both what is refunded and how much is trained before: a
machine that is revoked while it boots costs nothing and does nothing, but Eq. 1 counts such an hour as free steps.
`BestBid` treats a lease as a cycle with an expected cost, an expected time and expected steps; by the
renewal-reward theorem the long-run cost per step is the ratio of the expectations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.forecasts.revocation.forecasts import Forecast, RecentFrequency
from ebbtide.forecasts.revocation.passage import CELL_S, CELLS, Passages, SimilarMoments
from ebbtide.market.billing import Billing, Refund
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.risk import MarketRisk

# Time from the request for a machine to training on it, seconds.
START_S = 120.0

# Delta as published (Algorithm 1, line 4), USD per hour.
PUBLISHED_DELTA_USD = (0.00001, 0.2)


@dataclass(frozen=True, slots=True)
class Offer:
    """A market and a max price for one trial, with its expected cost.

    Attributes:
        market: The market to rent in.
        max_price_usd_per_hour: The max price to request, USD per hour.
        usd_per_step: Expected cost of a step, USD.
        revoked: Probability of a revocation within the hour; NaN: not computed, as others are better anyway.
        seconds_per_step: Time of a step there, seconds.
    """

    market: Market
    max_price_usd_per_hour: float
    usd_per_step: float
    revoked: float
    seconds_per_step: float


class Provisioner(Protocol):
    """Estimates the cost of a step in each market."""

    def offers(
        self, view: View, job: JobView, steps_left: float, markets: Sequence[Market], seconds: Floats
    ) -> list[Offer]:
        """An offer for each market.

        Args:
            view: Current and past prices.
            job: The trial to rent for.
            steps_left: Steps until the trial leaves its machine by itself.
            markets: Markets where it can run, n of them.
            seconds: Seconds per step in each market, shape (n,).
        """
        ...

    def staying(self, view: View, place: int, markets: Sequence[Market], seconds: Floats) -> float:
        """Cost per step, USD, of staying in the market at index `place`, on a machine without further refunds."""
        ...

    def risk(self, view: View) -> MarketRisk:
        """The risk of losing machines for capacity, as the offers count it."""
        ...


@dataclass(frozen=True)
class StepCost:
    """SpotTune's `getBestInst`: `M x (1 - p) x` mean price of the last hour (Eq. 1, 2).

    Attributes:
        forecast: Gives the probability of a revocation within the hour.
        delta: Max price above the current price, as a share of it, drawn uniformly from this interval; None: as
            published, 0.00001 to 0.2 USD per hour.
        doubt: Added to the probability of paying, since a nearly certain forecast may be wrong, and the hour on an
            expensive machine is then charged. 0 is Eq. 1.
        hazard: Chances of losing machines for capacity, beside the forecast of prices.
        capacity: Whether they count; else prices alone, as published.
    """

    forecast: Forecast = field(default_factory=RecentFrequency)
    delta: tuple[float, float] | None = (0.0001, 0.002)
    doubt: float = 0.3
    hazard: Hazard = field(default_factory=default_hazard, repr=False)
    capacity: bool = True

    def offers(
        self,
        view: View,
        job: JobView,
        steps_left: float,
        markets: Sequence[Market],
        seconds: Floats,
    ) -> list[Offer]:
        mean = np.array([view.mean_price(market, HOUR_S) for market in markets])
        risk = self.risk(view)
        # A step costs more where machines are lost.
        again = np.array([risk.overhead(job.job, market, START_S) for market in markets])
        sure = seconds * (1.0 + again) * (1.0 + self.doubt) * mean / HOUR_S
        p = np.zeros(len(markets))
        if view.billing.refund is Refund.WITHIN_FIRST_HOUR and job.job.checkpoint is not None:
            max_prices = self._max_prices(view, markets)
            # No forecast for markets that are too expensive even if their revocation were certain.
            able = np.flatnonzero(sure * self.doubt <= sure.min() * (1.0 + self.doubt))
            p[:] = math.nan
            asked = [markets[place] for place in able.tolist()]
            p[able] = self.forecast.probabilities(view, asked, max_prices[able])
            taken = np.array([risk.losses(market) for market in asked])
            p[able] = 1.0 - (1.0 - p[able]) * np.exp(-taken)
        else:
            # A revocation gains nothing here; without checkpoints, it loses everything.
            max_prices = np.full(len(markets), math.inf)
        # A trial that ends before the hour is over leaves less time for a revocation, so it more likely pays.
        p = p * np.minimum(steps_left * seconds / HOUR_S, 1.0)
        usd = sure - np.nan_to_num(p) * seconds * mean / HOUR_S
        columns = (max_prices.tolist(), usd.tolist(), p.tolist(), seconds.tolist())
        return [Offer(*row) for row in zip(markets, *columns, strict=True)]

    def staying(self, view: View, place: int, markets: Sequence[Market], seconds: Floats) -> float:
        return float(seconds[place] * view.mean_price(markets[place], HOUR_S) / HOUR_S)

    def risk(self, view: View) -> MarketRisk:
        return MarketRisk.now(view, self.hazard if self.capacity else None)

    def _max_prices(self, view: View, markets: Sequence[Market]) -> Floats:
        prices = np.array([view.price(market) for market in markets])
        if self.delta is None:
            return np.asarray(prices + view.random.uniform(*PUBLISHED_DELTA_USD, len(markets)))
        return np.asarray(prices * (1.0 + view.random.uniform(*self.delta, len(markets))))


# Max prices to choose from, as shares above the price; hardly any price exceeds the last.
RISES = np.array([1e-4, 0.002, 0.01, 0.03, 0.1, 0.3, 1.0, 9.0])

# Costs that differ by no more than this share are the same.
_SAME = 1e-7

# A lease without refund, its start included, costs at most this multiple of its work alone.
_OVERHEAD = 1.25

_NEVER = np.append(np.zeros(CELLS), 1.0)[None, :]

# From the request for a machine to its first charge, seconds: this part of the start is free.
_REQUEST_S = 20.0


@dataclass(frozen=True)
class BestBid:
    """The lowest expected cost of a useful step, over markets and max prices.

    Attributes:
        passages: Predicts when prices exceed max prices.
        doubt: Share by which predicted revocations are reduced: the lowest of many estimates mostly errs in our
            favour.
        time_share: Value of an hour of the trial, as a share of the price of the market with the lowest step cost.
        hour_usd: That value in USD; None: by `time_share`.
        start_s: Time from the request for a machine to training on it, seconds.
    """

    passages: Passages = field(default_factory=SimilarMoments)
    doubt: float = 0.1
    time_share: float = 0.3
    start_s: float = START_S
    hour_usd: float | None = None

    def offers(
        self, view: View, job: JobView, steps_left: float, markets: Sequence[Market], seconds: Floats
    ) -> list[Offer]:
        mean = _mean_prices(view, markets)
        hour_usd = self._hour_usd(mean, seconds)
        saves = job.job.checkpoint is not None
        # Without checkpoints, work is lost with its machine: then only the highest max price is sensible.
        rises = RISES if saves else RISES[-1:]
        # No prediction for markets that are too expensive even if everything but the doubt were refunded.
        least = (self.doubt * mean + hour_usd) * seconds
        able = least <= ((mean + hour_usd) * seconds).min() * _OVERHEAD
        cores = [view.machine(market).vcpus for market in markets]
        cycles = _cycle(
            view.billing,
            mean[:, None],
            (steps_left * seconds)[:, None],
            np.array([[self.start_s + job.job.restore_s(vcpus)] for vcpus in cores]),
            np.array(
                [
                    [job.job.save_s(vcpus, market.place) if saves else math.inf]
                    for vcpus, market in zip(cores, markets, strict=True)
                ]
            ),
        )
        found = []
        for place, (market, step_s, asks) in enumerate(zip(markets, seconds.tolist(), able, strict=True)):
            chances = self._chances(view, market, rises) if asks else _NEVER
            useful = chances @ cycles.useful_s[place] / step_s
            usd = chances @ cycles.usd[place] + hour_usd * (chances @ cycles.lasts_s[place]) / HOUR_S
            per_step = np.full(len(usd), math.inf)
            np.divide(usd, useful, out=per_step, where=useful > 0.0)
            # Of max prices that cost the same, the lowest: not that which rounding favours.
            best = int(np.flatnonzero(per_step <= per_step.min() * (1.0 + _SAME))[0])
            max_price = view.price(market) * (1.0 + float(rises[best] if asks else rises[-1]))
            revoked = 1.0 - float(chances[best, -1]) if asks else math.nan
            found.append(Offer(market, max_price, float(per_step[best]), revoked, step_s))
        return found

    def risk(self, view: View) -> MarketRisk:
        """Return a risk that counts no capacity: prices and refunds alone make these offers."""
        return MarketRisk.now(view, None)

    def staying(self, view: View, place: int, markets: Sequence[Market], seconds: Floats) -> float:
        mean = _mean_prices(view, markets)
        return float(seconds[place] * (mean[place] + self._hour_usd(mean, seconds)) / HOUR_S)

    def _hour_usd(self, mean: Floats, seconds: Floats) -> float:
        """Value of an hour of a trial, USD."""
        if self.hour_usd is not None:
            return self.hour_usd
        return self.time_share * float(mean[np.argmin(mean * seconds)])

    def _chances(self, view: View, market: Market, rises: Floats) -> Floats:
        """Distribution of the time at which each max price is exceeded; shape (rises, CELLS + 1)."""
        if not view.billing.price_revokes:
            return np.tile(_NEVER, (len(rises), 1))
        chances = self.passages.chances(view, market, rises)
        believed = chances * (1.0 - self.doubt)
        believed[:, -1] += self.doubt
        return believed


def _mean_prices(view: View, markets: Sequence[Market]) -> Floats:
    return np.array([view.mean_price(market, HOUR_S) for market in markets])


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Leases by the time at which the price exceeds their max price; shape (CELLS + 1,), or one row per market.

    Attributes:
        useful_s: Time of training whose result is kept, seconds.
        usd: Cost of the lease, USD.
        lasts_s: Time from the request to the end, seconds.
    """

    useful_s: Floats
    usd: Floats
    lasts_s: Floats


def _cycle(
    billing: Billing,
    price: float | Floats,
    work_s: float | Floats,
    before_s: float | Floats,
    save_s: float | Floats,
) -> _Cycle:
    """Cost and duration of a lease for each cell of the hour in which its notice may come, and without notice.

    Args:
        billing: Billing rule of spot leases.
        price: Price of the machine, USD per hour.
        work_s: Work left, seconds; the machine is released when it is done, or after an hour.
        before_s: Time from the request for the machine to the first new step, seconds.
        save_s: Time to save before the machine goes, seconds; infinity: it cannot save.
    """
    own_end_s = np.minimum(before_s + work_s, HOUR_S + before_s)
    # The notice comes in the middle of its cell; whether the lease is still free depends on the cell's end.
    notice_at_s = np.append((np.arange(CELLS) + 0.5) * CELL_S, math.inf)
    taken_s = notice_at_s + billing.notice_s
    revoked = taken_s < own_end_s
    lasts_s = np.minimum(taken_s, own_end_s)
    useful_s = np.maximum(lasts_s - before_s - np.where(revoked, save_s, 0.0), 0.0)
    held_s = np.maximum(lasts_s - _REQUEST_S, 0.0)
    paid_s = np.ceil(np.maximum(held_s, billing.minimum_s) / billing.period_s) * billing.period_s
    if billing.refund is Refund.WITHIN_FIRST_HOUR:
        paid_s = np.where(revoked & (held_s + CELL_S / 2.0 < HOUR_S), 0.0, paid_s)
    elif billing.refund is Refund.LAST_PARTIAL_PERIOD:
        paid_s = np.where(revoked, held_s // billing.period_s * billing.period_s, paid_s)
    return _Cycle(useful_s, price * paid_s / HOUR_S, lasts_s)
