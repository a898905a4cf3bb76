from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.markets import C3, R3, START_S, history

import ebbtide as eb
from ebbtide.errors import InputError


@pytest.fixture
def two_markets() -> eb.PriceHistory:
    return history({R3: [(600, 0.02)], C3: [(0, 0.03), (90, 0.06)]}, hours=1)


def test_a_history_is_a_mapping_in_the_order_of_its_markets(two_markets: eb.PriceHistory) -> None:
    assert list(two_markets) == [C3, R3]
    assert len(two_markets) == 2
    assert two_markets.change_points == 3
    assert repr(two_markets) == "<PriceHistory of 2 markets, 2015-04-01T00:00:00Z to 2015-04-01T01:00:00Z>"


def test_markets_begin_one_by_one(two_markets: eb.PriceHistory) -> None:
    assert two_markets.begun_by(START_S) == ([C3], START_S + 600)
    assert two_markets.begun_by(START_S + 600) == ((C3, R3), np.inf)


def test_at_gives_every_price_in_force(two_markets: eb.PriceHistory) -> None:
    assert two_markets.at("2015-04-01T00:02:00Z").tolist() == pytest.approx([0.06, np.nan], nan_ok=True)
    with pytest.raises(InputError, match="outside the history, which covers 2015-04-01T00:00:00Z"):
        two_markets.at("2016-01-01T00:00:00Z")


def test_a_window_carries_in_the_price_in_force_at_its_start(two_markets: eb.PriceHistory) -> None:
    cut = two_markets.window("2015-04-01T00:01:00Z", "2015-04-01T00:10:00Z")
    assert cut.markets == (C3,)
    assert cut[C3].times_s.tolist() == [START_S + 60, START_S + 90]
    assert (cut.start_s, cut.end_s) == (START_S + 60, START_S + 600)


@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [
        ("2015-04-01T00:10:00Z", "2015-04-01T00:10:00Z", "empty"),
        ("2015-03-01T00:00:00Z", "2015-04-01T00:10:00Z", "outside the history"),
        ("2015-04-01T00:10:00Z", "2015-05-01T00:00:00Z", "outside the history"),
    ],
)
def test_a_window_outside_the_history_is_refused(
    two_markets: eb.PriceHistory, start: str, end: str, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        two_markets.window(start, end)


def test_a_selection_keeps_the_span_and_refuses_the_unknown(two_markets: eb.PriceHistory) -> None:
    kept = two_markets.select([R3])
    assert kept.markets == (R3,)
    assert kept.start_s == two_markets.start_s
    with pytest.raises(InputError, match="unknown market"):
        kept.select([C3])
    with pytest.raises(InputError, match="no market is left"):
        two_markets.select(lambda market: market.cloud == "gcp")


def test_step_resampling_holds_prices_and_leaves_the_unknown_empty(two_markets: eb.PriceHistory) -> None:
    grid = two_markets.resample(60)
    assert grid.prices.shape == (61, 2)
    assert grid.times_s[0] == START_S
    assert grid.prices[:3, 0].tolist() == [0.03, 0.03, 0.06]
    assert np.isnan(grid.prices[:10, 1]).all()
    assert (grid.prices[10:, 1] == 0.02).all()


def test_linear_resampling_draws_lines_between_change_points(two_markets: eb.PriceHistory) -> None:
    grid = two_markets.resample(45, method="linear")
    assert grid.prices[:3, 0].tolist() == pytest.approx([0.03, 0.045, 0.06])


def test_gaps_longer_than_max_gap_stay_empty(two_markets: eb.PriceHistory) -> None:
    grid = two_markets.resample(60, max_gap_s=600)
    known = ~np.isnan(grid.prices[:, 0])
    assert known[: (90 + 600) // 60 + 1].all()
    assert not known[(90 + 600) // 60 + 1 :].any()


@pytest.mark.parametrize(("step_s", "method"), [(0, "step"), (-1, "step"), (60, "cubic")])
def test_a_grid_that_makes_no_sense_is_refused(two_markets: eb.PriceHistory, step_s: float, method: str) -> None:
    with pytest.raises(InputError):
        two_markets.resample(step_s, method=method)


def test_writing_and_reading_gives_the_same_history(two_markets: eb.PriceHistory, tmp_path: Path) -> None:
    path = tmp_path / "prices.parquet"
    two_markets.write(path)
    again = eb.PriceHistory.read(path)
    for market, series in two_markets.items():
        assert again[market].times_s.tolist() == series.times_s.tolist()
        assert again[market].prices.tolist() == series.prices.tolist()


def test_a_written_grid_is_a_price_file_without_the_unknown(two_markets: eb.PriceHistory, tmp_path: Path) -> None:
    two_markets.resample(60).write(tmp_path / "grid.parquet")
    again = eb.PriceHistory.read(tmp_path / "grid.parquet")
    assert len(again[C3]) == 61
    assert len(again[R3]) == 51


def test_describe_weights_by_time_and_says_what_it_does_not_know() -> None:
    unlisted = eb.Market("aws", "us-east-1", "us-east-1a", "m5.large")
    frame = history({C3: [(0, 0.03), (1800, 0.42)], unlisted: [(0, 0.05)]}, hours=1).describe()
    row = frame.loc[str(C3)]
    assert row["mean_usd_per_hour"] == pytest.approx(0.225)
    assert row["on_demand_usd_per_hour"] == 0.21
    assert row["share_above_on_demand"] == pytest.approx(0.5)
    assert row["changes"] == 1
    assert row["longest_gap_h"] == pytest.approx(0.5)
    assert np.isnan(frame.loc[str(unlisted), "ratio_to_on_demand"])


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        eb.PriceHistory.from_frame(pd.DataFrame())


@pytest.mark.real_traces
def test_real_prices_survive_a_round_trip_and_a_recount(auction_2015: eb.PriceHistory, tmp_path: Path) -> None:
    assert len(auction_2015) == 13
    assert auction_2015.change_points == 170_180
    auction_2015.write(tmp_path / "again.parquet")
    assert eb.PriceHistory.read(tmp_path / "again.parquet").equals(auction_2015)


@pytest.mark.real_traces
def test_the_grid_of_real_prices_equals_pandas_own_as_of_join(auction_2015: eb.PriceHistory) -> None:
    grid = auction_2015.resample(60).to_frame()
    market = auction_2015.markets[0]
    frame = auction_2015.select([market]).to_frame()[["timestamp", "price_usd_per_hour"]]
    left = pd.DataFrame({"timestamp": grid.index.astype("datetime64[us, UTC]")})
    joined = pd.merge_asof(left, frame, on="timestamp")["price_usd_per_hour"].to_numpy()
    np.testing.assert_array_equal(grid.iloc[:, 0].to_numpy(), joined)
