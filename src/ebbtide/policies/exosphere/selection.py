"""How markets are chosen for a cluster: by ExoSphere's portfolios, or as its rivals do (ExoSphere 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np

from ebbtide.market.catalogue import InstanceType
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.exosphere.candidates import Candidates


class Selection(StrEnum):
    """Who chooses."""

    PORTFOLIO = "portfolio"
    LOWEST_COST = "lowest-cost"  # Spot Fleet: the one market that is cheapest by the core now
    DIVERSIFIED = "diversified"  # Spot Fleet: all markets in equal parts
    CHEAPEST = "cheapest"  # the one that saved most while it was paid for
    GREEDY = "greedy"  # the ten that saved most, in equal parts


# So many markets greed takes (6.1 tries several numbers; Figure 7a).
_GREEDY_COUNT = 10


def rival_weights(
    selection: Selection,
    found: Candidates,
    price: Callable[[Market], float],
    machine: Callable[[Market], InstanceType],
) -> Floats:
    """A rival's weights.

    Args:
        selection: Any but `PORTFOLIO`.
        found: To choose from, as the past has them.
        price: Of a market now.
        machine: What a machine of it is.

    Returns:
        Weights, shape (n,); they sum to 1.
    """
    by_core: Floats = np.array([price(market) / machine(market).vcpus for market in found.markets])
    orders: Mapping[Selection, tuple[Floats, int]] = {
        Selection.LOWEST_COST: (by_core, 1),
        Selection.DIVERSIFIED: (by_core, len(by_core)),
        Selection.GREEDY: (-found.returns, _GREEDY_COUNT),
        Selection.CHEAPEST: (-found.returns_paid, 1),
    }
    values, count = orders[selection]
    chosen = np.argsort(values, kind="stable")[:count]
    weights = np.zeros(len(values))
    weights[chosen] = 1.0 / len(chosen)
    return weights
