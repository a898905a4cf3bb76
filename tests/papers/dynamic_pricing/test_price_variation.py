"""Variation of GPU prices, by hand."""

from __future__ import annotations

import pytest
from tests.markets import history

import ebbtide as eb
from ebbtide.market.lifetimes import Life
from ebbtide_papers.dynamic_pricing.claims import reproduce_dynamic_pricing
from ebbtide_papers.dynamic_pricing.figures import dynamic_pricing_figure
from ebbtide_papers.dynamic_pricing.price_variation import (
    dollar_normalised,
    extremes,
    list_price_per_gpu,
    transfer_costs,
    variation,
)
from ebbtide_papers.dynamic_pricing.study import EGRESS_USD_PER_GB, follow, gpu_markets

V100 = eb.Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
K80, K80_B = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "p2.xlarge") for zone in "ab")
K80S = eb.Market("aws", "us-east-1", "us-east-1b", "p2.8xlarge")
AZURE_K80 = eb.Market("azure", "us-east", "us-east", "NC6", "Linux")
HALF = 48 * 3600.0
AWS = history({V100: [(0, 1.0)], K80: [(0, 0.2), (HALF, 0.4)], K80_B: [(0, 0.3)], K80S: [(0, 1.6)]}, hours=96.0)
AZURE = history({AZURE_K80: [(0, 0.25)]}, hours=96.0)
CATALOGUE = eb.default_catalogue()


def test_table_one_normalises_by_the_list_price() -> None:
    listed = list_price_per_gpu([AWS, AZURE], CATALOGUE)
    assert listed == {"k80": 0.9, "v100": 3.06}
    table = dollar_normalised({"ResNet-50": {"k80": 1.0, "p100": 3.7, "v100": 9.6}, "x": {"v100": 1.0}}, listed)
    assert list(table) == ["ResNet-50"]
    assert table["ResNet-50"] == pytest.approx({"k80": 1.0, "v100": 9.6 * 0.9 / 3.06})


def test_table_two_by_hand() -> None:
    table = transfer_costs(gpu_markets([AWS], CATALOGUE))
    assert table["resnet50"]["dataset"] == pytest.approx(150 * EGRESS_USD_PER_GB / 160)
    assert table["bert_base"]["model"] == pytest.approx(0.408 * EGRESS_USD_PER_GB / 160)


def test_how_much_prices_vary() -> None:
    table = variation(gpu_markets([AWS], CATALOGUE))
    assert table["aws 1 x k80"]["usd_per_gpu_hour"] == pytest.approx(0.3)
    # One of two swings by a third about its mean.
    assert table["aws 1 x k80"]["deviation_over_mean"] == pytest.approx((1 / 3) / 2)
    assert table["aws 1 x k80"]["share_that_never_change"] == 0.5
    assert table["aws 8 x k80"]["usd_per_gpu_hour"] == pytest.approx(0.2)
    assert table["aws 8 x k80"]["deviation_over_mean"] == pytest.approx(0, abs=1e-12)


def test_the_least_and_the_most_and_who_is_cheapest() -> None:
    table = extremes(gpu_markets([AWS, AZURE], CATALOGUE))
    row = table["aws 1 x k80"]
    assert (row["least_usd_per_gpu_hour"], row["most_usd_per_gpu_hour"]) == pytest.approx((0.25, 0.35))
    assert row["share_of_hours_cheapest"] == 0.5
    assert table["azure 1 x k80"]["share_of_hours_cheapest"] == 0.5


def test_a_dataset_is_paid_for_once_or_kept_away_from() -> None:
    """A K80 on Azure at 0.05 against 0.2 here: worth 1 GB, not 1,000."""
    azure = history({AZURE_K80: [(0, 0.05)]}, hours=96.0)
    known = gpu_markets([AWS, azure], CATALOGUE)
    rates = {"k80": 1.0, "v100": 1.0}
    usd = {size: follow(known, rates, 2.0, size).usd_per_step["dynamic"][0] * 3600 for size in (0.0, 1.0, 1000.0)}
    assert usd[0.0] == pytest.approx(0.05)
    assert usd[1.0] == pytest.approx(0.05 + EGRESS_USD_PER_GB / 48)
    assert usd[1000.0] == pytest.approx(0.2)


def test_every_figure_is_drawn() -> None:
    aws = history({V100: [(0, 1.0)], K80: [(0, 0.2), (HALF, 0.4)]}, hours=200.0)
    lives = [Life("aws", "us-east-1a", "k80", 1, aws.start_s, aws.start_s + 3600, True)]
    found = reproduce_dynamic_pricing([aws], {"m": {"k80": 1.0, "v100": 4.0}}, CATALOGUE, lives, inputs={})
    assert set(found.tables["lives"]) == {"aws us-east-1a 1 x k80"}
    figure = dynamic_pricing_figure(gpu_markets([aws], CATALOGUE), lives, found.tables)
    axes = {trace.xaxis or "x" for trace in figure.data}
    assert len(axes) == 6
