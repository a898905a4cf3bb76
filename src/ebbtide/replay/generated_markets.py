"""The kinds of generated markets: what is offered in each, its prices and its capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ebbtide.base.utc import Time
from ebbtide.errors import unknown_name
from ebbtide.forecasts.capacity.drawing import drawn_availability, typed_models
from ebbtide.market.availability import Availability
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.generator import (
    AUCTION_FROM,
    SMOOTH_FROM,
    demo_markets,
    generate_auction_prices,
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
    MarketKind.AUCTION: _Profile(AUCTION_FROM, demo_markets, generate_auction_prices),
}


def usual_markets(kind: MarketKind) -> tuple[Market, ...]:
    """The markets that are generated where none are named."""
    return _PROFILES[kind].usual()


def usual_begin(kind: MarketKind) -> str:
    """Default start of generated prices, as text."""
    return _PROFILES[kind].begins


def generate_prices(
    markets: Iterable[Market] | None = None,
    *,
    kind: MarketKind | str = MarketKind.TODAY,
    start: Time | None = None,
    days: float = 60.0,
    seed: int = 0,
    catalogue: Catalogue | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PriceHistory:
    """Generate a price history.

    Args:
        markets: Markets to generate, each with a known list price; by default those of `usual_markets`.
        kind: The kind of market: `today`, `gpu` or `auction`.
        start: When the prices begin, as text or seconds since 1970; by default `usual_begin`.
        days: Length of the record, days.
        seed: Seed of the prices; those of a market depend on its name and the seed alone.
        catalogue: Instance types and list prices; by default those that ship with Ebbtide.
        on_progress: Called after each market with the number done and the number of markets.

    Raises:
        InputError: There is no such kind, `days` is not positive or too long, or a list price is unknown.
    """
    profile = _PROFILES[_known(kind)]
    return profile.prices(
        markets,
        start=profile.begins if start is None else start,
        days=days,
        seed=seed,
        catalogue=catalogue,
        on_progress=on_progress,
    )


def generate_capacity(
    prices: PriceHistory, *, kind: MarketKind | str = MarketKind.TODAY, seed: int = 0
) -> Availability | None:
    """Draw the capacity of a generated market from models of recorded zones.

    Args:
        prices: The generated prices.
        kind: The kind of market; machines are revoked for want of capacity only in `today`.
        seed: Seed of the spells with and without machines.

    Returns:
        The number of machines available in each market; None: machines are always available.

    Raises:
        InputError: There is no such kind.
    """
    if _known(kind) is not MarketKind.TODAY:
        return None
    return drawn_availability(prices, typed_models(prices, seed), _MACHINES, seed)


def _known(kind: MarketKind | str) -> MarketKind:
    if kind not in list(MarketKind):
        raise unknown_name("kind of market", str(kind), list(MarketKind))
    return MarketKind(kind)
