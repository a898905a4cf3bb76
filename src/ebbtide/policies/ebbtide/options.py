"""Ways to do what is left of a job: spot machines of each market at the best max price, and on-demand machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest
from typing import Any

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.market.billing import Refund
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.market.prices import weighted_quantile
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.backoff import RefusedMarkets
from ebbtide.policies.migration import list_price, save_usd
from ebbtide.policies.risk import MarketRisk
from ebbtide.policies.spottune.offers import BestBid, Offer


@dataclass(frozen=True, slots=True)
class Way:
    """Machines of one market for the rest of a job, and the expected cost.

    Attributes:
        market: Where to rent.
        on_demand: Whether at the list price.
        max_price_usd_per_hour: The most to pay, USD per machine-hour.
        usd: Expected cost until the job is done, the value of its time included, USD.
        unrefunded_usd: The same without what the market may refund because it takes machines that it lacks, and
            without the time that losses cost, USD.
        work_s: Seconds of pure work.
        losses_usd: The part of `usd` that losses of machines for capacity are expected to cost, USD.
    """

    market: Market
    on_demand: bool
    max_price_usd_per_hour: float
    usd: float
    unrefunded_usd: float
    work_s: float
    losses_usd: float = 0.0

    @property
    def rank(self) -> tuple[float, bool, float, Market]:
        """The cheapest first; of two that cost the same the one on demand, then the faster."""
        return self.usd, not self.on_demand, self.work_s, self.market


# While there is time, prices this much above the usual are waited out, and for a market that refuses as long as
# others cost so much more.
_DEAR, _DEARER = 1.15, 1.05
# The usual price is the quantile of a market's prices over so many seconds, in the markets of least mean price.
_USUAL_QUANTILE, _USUAL_S, _USUAL_MARKETS = 0.1, 7 * DAY_S, 12

# An offer with a lower probability of a revocation within the hour is steady.
_STEADY = 0.4

# Hours of full pay that count for a market before anything has been seen there.
_PRIOR_H = 3.0


@dataclass(frozen=True)
class Refunds:
    """Paid share, by market, of the first hours for which this run's machines were held.

    Where a machine that is taken in its first hour costs nothing, a zone that takes its machines often is cheaper
    than its price says. Nobody publishes how often; the run's own machines show it.

    Attributes:
        view: What the policy sees.
    """

    view: View

    def note(self) -> None:
        """Take note of the machines that have just ended."""
        if self.view.billing.refund is not Refund.WITHIN_FIRST_HOUR:
            return
        for event in self.view.events:
            if event.wake is not Wake.ENDED:
                continue
            lease = self.view.lease(event.lease_id)
            if lease.on_demand or not lease.is_charged or math.isnan(lease.ended_s):
                continue
            held_h = (lease.ended_s - lease.started_s) / HOUR_S
            is_free = lease.state is LeaseState.REVOKED and held_h < 1.0
            sums = self._sums.setdefault(str(lease.market), [0.0, 0.0])
            # What comes after the first hour is paid in any case; a new machine begins with a first hour.
            sums[0] += min(held_h, 1.0)
            sums[1] += 0.0 if is_free else min(held_h, 1.0)

    def paid_share(self, market: Market) -> float:
        """The share of first hours on a market's machines that is paid, as far as is known; 1 where nothing is."""
        held_h, paid_h = self._sums.get(str(market), (0.0, 0.0))
        return (paid_h + _PRIOR_H) / (held_h + _PRIOR_H)

    @property
    def _sums(self) -> dict[str, list[float]]:
        sums: dict[str, list[float]] = self.view.memory.setdefault("paid_h", {})
        return sums


