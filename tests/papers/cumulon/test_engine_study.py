"""Skyline bids on the engine: in time on real prices, several markets no more expensive than one, refusals with a reason."""

from __future__ import annotations

import pytest
from tests.markets import C3, history

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide_papers.cumulon.claims import reproduce_cumulon
from ebbtide_papers.cumulon.engine_study import engine_study
from ebbtide_papers.cumulon.study import cumulon_study


@pytest.mark.long
@pytest.mark.real_traces
def test_on_real_prices_none_is_late(auction_2015: eb.PriceHistory) -> None:
    found = engine_study(auction_2015, default_catalogue(), starts=8, seed=1)
    assert found.missed == 0
    assert found.types > 1
    assert found.mean_usd("several-markets") <= 1.02 * found.mean_usd("one-market")


@pytest.mark.exhaustive
def test_its_rows_say_what_was_measured() -> None:
    found = engine_study(
        eb.generate_prices(days=12, seed=2, kind="auction"), default_catalogue(), starts=3, seed=1
    )
    claims = reproduce_cumulon(cumulon_study(traces=2_000), None, inputs={}, seed=1, on_engine=found)
    rows = {row.id: row for row in claims.rows}
    ours = found.mean_usd("several-markets") / found.mean_usd("one-market")
    assert rows["several_markets_over_one"].ours == pytest.approx(ours)
    assert rows["engine_deadline_misses"].ours == found.missed


def test_a_single_market_is_no_choice() -> None:
    with pytest.raises(InputError, match="fewer than two markets"):
        engine_study(history({C3: [(0, 0.1)]}), default_catalogue(), starts=1, seed=1)


def test_prices_of_a_day_are_too_few() -> None:
    with pytest.raises(InputError, match="the prices cover less"):
        engine_study(eb.generate_prices(days=2, seed=2, kind="auction"), default_catalogue(), starts=1, seed=1)
