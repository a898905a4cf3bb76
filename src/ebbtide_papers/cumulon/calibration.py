"""The calibration of the market's rates: the four that reproduce four of the paper's figures best.

python -m ebbtide_papers.cumulon.calibration
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide_papers.cumulon.cookbook_replays import play_dynamically, play_strictly
from ebbtide_papers.cumulon.market import TICK_S, TransitionRates, described_chain, rsvd_workflow
from ebbtide_papers.cumulon.oracle import least_costs

# 6.2 and Table 2: RSVD-1 in 15 hours; oracle, strict and dynamic from 0.20 USD, dynamic from 0.02.
PAPER_USD = np.array([3.47, 7.28, 6.70, 1.30])

_MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
_HOURS, _MOST = 15, 100

# First guess of the search.
_FIRST = TransitionRates(rise=0.0035, fall=0.012, spike=0.004, end=0.03)


def figures_usd(rates: TransitionRates, *, traces: int, seed: int = 1) -> np.ndarray:
    """The four figures on a market with these rates, USD, in the order of `PAPER_USD`; shape (4,)."""
    chain, workflow = described_chain(rates), rsvd_workflow()
    market = ChargeModel(chain.prices, *chain.steps(_MONDAY_S, _HOURS, HOUR_S))
    book = solve(CookbookProblem(workflow, market, most=_MOST))
    ticks = round(_HOURS * HOUR_S / TICK_S)
    expensive, usual = (chain.simulate(_MONDAY_S, price, ticks, traces, seed) for price in (0.20, 0.02))
    return np.array(
        [
            least_costs(workflow, chain.prices, expensive, TICK_S, _MOST).mean(),
            play_strictly(book, expensive, TICK_S).cost_usd.mean(),
            play_dynamically(book, expensive, TICK_S).cost_usd.mean(),
            play_dynamically(book, usual, TICK_S).cost_usd.mean(),
        ]
    )


def distance(rates: TransitionRates, *, traces: int) -> float:
    """Sum of squared logarithms of our figures over the paper's."""
    off = np.log(figures_usd(rates, traces=traces) / PAPER_USD)
    return float(off @ off)


def calibrated(*, evaluations: int = 110, traces: int = 4_000) -> TransitionRates:
    """The best rates, searched from a first guess (Nelder-Mead, on logarithms)."""
    first = np.log([_FIRST.rise, _FIRST.fall, _FIRST.spike, _FIRST.end])

    def off(logs: Floats) -> float:
        return distance(TransitionRates(*np.exp(logs)), traces=traces)

    found = minimize(
        off, first, method="Nelder-Mead", options={"maxfev": evaluations, "xatol": 0.02, "fatol": 1e-3}
    )
    return TransitionRates(*(float(rate) for rate in np.exp(found.x)))


if __name__ == "__main__":
    rates = calibrated()
    print(rates, figures_usd(rates, traces=50_000), "paper", PAPER_USD)
