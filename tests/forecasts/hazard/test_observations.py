"""Records of several kinds as observations of markets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.conftest import TRACES

from ebbtide.errors import InputError
from ebbtide.forecasts.hazard.observations import (
    MarketObservations,
    has_observations,
    observations_of_prices,
    read_observations,
)
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory


def no_list_price(_market: Market, _time_s: float) -> float | None:
    return None


def written(tmp_path: Path, frame: pd.DataFrame) -> Path:
    path = tmp_path / "record.parquet"
    frame.to_parquet(path)
    return path


def times(*minutes: float) -> pd.DatetimeIndex:
    return pd.to_datetime([60.0 * each for each in minutes], unit="s", utc=True)


def test_probes(tmp_path: Path) -> None:
    where = {"cloud": "aws", "region": "us-east-1", "zone": "us-east-1a", "instance_type": "p3.2xlarge"}
    about = {"gpu_type": "v100", "gpus_per_instance": 1, "interval_seconds": 600}
    frame = pd.DataFrame({"timestamp": times(0, 10, 20, 30), **where, **about, "available": [1, 1, 0, 1]})
    (found,) = read_observations(written(tmp_path, frame), no_list_price)
    assert (found.market.zone, found.are_requests, found.is_of_prices) == ("us-east-1a", True, False)
    assert found.is_up.tolist() == [True, True, False, True]
    assert np.diff(found.times_s).tolist() == [600.0] * 3


def test_machines_that_came_and_went(tmp_path: Path) -> None:
    """One machine is lost after 25 minutes, another runs until the record ends."""
    rows = [(0.0, "add", "one"), (0.0, "add", "two"), (1500.0, "remove", "one"), (3000.0, "add", "three")]
    frame = pd.DataFrame(rows, columns=["offset_seconds", "event", "node"]).assign(
        trace="t", cloud="aws", zone=None, gpu_type="v100", timestamp=pd.NaT, nodes_running=pd.NA
    )
    found = {each.market.product: each for each in read_observations(written(tmp_path, frame), no_list_price)}
    assert found["one 1"].times_s.tolist() == [0.0, 600.0, 1200.0, 1500.0]
    assert found["one 1"].is_up.tolist() == [True, True, True, False]
    assert found["two"].times_s[-1] == 3000.0
    assert found["two"].is_up.all()
    assert "three" not in found
    assert {each.clock for each in found.values()} == {"t"}


def test_numbers_of_machines(tmp_path: Path) -> None:
    """Of three machines two are lost."""
    frame = pd.DataFrame({"timestamp": times(0, 30, 60), "nodes_running": [3, 1, 1]}).assign(
        trace="t", cloud="gcp", zone="us-east1-c", gpu_type="v100", offset_seconds=None, event="count", node=None
    )
    found = read_observations(written(tmp_path, frame), no_list_price)
    assert sorted(bool(each.is_up[-1]) for each in found) == [False, False, True]


def test_launches_that_are_not_listed_were_refused(tmp_path: Path) -> None:
    where = {"cloud": "gcp", "region": "us-east1", "gpu_type": "k80", "gpus_per_instance": 1}
    frame = pd.DataFrame({"timestamp": times(0, 0, 600, 1200), "zone": ["a", "b", "a", "b"], **where})
    found = {each.market.zone: each for each in read_observations(written(tmp_path, frame), no_list_price)}
    assert found["a"].is_up.tolist() == [True, True, False]
    assert found["b"].is_up.tolist() == [True, False, True]


def test_prices_take_machines_above_the_list_price() -> None:
    market = Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
    # Above for two minutes within ten.
    series = PriceSeries(np.array([0.0, 700.0, 820.0, 3000.0]), np.array([0.1, 0.5, 0.1, 0.1]))
    (found,) = observations_of_prices(PriceHistory({market: series}), lambda *_: 0.21)
    assert found.times_s[~found.is_up].tolist() == [700.0]
    assert (found.is_of_prices, found.are_requests) == (True, False)
    # The highest price of the record would be a look into the future.
    assert observations_of_prices(PriceHistory({market: series}), no_list_price) == []


def test_what_is_no_record_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, pd.DataFrame({"x": [1]}))
    assert not has_observations(path)
    with pytest.raises(InputError, match=r"no observations of markets.*it has x"):
        read_observations(path, no_list_price)


def test_every_second_observation() -> None:
    own = MarketObservations(Market("a", "b", "c", "d"), np.arange(5.0), np.ones(5, dtype=bool), 2.0)
    thin = own.thinned(2)
    assert (thin.times_s.tolist(), thin.longest_gap_s) == ([0.0, 2.0, 4.0], 4.0)


@pytest.mark.real_traces
@pytest.mark.parametrize(
    ("name", "markets"),
    [
        ("ec2-gpu-availability-2022-2023", 9),
        ("gcp-h100-capacity-2025", 10),
        ("gcp-launch-rounds-2020", 33),
        ("ec2-auction-2013-01", 85),
    ],
)
def test_real_records(name: str, markets: int) -> None:
    path = TRACES / f"{name}.parquet"
    assert has_observations(path)
    catalogue = default_catalogue()
    found = read_observations(path, catalogue.on_demand_usd_per_hour)
    assert len(found) == markets
    assert any(not each.is_up.all() for each in found)
    assert all((np.diff(each.times_s) > 0).all() for each in found)
