"""Egress: free within a region, little between regions, more to other clouds."""

from __future__ import annotations

import pytest

from ebbtide.errors import InputError
from ebbtide.market.egress import GIB, EgressPrices
from ebbtide.market.markets import Market, Place

HERE, THERE = Place("aws", "us-east-1"), Place("aws", "eu-west-1")
AZURE = Place("azure", "us-east")


def test_what_leaves_is_charged_by_where_it_goes() -> None:
    prices = EgressPrices()
    assert prices.usd(10 * GIB, HERE, HERE) == 0.0
    assert prices.usd(10 * GIB, HERE, THERE) == pytest.approx(0.20)
    assert prices.usd(10 * GIB, HERE, AZURE) == pytest.approx(0.90)
    assert prices.usd(10 * GIB, AZURE, HERE) == pytest.approx(0.87)
    assert EgressPrices(to_other_clouds={"aws": 0.05}).usd_per_gib(HERE, AZURE) == 0.05


def test_a_cloud_without_a_known_price_is_told() -> None:
    with pytest.raises(InputError, match="unknown cloud with egress prices 'here'; known: aws, azure, gcp"):
        EgressPrices().usd(1, Place("here", "a"), Place("here", "b"))


def test_a_market_knows_its_place() -> None:
    assert Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge").place == HERE
    assert str(HERE) == "aws us-east-1"
