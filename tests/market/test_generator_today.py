"""Generated prices of today's machines: as recorded ones, the same for the same seed, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.conftest import TRACES

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.generator_today import LEVELS, TODAY, generate_today, today_markets
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

YEAR_D = 357.0


def measured(prices: PriceHistory) -> dict[str, tuple[float, float, float, float]]:
    """By accelerator, of GCP's regions: median share of the list price, share of regions that stand at twice that or
    more, days between changes, mean change of the log price."""
    catalogue = eb.default_catalogue()
    found: dict[str, list[tuple[float, float, float]]] = {}
    for market, series in prices.items():
        listed = catalogue.on_demand_usd_per_hour(market, prices.end_s) if market in catalogue else None
        accelerator = catalogue.machine_of(market).accelerator if market in catalogue else None
        if listed and accelerator in LEVELS and market.cloud == "gcp":
            found.setdefault(str(accelerator), []).append(of_series(series, listed, prices))
    return {name: summed(rows) for name, rows in found.items()}


def of_series(series: PriceSeries, listed: float, prices: PriceHistory) -> tuple[float, float, float]:
    times_s, usd = series.between(prices.start_s, prices.end_s)
    ratio = usd / listed
    change = float(np.abs(np.diff(np.log(ratio))).mean()) if len(ratio) > 1 else math.nan
    return float(np.median(ratio)), (prices.end_s - prices.start_s) / 86_400 / len(times_s), change


def summed(rows: list[tuple[float, float, float]]) -> tuple[float, float, float, float]:
    ratio, gaps, change = np.array(rows).T
    middle = float(np.median(ratio))
    return middle, float((ratio > 1.8 * middle).mean()), float(gaps.mean()), float(np.nanmean(change))


@pytest.mark.real_traces
def test_prices_are_as_those_recorded_in_the_same_terms() -> None:
    whole = PriceHistory.read(TRACES / "today" / "gcp-spot-2023-2026.parquet")
    real = measured(whole.window("2025-03-01T00:00:00Z", "2026-02-20T00:00:00Z"))
    drawn = [measured(generate_today(days=YEAR_D, seed=seed)) for seed in range(6)]
    for accelerator, (ratio, upper, gap_d, change) in real.items():
        ours = np.mean([one[accelerator] for one in drawn], axis=0)
        assert ours[0] == pytest.approx(ratio, rel=0.25)
        assert ours[1] == pytest.approx(upper, abs=0.15)
        assert ours[2] == pytest.approx(gap_d, rel=0.35)
        assert ours[3] == pytest.approx(change, rel=0.6)


def test_a_region_has_one_price_and_regions_differ_several_fold() -> None:
    prices = generate_today(days=60, seed=1)
    central = [prices[Market("gcp", "us-central1", f"us-central1-{zone}", "a3-highgpu-8g")] for zone in "ac"]
    assert np.array_equal(central[0].prices, central[1].prices)
    now = [
        series.at(prices.end_s - 1) for market, series in prices.items() if market.instance_type == "a3-highgpu-8g"
    ]
    assert max(now) / min(now) > 2.0
    catalogue = eb.default_catalogue()
    for market, series in prices.items():
        listed = catalogue.on_demand_usd_per_hour(market, prices.start_s)
        assert listed is not None
        assert (series.prices < listed).all()
        assert (series.prices > 0.05 * listed).all()


def test_the_same_seed_gives_the_same_prices_whatever_else_is_generated() -> None:
    whole = generate_today(days=30, seed=4)
    assert whole.equals(generate_today(days=30, seed=4))
    one = today_markets()[3]
    assert np.array_equal(generate_today([one], days=30, seed=4)[one].prices, whole[one].prices)
    assert not whole.equals(generate_today(days=30, seed=5))
    assert whole.start_s == pytest.approx(PriceHistory.from_frame(whole.to_frame()).start_s)
    assert TODAY.startswith("2026")


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan"), 1e6])
def test_impossible_days_are_refused(days: float) -> None:
    with pytest.raises(InputError, match="days is"):
        generate_today(days=days)


def test_what_cannot_be_priced_is_refused() -> None:
    with pytest.raises(InputError, match="list price of .*z9.tiny.* is not known"):
        generate_today([Market("gcp", "us-central1", "us-central1-a", "z9.tiny")], days=1)
    with pytest.raises(InputError, match="it has none of NVIDIA L4"):
        generate_today([Market("azure", "us-east", "1", "NC12", "Linux")], days=1, start="2021-01-01T00:00:00Z")
