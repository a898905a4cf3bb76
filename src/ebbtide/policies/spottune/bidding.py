"""`spottune-bid`: market and max price chosen together, by the expected cost of a useful step.

How high the max price is decides when a machine is taken, and so both what is refunded and how much is trained
before: a machine that is taken while it boots costs nothing and does nothing. SpotTune's Eq. 1 counts such an hour
as free steps. Here a lease is a cycle with an expected cost, an expected time and expected steps, and by the
renewal-reward theorem cost per step in the long run is the ratio of the expectations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.forecasts.revocation.passage import CELL_S, CELLS, Passages, SimilarMoments
from ebbtide.market.billing import Billing, Refund
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.spottune.offers import Offer

# Max prices to choose from, as shares above the price; the last is one that hardly anything exceeds.
RISES = np.array([1e-4, 0.002, 0.01, 0.03, 0.1, 0.3, 1.0, 9.0])

# A lease surely paid costs no more than this many times its work alone, started and moved to.
_OVERHEAD = 1.25

_NEVER = np.append(np.zeros(CELLS), 1.0)[None, :]

# From asking for a machine to the start of its charges: that part of its start is free.
_REQUEST_S = 20.0


@dataclass(frozen=True)
class BestBid:
    """The least expected cost of a useful step over markets and max prices.

    Attributes:
        passages: Foretells when prices exceed max prices.
        doubt: Share by which revocations are believed to be rarer than foretold: the least of many estimates is
            mostly one that erred in our favour.
        time_share: What an hour of the trial is worth, as a share of the price of the market of the
            least step cost.
        start_s: From asking for a machine to training on it.
    """

    passages: Passages = field(default_factory=SimilarMoments)
    doubt: float = 0.1
    time_share: float = 0.3
    start_s: float = 120.0

    def offers(
        self, view: View, job: JobView, steps_left: float, markets: Sequence[Market], seconds: Floats
    ) -> list[Offer]:
        mean = _mean_prices(view, markets)
        hour_usd = self._hour_usd(mean, seconds)
        saves = job.job.checkpoint is not None
        # What cannot be saved is lost with its machine: then only the highest max price will do.
        rises = RISES if saves else RISES[-1:]
        # Who would be dearer than another's sure price with all but the doubt free need not be asked about.
        least = (self.doubt * mean + hour_usd) * seconds
        able = least <= ((mean + hour_usd) * seconds).min() * _OVERHEAD
        cores = [view.machine(market).vcpus for market in markets]
        cycles = _cycle(
            view.billing,
            mean[:, None],
            (steps_left * seconds)[:, None],
            np.array([[self.start_s + job.job.restore_s(vcpus)] for vcpus in cores]),
            np.array([[job.job.save_s(vcpus) if saves else math.inf] for vcpus in cores]),
        )
        found = []
        for place, (market, step_s, asks) in enumerate(zip(markets, seconds.tolist(), able, strict=True)):
            chances = self._chances(view, market, rises) if asks else _NEVER
            useful = chances @ cycles.useful_s[place] / step_s
            usd = chances @ cycles.usd[place] + hour_usd * (chances @ cycles.lasts_s[place]) / HOUR_S
            per_step = np.full(len(usd), math.inf)
            np.divide(usd, useful, out=per_step, where=useful > 0.0)
            best = int(np.argmin(per_step))
            max_price = view.price(market) * (1.0 + float(rises[best] if asks else rises[-1]))
            revoked = 1.0 - float(chances[best, -1]) if asks else math.nan
            found.append(Offer(market, max_price, float(per_step[best]), revoked, step_s))
        return found

    def staying(self, view: View, place: int, markets: Sequence[Market], seconds: Floats) -> float:
        mean = _mean_prices(view, markets)
        return float(seconds[place] * (mean[place] + self._hour_usd(mean, seconds)) / HOUR_S)

    def _hour_usd(self, mean: Floats, seconds: Floats) -> float:
        """What an hour of a trial is worth."""
        return self.time_share * float(mean[np.argmin(mean * seconds)])

    def _chances(self, view: View, market: Market, rises: Floats) -> Floats:
        """Of each max price, when it is exceeded; shape (rises, CELLS + 1)."""
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
    """Leases by when the price exceeds their max price; arrays of shape (CELLS + 1,), or one row a market.

    Attributes:
        useful_s: Trained and kept.
        usd: What it costs.
        lasts_s: From asking to the end.
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
    """What becomes of a lease whose notice comes in each cell, or not within the hour; of many, in columns.

    Args:
        billing: Of spot leases.
        price: USD per hour.
        work_s: That the trial has left; it gives the machine back when it is done, or after an hour.
        before_s: From asking for the machine to the first new step.
        save_s: To save before it goes; infinity: it cannot.
    """
    own_end_s = np.minimum(before_s + work_s, HOUR_S + before_s)
    # In the middle of its cell; whether it comes in time to be free is judged by the cell's end.
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
