"""Accounts: what leases and moved data cost, by whom the run is billed, into one ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from ebbtide.engine.ledger import Ledger
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.billing import ON_DEMAND, Bill, Billing, Charged, LeaseEnding, OpenBill
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.egress import EgressPrices
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries


class Accounts:
    """Accounts of one run.

    Args:
        prices: Returns the price history of a market.
        billing: Charges spot leases, and says how on-demand leases are charged.
        catalogue: Catalogue with the on-demand list prices.
        egress: Prices of data that leave a region.
    """

    def __init__(
        self,
        prices: Callable[[Market], PriceSeries],
        billing: Billing,
        catalogue: Catalogue,
        egress: EgressPrices,
    ) -> None:
        self.ledger = Ledger()
        self.egress = egress
        self._prices = prices
        self._billing = billing
        self._catalogue = catalogue
        self._list_prices: dict[Market, float | None] = {}
        self._transfers_entered: dict[int, int] = {}
        self._open: dict[int, OpenBill] = {}

    def on_demand_price(self, market: Market, now_s: float) -> float | None:
        """The list price, USD per hour, as it stood when it was first asked for; None: not known."""
        if market not in self._list_prices:
            self._list_prices[market] = self._catalogue.on_demand_usd_per_hour(market, now_s)
        return self._list_prices[market]

    def settle(self, lease: Lease, ending: LeaseEnding) -> None:
        """Enter an ended lease, if charging had begun."""
        self._open.pop(lease.lease_id, None)
        if lease.is_charged:
            self.ledger.add(lease, self._bill(lease, lease.ended_s, ending))

    def settle_anew(self, lease: Lease, ending: LeaseEnding) -> None:
        """A lease was settled, and ended later than that."""
        if lease.is_charged:
            self.ledger.correct(lease, self._bill(lease, lease.ended_s, ending))

    def settle_by_prices_now(self, lease: Lease, ending: LeaseEnding) -> None:
        """If a lease was settled: prices within its time may have become known since."""
        if self.ledger.has(lease.lease_id):
            bill = self._bill(lease, lease.ended_s, ending)
            if bill.usd != self.ledger.usd_of(lease.lease_id):
                self.ledger.correct(lease, bill)

    def enter_transfers(self, jobs: Iterable[JobProgress], leases: Sequence[Lease]) -> None:
        """Enter what has moved since the last time."""
        for job in jobs:
            entered = self._transfers_entered.get(job.job_id, 0)
            for transfer in job.transfers[entered:]:
                usd = self.egress.usd(transfer.size_bytes, transfer.source, transfer.destination)
                self.ledger.add_transfer(transfer, leases[transfer.lease_id], usd)
            self._transfers_entered[job.job_id] = len(job.transfers)

    def spent_usd(self, rented: Iterable[Lease], now_s: float) -> float:
        """Total of the entered costs, and of open leases as if they were released now, USD."""
        return math.fsum([self.ledger.total_usd, *self.open_usd(rented, now_s).values()])

    def open_usd(self, rented: Iterable[Lease], now_s: float) -> dict[int, float]:
        """Cost of each lease if it were released now, USD by lease id; leases not charged yet are left out."""
        # A cloud's clock, by which machines begin, may be ahead of ours.
        until_s = {lease: max(now_s, lease.started_s) for lease in rented if lease.is_charged}
        return {lease.lease_id: self._open_usd(lease, end_s) for lease, end_s in until_s.items()}

    def _open_usd(self, lease: Lease, end_s: float) -> float:
        rule = self._billing.of(lease.market.cloud)
        if lease.on_demand or rule.charged is not Charged.AT_PERIOD_START:
            return self._bill(lease, end_s, LeaseEnding.RELEASED).usd
        prices, known = self._prices(lease.market), self._open.get(lease.lease_id)
        if known is None or known.prices is not prices or known.start_s != lease.started_s:
            # Live, more is known of prices later, and of when a machine began.
            known = self._open[lease.lease_id] = OpenBill(rule, prices, lease.started_s)
        return known.usd(end_s)

    def _bill(self, lease: Lease, end_s: float, ending: LeaseEnding) -> Bill:
        if not lease.on_demand:
            rule = self._billing.of(lease.market.cloud)
            return rule.bill(self._prices(lease.market), lease.started_s, end_s, ending)
        price = self.on_demand_price(lease.market, lease.started_s)
        prices = _fixed(lease.started_s, math.nan if price is None else price)
        rule = self._billing.of(lease.market.cloud).on_demand or ON_DEMAND
        return rule.bill(prices, lease.started_s, end_s, ending)


@lru_cache(maxsize=4096)
def _fixed(since_s: float, price: float) -> PriceSeries:
    """A price that does not change; open leases ask for theirs again and again."""
    return PriceSeries(np.array([since_s]), np.array([price]))
