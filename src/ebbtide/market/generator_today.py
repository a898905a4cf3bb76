"""A generator of spot prices of machines with GPUs as they are in 2026.

On GCP a region has one price for a machine. It is changed every few weeks by some per cent, and stands at a share
of the list price that depends on the accelerator and differs by region; H100s stand at either of two levels, of
which the upper is more than three times the lower, and a region passes from one to the other after some months. On
AWS prices move a little several times a day. Prices revoke nobody: capacity comes and goes by itself, see
`drawn_availability`.

The figures are those of a year of recorded GCP prices, 2025-03 to 2026-02 (`today/gcp-spot-2023-2026` of the
public traces), and for AWS those of `generator`. The tests measure both in the same terms.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import DAY_S, Time, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.generator import smooth_series
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.market.prices import PriceHistory

# When generated prices begin, unless told otherwise.
TODAY = "2026-02-01T00:00:00Z"

# Machines with one L4, A100 or H100, or with eight H100s, and the zones that offer them.
_GCP_TYPES = ("g2-standard-8", "a2-highgpu-1g", "a3-highgpu-1g", "a3-highgpu-8g")
_GCP_ZONES = (
    "us-central1-a",
    "us-central1-c",
    "us-east5-a",
    "us-west1-b",
    "europe-west1-c",
    "europe-west4-b",
    "asia-northeast1-b",
    "asia-south2-b",
)
_AWS_TYPES = ("g6.2xlarge", "p4d.24xlarge", "p5.48xlarge")
_AWS_ZONES = ("us-east-1a", "us-east-1b", "us-east-1d")

_MOST_DAYS = 3_660


@dataclass(frozen=True)
class PriceLevels:
    """GCP's spot price levels for the machines of one accelerator.

    Attributes:
        ratio: Median price as a share of the list price.
        spread: Log-normal spread of that share over regions.
        upper_ratio: The other level at which a region may be, as a share of the list price.
        upper_share: Share of regions at that level.
        level_days: Mean days until a region moves to the other level or back, if there are two.
        change_days: Mean days between price changes.
        change: Standard deviation of a change of the log price.
    """

    ratio: float
    spread: float
    change: float
    change_days: float = 45.0
    upper_ratio: float = 0.0
    upper_share: float = 0.0
    level_days: float = 120.0


LEVELS = {
    "NVIDIA L4": PriceLevels(0.345, 0.2, 0.07, 100.0),
    "NVIDIA A100": PriceLevels(0.43, 0.14, 0.1, 62.0),
    "NVIDIA H100": PriceLevels(0.185, 0.12, 0.12, 50.0, upper_ratio=0.7, upper_share=0.18),
}

# A change is of a tenth or so; one that is larger is a passage between levels.
_LEAST_RATIO, _MOST_RATIO = 0.1, 0.95


def today_markets() -> tuple[Market, ...]:
    """The markets of the embedded default: machines with L4s, A100s and H100s on GCP and AWS."""
    known = default_catalogue()
    at_s = to_epoch_s(TODAY)
    asked = [Market("gcp", zone[:-2], zone, name) for name in _GCP_TYPES for zone in _GCP_ZONES]
    asked += [Market("aws", zone[:-1], zone, name) for name in _AWS_TYPES for zone in _AWS_ZONES]
    return tuple(market for market in asked if known.on_demand_usd_per_hour(market, at_s) is not None)


def generate_today(
    markets: Iterable[Market] | None = None,
    *,
    start: Time = TODAY,
    days: float = 60.0,
    seed: int = 0,
    catalogue: Catalogue | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PriceHistory:
    """Generate a price history of machines with GPUs as they are in 2026.

    Args:
        markets: Markets to generate, each with a known list price and an accelerator of `LEVELS`; `today_markets`
            by default.
        start: When the record begins, as text or seconds since 1970.
        days: Length of the record in days.
        seed: Random seed; a market's prices depend on its name and the seed alone.
        catalogue: Instance types and list prices; by default those that ship with Ebbtide.
        on_progress: Called after each market with the number done and the number of markets.

    Raises:
        InputError: `days` is not positive or above ten years, or a market's list price or accelerator is unknown.
    """
    if not days > 0:
        raise InputError(f"days is {days}; it must be positive")
    if days > _MOST_DAYS:
        raise InputError(f"days is {days:g}; at most {_MOST_DAYS:,} are generated")
    start_s = to_epoch_s(start)
    end_s = start_s + days * DAY_S
    catalogue = catalogue or default_catalogue()
    chosen = tuple(markets) if markets is not None else today_markets()
    series = {}
    for market in chosen:
        listed = catalogue.on_demand_usd_per_hour(market, start_s) if market in catalogue else None
        if listed is None:
            raise InputError(f"list price of {market} is not known, so no price can be generated from it")
        accelerator = catalogue.machine_of(market).accelerator
        if market.cloud == "aws":
            series[market] = smooth_series(market, listed, start_s, end_s, seed)
        elif accelerator in LEVELS:
            series[market] = _region_series(market, LEVELS[accelerator], listed, start_s, end_s, seed)
        else:
            known = ", ".join(LEVELS)
            raise InputError(f"prices of {market} cannot be generated: it has none of {known}")
        if on_progress:
            on_progress(len(series), len(chosen))
    return PriceHistory(series, start_s=start_s, end_s=end_s)


def _region_series(
    market: Market, levels: PriceLevels, list_usd_per_hour: float, start_s: float, end_s: float, seed: int
) -> PriceSeries:
    """The price of a machine in a region, which is that of all of its zones."""
    name = f"{market.cloud} {market.region} {market.instance_type}"
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    own = float(np.exp(random.normal(0.0, levels.spread)))
    times_s = _arrivals(random, start_s, end_s, levels.change_days)
    is_upper = _levels(random, times_s, levels)
    # Steps back towards the region's own level, so that prices do not drift away over years.
    log, ratios = random.normal(0.0, levels.change), np.empty(len(times_s))
    for place, upper in enumerate(is_upper.tolist()):
        level = levels.upper_ratio if upper else levels.ratio * own
        ratios[place] = level * float(np.exp(log))
        log = 0.7 * log + random.normal(0.0, levels.change)
    prices = np.round(np.clip(ratios, _LEAST_RATIO, _MOST_RATIO) * list_usd_per_hour, 6)
    moved = np.append(True, np.diff(prices) != 0)
    return PriceSeries(times_s[moved], prices[moved])


def _arrivals(random: np.random.Generator, start_s: float, end_s: float, mean_days: float) -> Floats:
    """The start, and times of changes with exponential gaps, on whole seconds."""
    times = [start_s]
    while times[-1] < end_s:
        times.append(times[-1] + max(random.exponential(mean_days * DAY_S), 60.0))
    found: Floats = np.unique(np.round(times[:-1]))
    return found


def _levels(random: np.random.Generator, times_s: Floats, levels: PriceLevels) -> np.ndarray:
    """Draw whether the region is at the upper level at each change, shape (changes,)."""
    share = levels.upper_share
    found = np.zeros(len(times_s), dtype=bool)
    found[0] = random.random() < share
    for place, gap_s in enumerate(np.diff(times_s).tolist(), start=1):
        passes = random.random() < -np.expm1(-gap_s / (levels.level_days * DAY_S))
        found[place] = random.random() < share if passes else found[place - 1]
    return found
