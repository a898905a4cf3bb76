"""What an early warning by price is worth: how many revocations it tells of, how early, how often in vain.

A server is shaky from when its price comes to a part of the bid until it falls below that again (ExoSphere 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.candidates import Candidates

LEVELS = (0.3, 0.5, 0.7, 0.9)

# EC2's notice: a warning that comes no earlier is none.
_NOTICE_S = 120.0


def soft_signals(
    prices: PriceHistory, candidates: Candidates, *, levels: Sequence[float] = LEVELS
) -> dict[str, Any]:
    """By level: revocations, those warned of, the median lead of these, warnings, those in vain.

    Args:
        prices: The record.
        candidates: Markets and bids.
        levels: Parts of the bid.
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
    """How long before each revocation it was warned of, revocations, warnings in vain."""
    # 0: quiet, 1: shaky, 2: above the bid. Runs of one state are one.
    states = np.where(series.prices > bid, 2, np.where(series.prices >= level * bid, 1, 0))
    first = np.flatnonzero(np.diff(states, prepend=-1))
    states, times_s = states[first], series.times_s[first]
    taken = np.flatnonzero((states[1:] == 2) & (states[:-1] < 2)) + 1
    # Shaky after above: that is how a spike ends, and nothing is rented then.
    before_quiet = np.append(False, states[:-1] == 0)
    warned = taken[(states[taken - 1] == 1) & before_quiet[taken - 1]]
    leads_s: list[float] = (times_s[warned] - times_s[warned - 1]).tolist()
    vain = (states[:-1] == 1) & before_quiet[:-1] & (states[1:] == 0)
    return leads_s, len(taken), int(vain.sum())
