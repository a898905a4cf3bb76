"""What a plan would cost that knows the prices to come (Cümülön-D 4): the least that any policy can pay.

With one speedup for all the work and no overhead, the simple greedy is optimal: one machine more in one tick,
always where it does most for its money. Overheads only add to that, so it is a bound for every policy. In general
a dynamic program is needed: the cookbook's own induction, on a market with one price in each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide._compiling import compiled
from ebbtide.errors import InputError
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem


def least_costs(workflow: Workflow, prices: Floats, traces: np.ndarray, tick_s: float, most: int) -> Floats:
    """The least cost of each trace, USD, charged tick by tick; infinity: it cannot be done in the trace.

    Args:
        workflow: Whose jobs have one speedup.
        prices: USD per hour, rising, shape (P,).
        traces: Places in `prices`, shape (runs, ticks).
        tick_s: How long a tick is.
        most: Machines at once.

    Raises:
        InputError: The jobs have several speedups, or a speedup that is not concave.
    """
    speeds = workflow.speeds(most)
    if not np.allclose(speeds, speeds[0]):
        raise InputError(f"{workflow.name} has jobs of several speedups; the bound is for one")
    gains = np.diff(speeds[0]) * tick_s / 3600.0
    if (np.diff(gains) > 1e-9).any():
        raise InputError(f"{workflow.name}: a speedup that is not concave has no greedy plan")
    # The best first: (price, which machine) by work for the money. Of equals, the first machine before the second.
    gained = np.broadcast_to(gains, (len(prices), most))
    worth = (gained / prices[:, None]).ravel()
    order = np.argsort(-worth, kind="stable")
    usd = np.repeat(prices, most) * tick_s / 3600.0
    ticks = np.stack([(traces == place).sum(axis=1) for place in range(len(prices))], axis=1).astype(np.float64)
    found = np.empty(len(traces))
    _spend(ticks, order // most, gained.ravel()[order], usd[order], workflow.work_h, found)
    return found


def known_prices(workflow: Workflow, charges_usd: Floats, **given: Any) -> CookbookProblem:
    """The problem of who knows every charge to come; `solve` it for the best plan (the dynamic program of 4).

    Args:
        workflow: What is to be done, with overheads, in jobs of any speedups.
        charges_usd: Of a machine, step by step; shape (steps,).
        given: Other fields of the problem: step_h, most, work_unit_h, charge_steps.
    """
    charges: Floats = np.asarray(charges_usd, dtype=np.float64)[:, None, None]
    steps = len(charges)
    market = ChargeModel(np.ones(1), np.ones((steps, 1, 1)), charges, np.zeros((steps, 1)))
    return CookbookProblem(workflow, market, **given)


def cheapest_charge(traces: np.ndarray, period_ticks: int) -> np.ndarray:
    """Where periods are charged at the price at their beginning: the cheapest that a tick can be part of.

    With these, `least_costs` bounds what any plan pays that is charged so, of machines that are not taken.
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
