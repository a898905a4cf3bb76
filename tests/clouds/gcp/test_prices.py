"""Spot prices from a file: by region or zone, read again when it has changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.runs.sweeps import BEGAN_S, G, H, steady, sweep

import ebbtide as eb
from ebbtide.clouds.gcp.provider import gcp_prices, in_zones
from ebbtide.clouds.gcp.settings import GcpSettings
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.price_series import PriceSeries


def settings(path: Path, **options: object) -> GcpSettings:
    given = {
        "project": "my-project-1",
        "regions": {"us-central1": {"zones": [G.zone, H.zone]}, "europe-west4": {"zones": ["europe-west4-a"]}},
        "prices": str(path),
        "image": "projects/my-project-1/global/images/i",
        "store": "gs://bucket/x",
        "price_poll_s": 1.0,
    }
    return GcpSettings.model_validate(given | options)


def history(**usd: float) -> eb.PriceHistory:
    """A price each for `REGION` or `ZONE`, with underscores for hyphens."""
    series = {}
    for place, value in usd.items():
        zone = place.replace("_", "-")
        region = zone if zone.count("-") < 2 else zone.rpartition("-")[0]
        series[eb.Market("gcp", region, zone, "n1-standard-4")] = PriceSeries(
            np.array([BEGAN_S]), np.array([value])
        )
    return eb.PriceHistory(series, end_s=BEGAN_S + 3600.0)


def test_a_price_of_a_region_holds_in_its_zones_unless_they_have_their_own(tmp_path: Path) -> None:
    known = history(us_central1=0.04, us_central1_b=0.05, asia_east1=0.01, us_central1_f=0.01)
    found = in_zones(known, settings(tmp_path))
    assert {market: series.at(BEGAN_S) for market, series in found.items()} == {G: 0.04, H: 0.05}
    with pytest.raises(
        InputError, match=r"no price of gcp in us-central1 \(.*\), europe-west4 \(.*\); it has gcp asia"
    ):
        in_zones(history(asia_east1=0.01), settings(tmp_path))


@pytest.mark.parametrize(("days", "is_told"), [(1.0, False), (400.0, True)])
def test_prices_of_long_ago_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, days: float, is_told: bool
) -> None:
    path = tmp_path / "prices.parquet"
    steady(0.03).write(path)
    now_s = steady(0.03).end_s + days * 86_400.0
    monkeypatch.setattr("ebbtide.clouds.file_prices.time.time", lambda: now_s)
    gcp_prices(settings(path), sweep(tmp_path), default_catalogue())
    assert ("400 days ago; they count as today's" in caplog.text) is is_told


def test_a_file_that_has_changed_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "prices.parquet"
    steady(0.03).write(path)
    prices = gcp_prices(settings(path), sweep(tmp_path), default_catalogue())
    assert prices()[G].at(BEGAN_S) == 0.03
    steady(0.04).write(path)
    os.utime(path, ns=(1, 1))
    assert prices()[G].at(BEGAN_S) == 0.03
    monkeypatch.setattr(prices, "_looked_s", -10.0)
    assert prices()[G].at(BEGAN_S) == 0.04
    path.write_bytes(b"torn")
    monkeypatch.setattr(prices, "_looked_s", -10.0)
    assert prices()[G].at(BEGAN_S) == 0.04
    assert "prices stay as they were" in caplog.text


def test_without_a_file_nothing_begins(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no prices: No such file") as refused:
        gcp_prices(settings(tmp_path / "none.parquet"), sweep(tmp_path), default_catalogue())
    assert refused.value.field == "prices"