@dataclass(frozen=True)
class Ways:
    """Makes the ways for one job at one moment.

    Attributes:
        view: Prices and speeds of the moment.
        job: The job.
        steps: Steps until it leaves its machine by itself.
        markets: Where it can run.
        seconds: Seconds per step on one machine of each, shape (n,).
        refusals: Markets that have just refused a machine: no way leads there. None: every market is asked.
        start_s: Seconds for which a machine is paid before it trains, restoring aside.
        hour_usd: What an hour of the job's time is worth, USD.
        bid: Chooses max prices where revocations are refunded; None: the list price is the max price.
        risk: Risk of losing machines for capacity; None: prices alone.
    """

    view: View
    job: JobView
    steps: float
    markets: Sequence[Market]
    seconds: Floats
    refusals: RefusedMarkets | None
    start_s: float
    hour_usd: float
    bid: BestBid | None = None
    risk: MarketRisk | None = None

    def all(self) -> list[Way]:
        """Every way that is open now."""
        return [*self.spot(), *self.on_demand()]

    def spot(self) -> list[Way]:
        """On spot machines, where they cost no more than the list price."""
        return self._spot

    @cached_property
    def _spot(self) -> list[Way]:
        if self._open and self.bid is not None and self.bids_pay:
            return [self._by_bid(offer) for offer in self._offers[1]]
        return [
            self._way(market, seconds, self.view.price(market), list_price(self.view, market), on_demand=False)
            for market, seconds in self._open
        ]

    @cached_property
    def _open(self) -> list[tuple[Market, float]]:
        """Markets that may be asked, at no more than the list price, each with its seconds per step."""
        return [
            (market, seconds)
            for market, seconds in zip(self.markets, self.seconds.tolist(), strict=True)
            if self._may_ask(market, False) and self.view.price(market) <= list_price(self.view, market)
        ]

    @cached_property
    def _offers(self) -> tuple[BestBid, list[Offer]]:
        """The offers, and the bid that made them.

        `BestBid` values time, since an offer's refunds come true only if it is used while prices are as they are.
        Where the cheapest offer will hardly be revoked, time is worth what the user says.
        """
        seconds = np.array([seconds for _, seconds in self._open]) / self._speedup
        asked = [market for market, _ in self._open], seconds
        plain = replace(self._bid_of_one, hour_usd=self.hour_usd / self._machines)
        offers = plain.offers(self.view, self.job, self.steps, *asked)
        best = min(offers, key=lambda offer: (offer.usd_per_step, offer.market))
        if self.hour_usd or not best.revoked > _STEADY:
            return plain, offers
        return self._bid_of_one, self._bid_of_one.offers(self.view, self.job, self.steps, *asked)

    @cached_property
    def _bid_of_one(self) -> BestBid:
        """The bid for one of the job's machines: they are of one market, so that a price takes all or none."""
        assert self.bid is not None
        hour_usd = self.bid.hour_usd
        return self.bid if hour_usd is None else replace(self.bid, hour_usd=hour_usd / self._machines)

    @property
    def _machines(self) -> int:
        return self.job.job.most_machines

    @cached_property
    def _speedup(self) -> float:
        """Speed of the job on all its machines, relative to one machine."""
        return self.job.job.speedup_of(self._machines)

    def staying_usd(self, market: Market) -> float:
        """Cost of the rest on a machine of a market without further refunds, by the bid that makes the offers."""
        bid = self._offers[0] if self._open else self._bid_of_one
        one_usd = bid.staying(self.view, self._place(market), self.markets, self.seconds / self._speedup)
        return self.steps * self._machines * one_usd

    def _by_bid(self, offer: Offer) -> Way:
        usd = self.steps * self._machines * offer.usd_per_step
        # What is paid where the price is not expected to revoke: capacity may.
        share = self._refunds.paid_share(offer.market) if not offer.revoked > 0.0 else 1.0
        arriving_usd = self.arriving_usd(offer.market)
        losses_usd = share * usd * self.again(offer.market)
        return Way(
            offer.market,
            False,
            offer.max_price_usd_per_hour,
            share * usd + arriving_usd + losses_usd,
            usd + arriving_usd,
            self.steps * offer.seconds_per_step,
            losses_usd,
        )

    @cached_property
    def _refunds(self) -> Refunds:
        return Refunds(self.view)

    def on_demand(self) -> list[Way]:
        """On machines at the list price, where it is known."""
        return [way for way in self.out if self._may_ask(way.market, True)]

    @property
    def bids_pay(self) -> bool:
        """True if a max price below the list price can pay: the job saves, prices revoke, and refunds exist."""
        billing, work = self.view.billing, self.job.job
        return work.checkpoint is not None and billing.price_revokes and billing.refund is not Refund.NOTHING

    @cached_property
    def cheapest(self) -> Way | None:
        """The way of least cost."""
        return min(self.all(), key=lambda way: way.rank, default=None)

    @cached_property
    def cheapest_by_price(self) -> Way | None:
        """The way of least cost if no machine were lost for capacity: whether to wait is decided by prices."""
        return min(self.all(), key=lambda way: (way.usd - way.losses_usd, *way.rank[1:]), default=None)

    def is_dear(self, way: Way, used: float) -> bool:
        """Return whether to wait for the usual price rather than take a way.

        An hour of waiting saves an hour at today's price, now as later, so that time to spare is used where it
        saves most. As in one-way trading, the price from which on it is used rises with the share of it that is
        gone, from the usual to the list price: El-Yaniv et al., Optimal Search and One-Way Trading Online
        Algorithms, Algorithmica 2001.

        Args:
            way: The way.
            used: Share of the time to spare that is gone.
        """
        usual_usd, now_usd = self.usual[0], self.at_price_usd(way)
        if now_usd <= _DEAR * usual_usd or now_usd - usual_usd <= self.hour_usd * way.work_s / HOUR_S:
            return False
        listed_usd = min((self.at_price_usd(other) for other in self.out), default=now_usd)
        least_usd: float = usual_usd ** (1.0 - used) * max(listed_usd, usual_usd) ** used
        return now_usd >= min(least_usd, listed_usd)

    def is_dearer(self, way: Way) -> bool:
        """Return whether a way costs more than markets that refuse now would.

        What a market has refunded so far makes it no better to wait for: others may refund as much.
        """
        return way.unrefunded_usd > _DEARER * self._least_unrefunded_usd + 1e-9

    @cached_property
    def _least_unrefunded_usd(self) -> float:
        """The least if every market gave a machine, without what some have refunded.

        It is the same without the risk of losses, which takes longest to ask.
        """
        return min(other.unrefunded_usd for other in replace(self, refusals=None, risk=None).all())

    @cached_property
    def out(self) -> list[Way]:
        """On-demand machines, those that have just been refused among them."""
        return [
            self._way(market, seconds, listed, listed, on_demand=True)
            for market, seconds in zip(self.markets, self.seconds.tolist(), strict=True)
            if (listed := self.view.on_demand_price(market)) is not None
        ]

    @cached_property
    def usual(self) -> tuple[float, float]:
        """Least cost of the rest of the job at usual prices, USD, and seconds of a step on that machine."""
        means = [
            (self._usd(market, step_s, self.view.mean_price(market, DAY_S)), market, step_s)
            for market, step_s in zip(self.markets, self.seconds.tolist(), strict=True)
        ]
        found = math.inf, math.inf
        for _, market, step_s in nsmallest(_USUAL_MARKETS, means):
            found = min(found, (self._usd(market, step_s, self._usual_price(market)), step_s))
        return found

    def _usual_price(self, market: Market) -> float:
        """A low quantile of a market's prices in the last days, USD per hour.

        Not their mean: where prices are often above the list price, the mean is, too, and nothing would be dear.
        """
        times_s, usd = self.view.past_prices(market, _USUAL_S)
        if len(times_s) == 0:
            return self.view.price(market)
        return weighted_quantile(usd, np.diff(np.append(times_s, self.view.now_s)), _USUAL_QUANTILE)

    def at_price_usd(self, way: Way) -> float:
        """Cost of a way at its current price, without revocations, refunds and egress, USD."""
        return self._usd(way.market, self.seconds_in(way.market), self.price_of(way))

    def work_s_in(self, market: Market) -> float:
        """Seconds of pure work that are left in a market."""
        return self._work_s(self.seconds_in(market))

    def seconds_in(self, market: Market) -> float:
        """Seconds of a step on one machine of a market."""
        return float(self.seconds[self._place(market)])

    def arriving_usd(self, market: Market) -> float:
        """The egress of what the job needs in a market, and of one save there, USD."""
        if market not in self._arriving_usd:
            self._arriving_usd[market] = self._egress_usd(market)
        return self._arriving_usd[market]

    def restore_s(self, market: Market) -> float:
        """Seconds to restore the job on a machine of a market."""
        if market not in self._restores_s:
            self._restores_s[market] = self.job.job.restore_s(self.view.machine(market).vcpus)
        return self._restores_s[market]

    @cached_property
    def reasons(self) -> dict[Any, Any]:
        """Reasons for taking one of these ways, once they are made: jobs that are alike share them."""
        return {}

    @cached_property
    def _arriving_usd(self) -> dict[Market, float]:
        return {}

    @cached_property
    def _restores_s(self) -> dict[Market, float]:
        return {}

    def _egress_usd(self, market: Market) -> float:
        view, job = self.view, self.job
        checkpoint, dataset, bucket = job.job.checkpoint, job.job.dataset, job.job.bucket
        usd = save_usd(view, job, market)
        if checkpoint is not None and job.saved_at is not None:
            usd += view.egress_usd(job.checkpoint_bytes, bucket.place if bucket else job.saved_at, market.place)
        if dataset is not None and not job.has_dataset(market.cloud):
            usd += view.egress_usd(dataset.size_bytes, dataset.home, market.place)
        return usd

    def _place(self, market: Market) -> int:
        return list(self.markets).index(market)

    def _may_ask(self, market: Market, on_demand: bool) -> bool:
        return self.refusals is None or self.refusals.may_ask(market, on_demand)

    def price_of(self, way: Way) -> float:
        """Current price of a way's machine, USD per hour."""
        return list_price(self.view, way.market) if way.on_demand else self.view.price(way.market)

    def offer_in(self, market: Market) -> Offer | None:
        """The offer that a market's spot way is made from; None: it is made from the price."""
        if not (self._open and self.bid is not None and self.bids_pay):
            return None
        return next((offer for offer in self._offers[1] if offer.market == market), None)

    def paid_share(self, way: Way) -> float:
        """The share of a way's price that counts, after what its market has refunded so far."""
        offer = self.offer_in(way.market)
        if way.on_demand or (offer is not None and offer.revoked > 0.0):
            return 1.0
        return self._refunds.paid_share(way.market)

    def counts_losses(self, market: Market) -> bool:
        """Return whether losses for capacity count: of GPUs, and of others once the run has seen one."""
        return self.risk is not None and self.risk.knows(market)

    def again(self, market: Market) -> float:
        """Time that losses and refusals in a market are expected to cost, as a share of the work."""
        if self.risk is None or not self.counts_losses(market):
            return 0.0
        if market not in self._again:
            self._again[market] = self.risk.overhead(self.job.job, market, self.start_s)
        return self._again[market]

    @cached_property
    def _again(self) -> dict[Market, float]:
        return {}

    def lasts_s(self, market: Market, work_s: float) -> float:
        """Seconds for which machines of a market are held for so many seconds of work."""
        return self.start_s + self.restore_s(market) + work_s

    def paid_s(self, market: Market, work_s: float) -> float:
        """The same in whole charge periods."""
        period_s = self.view.billing.period_s
        return math.ceil(self.lasts_s(market, work_s) / period_s) * period_s

    def _way(self, market: Market, seconds: float, price: float, most: float, *, on_demand: bool) -> Way:
        share = 1.0 if on_demand else self._refunds.paid_share(market)
        arriving_usd = self.arriving_usd(market)
        again = 0.0 if on_demand else self.again(market)
        usd = self._usd(market, seconds, share * price) + arriving_usd
        losses_usd = self._usd(market, seconds, share * price, again) + arriving_usd - usd if again else 0.0
        unrefunded_usd = self._usd(market, seconds, price) + arriving_usd
        work_s = self._work_s(seconds)
        return Way(market, on_demand, most, usd + losses_usd, unrefunded_usd, work_s, losses_usd)

    def _usd(self, market: Market, seconds: float, price: float, again: float = 0.0) -> float:
        """Of machines at a price, charged in whole periods, with some of the work done again, USD."""
        work_s = self._work_s(seconds) * (1.0 + again)
        time_usd = self.hour_usd * self.lasts_s(market, work_s)
        return (self.job.job.most_machines * price * self.paid_s(market, work_s) + time_usd) / HOUR_S

    def _work_s(self, seconds: float) -> float:
        return self.steps * seconds / self._speedup
