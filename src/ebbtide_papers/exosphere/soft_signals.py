"""The value of early warnings by price: the share of revocations they precede, how early, and false alarms.

A server is at risk from the time its price reaches a share of the bid until it falls below again (ExoSphere 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.candidates import Candidates

LEVELS = (0.3, 0.5, 0.7, 0.9)

# EC2's notice, seconds: a warning must come earlier to count.
_NOTICE_S = 120.0


def soft_signals(
    prices: PriceHistory, candidates: Candidates, *, levels: Sequence[float] = LEVELS
) -> dict[str, Any]:
    """By level: revocations, those with a warning, their median lead, warnings, false alarms.

    Args:
        prices: Price history of the markets.
        candidates: Markets to study, with their bids.
        levels: Warning levels, as shares of the bid.
    """
    found = {}
    for level in levels:
        leads_s: list[float] = []
        revocations = in_vain = 0
        for market, bid in zip(candidates.markets, candidates.on_demand_usd.tolist(), strict=True):
            told_s, taken, vain = _warnings(prices[market], bid, level)
            leads_s += told_s
            revocations += taken
            in_vain += vain
        early = [lead_s for lead_s in leads_s if lead_s >= _NOTICE_S]
        warnings = len(early) + in_vain
        found[f"{level:g}"] = {
            "revocations": revocations,
            "warned_of": len(early) / revocations if revocations else None,
            "median_lead_s": float(np.median(early)) if early else None,
            "warnings": warnings,
            "in_vain": in_vain / warnings if warnings else None,
        }
    return found


def _warnings(series: PriceSeries, bid: float, level: float) -> tuple[list[float], int, int]:
    """Lead of the warning of each revocation, seconds; number of revocations; number of false alarms."""
    # 0: quiet, 1: at risk, 2: above the bid. Repeated states are merged.
    states = np.where(series.prices > bid, 2, np.where(series.prices >= level * bid, 1, 0))
    first = np.flatnonzero(np.diff(states, prepend=-1))
    states, times_s = states[first], series.times_s[first]
    taken = np.flatnonzero((states[1:] == 2) & (states[:-1] < 2)) + 1
    # At risk after above the bid is the end of a spike, when nothing is rented.
    before_quiet = np.append(False, states[:-1] == 0)
    warned = taken[(states[taken - 1] == 1) & before_quiet[taken - 1]]
    leads_s: list[float] = (times_s[warned] - times_s[warned - 1]).tolist()
    vain = (states[:-1] == 1) & before_quiet[:-1] & (states[1:] == 0)
    return leads_s, len(taken), int(vain.sum())
