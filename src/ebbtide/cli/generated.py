"""The kinds of generated markets, and the prices and the capacity of each."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from ebbtide.forecasts.spells.drawing import drawn_availability, typed_models
from ebbtide.market.availability import Availability
from ebbtide.market.generator import generate_prices, generate_smooth_prices
from ebbtide.market.generator_today import generate_today
from ebbtide.market.prices import PriceHistory

# Machines of a market at once, while it has any.
_MACHINES = 64


class Kind(StrEnum):
    """The kind of market."""

    TODAY = "today"
    GPU = "gpu"
    AUCTION = "auction"


KINDS_HELP = (
    "today: machines with L4s, A100s and H100s on GCP and AWS in 2026, whose capacity comes and goes; gpu: EC2's "
    "machines with K80s and V100s in 2020, with prices that move slowly; auction: EC2 until 2017, with spikes far "
    "above the list price that revoke machines."
)

_GENERATORS: dict[Kind, Callable[..., PriceHistory]] = {
    Kind.TODAY: generate_today,
    Kind.GPU: generate_smooth_prices,
    Kind.AUCTION: generate_prices,
}


def generated(
    kind: Kind, days: float, seed: int, on_progress: Callable[[int, int], None] | None = None
) -> PriceHistory:
    """Generated prices.

    Args:
        kind: The kind of market.
        days: Length of the record, days.
        seed: Seed of the prices.
        on_progress: Called after each market with the number done and the number of markets.

    Raises:
        InputError: `days` is not positive or too long.
    """
    return _GENERATORS[kind](days=days, seed=seed, on_progress=on_progress)


def generated_capacity(kind: Kind, prices: PriceHistory, seed: int) -> Availability | None:
    """The capacity of a generated market, drawn from models of recorded zones; None: machines are always there."""
    if kind is not Kind.TODAY:
        return None
    return drawn_availability(prices, typed_models(prices, seed), _MACHINES, seed)
