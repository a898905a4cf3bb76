"""Prices as EC2 tells them, looked at again when they are old."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from tests.live.sweeps import A, flapping, sweep

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.live.clouds.ec2.current_prices import CurrentPrices
from ebbtide.market.catalogue import Catalogue, InstanceType
from ebbtide.market.price_store import PriceStore
from ebbtide.testing.ec2_stand_in.running import stand_in
from ebbtide.testing.stand_in.money import until_now


def test_they_are_the_allowed_markets_and_kept_where_ec2_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = sweep(tmp_path, markets={"zones": [A.zone]})
    whole = until_now(flapping(), time.time())
    store = PriceStore(tmp_path / "prices.db")
    with stand_in(tmp_path / "stand-in", whole) as (api, _, _):
        prices = CurrentPrices(store, wanted, ["us-east-1"], every_s=0.0)
        found = prices()
        assert list(found.markets) == [A]
        assert found[A].prices.tolist() == whole[A].prices.tolist()
        assert found[A].times_s == pytest.approx(whole[A].times_s, abs=1.0)
        api.refusals.expired.add("FIRST")
        with caplog.at_level(logging.WARNING):
            assert prices()[A].prices.tolist() == whole[A].prices.tolist()
        assert "prices stay as they were" in caplog.text


def test_types_of_the_run_s_own_catalogue_are_looked_for(tmp_path: Path) -> None:
    own = InstanceType("aws", "x9.own", 6, 12.0)
    flaps = until_now(flapping(), time.time())
    market = eb.Market("aws", A.region, A.zone, own.name)
    prices = eb.PriceHistory({A: flaps[A], market: flaps[A]}, start_s=flaps.start_s, end_s=flaps.end_s)
    wanted = sweep(tmp_path, cpus=5, steps_per_hour={}, other_steps_per_hour_per_vcpu=100)
    catalogue = Catalogue([*eb.default_catalogue().instance_types, own], {})
    with stand_in(tmp_path / "stand-in", prices):
        found = CurrentPrices(PriceStore(tmp_path / "prices.db"), wanted, ["us-east-1"], catalogue)()
    assert list(found.markets) == [market]


def test_a_sweep_that_allows_no_market_is_told(tmp_path: Path) -> None:
    wanted = sweep(tmp_path, markets={"zones": ["us-east-1f"]})
    with stand_in(tmp_path / "stand-in", until_now(flapping(), time.time())):
        prices = CurrentPrices(PriceStore(tmp_path / "prices.db"), wanted, ["us-east-1"])
        with pytest.raises(InputError, match="allows none of the 2 markets"):
            prices()
