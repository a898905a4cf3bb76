"""The kinds of generated markets: what is offered in each, its prices and its capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ebbtide.base.utc import Time
from ebbtide.forecasts.capacity.drawing import drawn_availability, typed_models
from ebbtide.market.availability import Availability
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.generator import (
    AUCTION_FROM,
    SMOOTH_FROM,
    demo_markets,
    generate_prices,
    generate_smooth_prices,
    gpu_markets,
)
from ebbtide.market.generator_today import TODAY, generate_today, today_markets
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory

# Machines of a market at once, while it has any.
_MACHINES = 64


class MarketKind(StrEnum):
    """The kind of market."""

    TODAY = "today"
    GPU = "gpu"
    AUCTION = "auction"


KINDS_HELP = (
    "today: machines with L4s, A100s and H100s on GCP and AWS in 2026, whose capacity comes and goes; gpu: EC2's "
    "machines with K80s and V100s in 2020, with prices that move slowly; auction: EC2 until 2017, with spikes far "
    "above the list price that revoke machines."
)


@dataclass(frozen=True)
class _Profile:
    """Default start and markets of a kind of generated market, and the function that generates its prices."""

    begins: str
    usual: Callable[[], tuple[Market, ...]]
    prices: Callable[..., PriceHistory]


_PROFILES = {
    MarketKind.TODAY: _Profile(TODAY, today_markets, generate_today),
    MarketKind.GPU: _Profile(SMOOTH_FROM, gpu_markets, generate_smooth_prices),
    MarketKind.AUCTION: _Profile(AUCTION_FROM, demo_markets, generate_prices),
}


def usual_markets(kind: MarketKind) -> tuple[Market, ...]:
    """The markets that are generated where none are named."""
    return _PROFILES[kind].usual()


def usual_begin(kind: MarketKind) -> str:
    """Default start of generated prices, as text."""
    return _PROFILES[kind].begins


def generated(
    kind: MarketKind,
    days: float,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    markets: Sequence[Market] | None = None,
    start: Time | None = None,
    catalogue: Catalogue | None = None,
) -> PriceHistory:
    """Generated prices.

    Args:
        kind: The kind of market.
        days: Length of the record, days.
        seed: Seed of the prices.
        on_progress: Called after each market with the number done and the number of markets.
        markets: The markets; by default those of `usual_markets`.
        start: When the prices begin; by default `usual_begin`.
        catalogue: Instance types and list prices; by default those that ship with Ebbtide.

    Raises:
        InputError: `days` is not positive or too long, or a market's list price is unknown.
    """
    profile = _PROFILES[kind]
    return profile.prices(
        markets,
        start=profile.begins if start is None else start,
        days=days,
        seed=seed,
        catalogue=catalogue,
        on_progress=on_progress,
    )


def generated_capacity(kind: MarketKind, prices: PriceHistory, seed: int) -> Availability | None:
    """The capacity of a generated market, drawn from models of recorded zones; None: machines are always there."""
    if kind is not MarketKind.TODAY:
        return None
    return drawn_availability(prices, typed_models(prices, seed), _MACHINES, seed)
