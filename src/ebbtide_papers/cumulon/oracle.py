"""The cost of a plan that knows all future prices (Cümülön-D 4): a lower bound for every policy.

With one speedup for all the work and no overhead, a greedy plan is optimal: add one machine in one tick, always
where it does the most work for its price. Overheads only add to that, so it is a bound for every policy. In
general a dynamic program is needed: the cookbook's own induction, on a market with one price in each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.base.compiling import compiled
from ebbtide.errors import InputError
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.price_series import Floats


def least_costs(workflow: Workflow, prices: Floats, traces: np.ndarray, tick_s: float, most: int) -> Floats:
    """The least cost on each trace, USD, charged tick by tick; infinity: the work does not fit; shape (runs,).

    Args:
        workflow: A workflow whose jobs have the same speedup.
        prices: Price levels, USD per hour, rising; shape (P,).
        traces: Indices of `prices`; shape (runs, ticks).
        tick_s: Length of a tick in seconds.
        most: Largest number of machines at once.

    Raises:
        InputError: The jobs have several speedups, or a speedup that is not concave.
    """
    speeds = workflow.speeds(most)
    if not np.allclose(speeds, speeds[0]):
        raise InputError(f"{workflow.name} has jobs of several speedups; the bound is for one")
    gains = np.diff(speeds[0]) * tick_s / 3600.0
    if (np.diff(gains) > 1e-9).any():
        raise InputError(f"{workflow.name}: a speedup that is not concave has no greedy plan")
    # Pairs of price and machine in order of work per USD. Of equals, the first machine comes before the second.
    gained = np.broadcast_to(gains, (len(prices), most))
    worth = (gained / prices[:, None]).ravel()
    order = np.argsort(-worth, kind="stable")
    usd = np.repeat(prices, most) * tick_s / 3600.0
    ticks = np.stack([(traces == place).sum(axis=1) for place in range(len(prices))], axis=1).astype(np.float64)
    found = np.empty(len(traces))
    _spend(ticks, order // most, gained.ravel()[order], usd[order], workflow.work_h, found)
    return found


def cheapest_charge(traces: np.ndarray, period_ticks: int) -> np.ndarray:
    """Traces of the cheapest charge that a tick can be part of, where periods are charged at their first price.

    With these, `least_costs` bounds the cost of any plan that is charged so, with machines that are not revoked.
    """
    found = traces.copy()
    for back in range(1, period_ticks):
        found[:, back:] = np.minimum(found[:, back:], traces[:, :-back])
    return found


@compiled
def _spend(ticks: Any, place: Any, gained: Any, usd: Any, work_h: float, found: Any) -> None:
    for run in range(len(ticks)):
        left, spent = work_h, 0.0
        for n in range(len(place)):
            count = ticks[run, place[n]]
            if count == 0.0 or gained[n] <= 0.0:
                continue
            done = count * gained[n]
            if done >= left:
                spent += usd[n] * left / gained[n]
                left = 0.0
                break
            left -= done
            spent += usd[n] * count
        found[run] = spent if left <= 0.0 else np.inf
