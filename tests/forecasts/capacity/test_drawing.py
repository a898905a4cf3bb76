"""Capacity drawn from spell models: zones of a region lose it together as recorded zones do."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import TRACES

from ebbtide.forecasts.capacity.drawing import drawn_availability, typed_models
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.market.availability import Availability
from ebbtide.market.generator_today import generate_today
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.deadlines.regions import shared_ends
from ebbtide_papers.deadlines.zone_sets import read_capacity_rounds, read_probed_zones

TICK_S = 600.0


def together(prices: PriceHistory, capacity: Availability) -> float:
    times_s = np.arange(prices.start_s, prices.end_s, TICK_S)
    markets = [market for market in prices if market.region in ("us-central1", "us-east-1")]
    up = np.array([[capacity[market].at(time_s) > 0 for time_s in times_s] for market in markets])
    return shared_ends(up, [f"{market.region} {market.instance_type}" for market in markets], TICK_S)


def test_zones_of_a_region_lose_capacity_together_and_each_as_its_model_says() -> None:
    prices = generate_today(days=40, seed=1)
    models = default_spell_models()
    drawn = drawn_availability(prices, models, 2, 1)
    alone = drawn_availability(prices, models, 2, 1, shared=0.0)
    assert together(prices, drawn) > together(prices, alone) + 0.05
    for capacity in (drawn, alone):
        shares = [series.share_available(2) for series in capacity.values()]
        assert np.mean(shares) == pytest.approx(models.otherwise.share_up, abs=0.08)


def test_markets_are_of_the_types_of_recorded_zones() -> None:
    prices = generate_today(days=1, seed=1)
    models = typed_models(prices, 3)
    base = default_spell_models()
    assert base.types is not None
    shares = {models.of(market).share_up for market in prices}
    assert shares <= {model.share_up for model in base.types.models}
    assert len(shares) > 1
    assert {str(market): models.of(market).share_up for market in prices} == {
        str(market): typed_models(prices, 3).of(market).share_up for market in prices
    }


@pytest.mark.real_traces
def test_recorded_zones_of_a_region_lose_capacity_together_and_those_of_others_do_not() -> None:
    probed = read_probed_zones(
        TRACES / "ec2-gpu-availability-2022-2023.parquet", [TRACES / "ec2-v100-2023.parquet"], left_out=[]
    )
    rounds = read_capacity_rounds(TRACES / "gcp-h100-capacity-2025.parquet", [TRACES / "catalogue.parquet"])
    ours = np.mean([together(generate_today(days=40, seed=s), _drawn(s)) for s in (1, 2)])
    for records in (*probed, *rounds[0]):
        regions = [place.region for place in records.places]
        real = shared_ends(records.available, regions, records.tick_s)
        assert 0.08 < real < 0.3
        assert ours == pytest.approx(real, abs=0.1)
        # Each zone beside those of other regions, as if they were of one.
        elsewhere = [
            shared_ends(records.available[[one, other]], ["x", "x"], records.tick_s)
            for one, here in enumerate(regions)
            for other, there in enumerate(regions[:one])
            if here != there
        ]
        assert np.nanmean(elsewhere) < 0.5 * real


def _drawn(seed: int) -> Availability:
    prices = generate_today(days=40, seed=seed)
    return drawn_availability(prices, typed_models(prices, seed), 1, seed)
