"""Prices as EC2 tells them, looked at again when they are old."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from tests.runs.sweeps import A, flapping, sweep
from tests.waiting import eventually

import ebbtide as eb
from ebbtide.clouds.ec2.current_prices import CurrentPrices
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, InstanceType
from ebbtide.market.price_store import PriceStore
from ebbtide.market.signals import Observation
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
            eventually(lambda: "prices stay as they were: EC2 price history of us-east-1" in caplog.text)


class Silent:
    """Regions of which some answer only when they may."""

    def __init__(self, regions: Sequence[str], *_: object, name: str, **__: object) -> None:
        self.regions, self.name, self.every_s = regions, name, 0.0

    asked: ClassVar[list[str]] = []
    answers: ClassVar[dict[str, threading.Event]] = {}

    def observe(self, _since_s: Mapping[str, float], now_s: float) -> Observation:
        (region,) = self.regions
        self.asked.append(region)
        assert self.answers[region].wait(60.0)
        if region == "us-west-2":
            raise InputError("EC2 price history of us-west-2: no answer")
        prices = until_now(flapping(), now_s).to_frame()
        return Observation(prices, places={region: "aws"})


def test_nobody_waits_for_prices_that_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that waited could tell its machines nothing, and they would end."""
    monkeypatch.setattr("ebbtide.market.sources.ec2_api.Ec2Prices", Silent)
    Silent.answers.update({region: threading.Event() for region in ("us-east-1", "us-west-2")})
    Silent.answers["us-east-1"].set()
    Silent.answers["us-west-2"].set()
    store, wanted = PriceStore(tmp_path / "prices.db"), sweep(tmp_path, markets={"zones": [A.zone]})
    regions = ["us-west-2", "us-east-1"]
    prices = CurrentPrices(store, wanted, regions, every_s=0.0)
    # Of two regions one does not answer.
    assert list(prices().markets) == [A]
    Silent.answers["us-east-1"].clear()
    Silent.answers["us-west-2"].clear()
    asked = len(Silent.asked)
    for _ in range(5):
        assert list(prices().markets) == [A]
    eventually(lambda: len(Silent.asked) == asked + 1)
    # A controller that is resumed meanwhile has those of the one before.
    monkeypatch.setattr("ebbtide.clouds.ec2.current_prices._WAITED_FOR_S", 0.01)
    assert list(CurrentPrices(store, wanted, regions)().markets) == [A]
    for answer in Silent.answers.values():
        answer.set()


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
