from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.generator import demo_markets, profile_of


def profiles(history: eb.PriceHistory) -> pd.DataFrame:
    catalogue = default_catalogue()
    rows = {}
    for market, series in history.items():
        list_price = catalogue.on_demand_usd_per_hour(market, history.start_s)
        assert list_price is not None
        rows[str(market)] = asdict(profile_of(series, list_price, history.end_s))
    return pd.DataFrame.from_dict(rows, orient="index")


def test_the_same_seed_gives_the_same_prices_and_another_seed_others() -> None:
    assert eb.generate_prices(days=5, seed=3, kind="auction").equals(
        eb.generate_prices(days=5, seed=3, kind="auction")
    )
    assert not eb.generate_prices(days=5, seed=3, kind="auction").equals(
        eb.generate_prices(days=5, seed=4, kind="auction")
    )


def test_a_market_does_not_depend_on_the_others_generated_with_it() -> None:
    market = demo_markets()[4]
    alone = eb.generate_prices([market], days=5, seed=3, kind="auction")[market]
    among = eb.generate_prices(days=5, seed=3, kind="auction")[market]
    assert np.array_equal(alone.prices, among.prices)


def test_prices_are_positive_change_points_inside_the_record() -> None:
    history = eb.generate_prices(days=10, seed=1, kind="auction")
    for series in history.values():
        assert series.times_s[0] == history.start_s
        assert series.times_s[-1] < history.end_s
        assert (np.diff(series.times_s) > 0).all()
        assert (np.diff(series.prices) != 0).all()
        assert (series.prices > 0).all()


def test_zones_of_a_type_are_nearly_independent() -> None:
    grid = eb.generate_prices(days=60, seed=2, kind="auction").resample(300)
    moves = np.diff(np.log(grid.prices), axis=0)
    correlations = np.corrcoef(moves.T)[np.triu_indices(moves.shape[1], 1)]
    assert np.abs(correlations).max() < 0.2


def test_all_three_regimes_occur() -> None:
    found = profiles(eb.generate_prices(days=60, seed=1, kind="auction"))
    assert (found["ratio"] < 0.3).all()
    assert found["spikes_per_day"].median() > 0.2
    assert (found["share_stuck"] > 0.01).any()


def test_markets_move_faster_in_the_american_afternoon_than_at_night() -> None:
    history = eb.generate_prices(days=60, seed=1, kind="auction")
    hours = np.concatenate([series.times_s // 3600 % 24 for series in history.values()]).astype(int)
    counts = np.bincount(hours, minlength=24)
    assert counts[17:22].mean() > 1.2 * counts[5:10].mean()


@pytest.mark.parametrize("days", [0, -1, float("nan")])
def test_no_days_cannot_be_generated(days: float) -> None:
    with pytest.raises(InputError, match="days"):
        eb.generate_prices(days=days, kind="auction")


def test_a_market_without_a_list_price_cannot_be_generated() -> None:
    with pytest.raises(InputError, match="on-demand price of us-east-1a m5.large is not known"):
        eb.generate_prices([eb.Market("aws", "us-east-1", "us-east-1a", "m5.large")], kind="auction")


@pytest.mark.real_traces
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_generated_markets_are_like_the_real_ones(auction_2015: eb.PriceHistory, seed: int) -> None:
    real = profiles(auction_2015)
    made = profiles(eb.generate_prices(days=135, seed=seed, kind="auction"))
    for name in ("ratio", "change_interval_min", "spikes_per_day", "spike_length_min", "spike_height"):
        ratio = made[name].median() / real[name].median()
        assert 0.5 < ratio < 2.0, f"{name}: {made[name].median():.3g} against {real[name].median():.3g}"
    assert real["share_stuck"].median() <= made["share_stuck"].mean() <= real["share_stuck"].mean()
