"""The lowest of several forecasts, and judging one by what came of the offers that it chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.markets import C3, R3, history

from ebbtide.base.utc import HOUR_S, MINUTE_S
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.forecasts import Foresight, Never, RecentFrequency
from ebbtide.forecasts.revocation.minutes import Minutes, minutes_of
from ebbtide.market.markets import Market
from ebbtide_papers.spottune.combining import LowestOf, chosen_offers

SECONDS = {"c3.xlarge": 1.0, "r3.large": 1.0}


@dataclass(frozen=True)
class Says:
    """The same chance for a market at any time."""

    chances: dict[Market, float]
    name: str = "says"

    def probabilities(self, view: Any, markets: Sequence[Market], max_prices: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.array([self.chances[market] for market in markets])


def minutes() -> Minutes:
    """c3.xlarge stands at 0.10; r3.large stands at 0.12, and rises above that in the middle of every third hour."""
    rises = [(hour * HOUR_S + half * 1800.0, 0.12 + 0.08 * half) for hour in range(0, 60, 3) for half in (0, 1)]
    falls = [(hour * HOUR_S + 2400.0, 0.12) for hour in range(0, 60, 3)]
    return minutes_of(
        history(
            {C3: [(hour * HOUR_S, 0.10) for hour in range(0, 70, 12)], R3: sorted([*rises, *falls])}, hours=70.0
        )
    )


def at_hours(*hours: float) -> np.ndarray:
    return np.array([round(hour * HOUR_S / MINUTE_S) for hour in hours])


def test_the_lowest_is_taken_market_by_market() -> None:
    found = LowestOf((Says({C3: 0.1, R3: 0.9}), Says({C3: 0.4, R3: 0.2})))
    assert found.probabilities(None, [C3, R3], np.ones(2)).tolist() == [0.1, 0.2]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no forecasts"):
        LowestOf(())


def test_who_sees_no_refund_takes_the_cheapest_and_pays_it() -> None:
    found = chosen_offers(Never(), minutes(), at_hours(6, 7, 8, 9), SECONDS, 0.3)
    assert (found.usd, found.free, found.moments) == (1.0, 0.0, 4)


def test_foresight_takes_what_will_be_refunded() -> None:
    # Of four hours, the first and the last have a rise; in the others the cheaper market is paid.
    found = chosen_offers(Foresight(minutes()), minutes(), at_hours(6, 7, 8, 9), SECONDS, 0.3)
    assert (found.usd, found.free) == (pytest.approx(0.5), 0.5)


def test_a_forecast_that_promises_too_much_pays_for_the_dearer_offer() -> None:
    sure = Says({C3: 0.0, R3: 1.0})
    found = chosen_offers(sure, minutes(), at_hours(7, 8), SECONDS, 0.3)
    assert (found.usd, found.free) == (pytest.approx(1.2), 0.0)
    kept = chosen_offers(LowestOf((sure, Never())), minutes(), at_hours(7, 8), SECONDS, 0.3)
    assert kept.usd == 1.0


def test_forecasts_by_past_prices_can_be_judged() -> None:
    found = chosen_offers(RecentFrequency(), minutes(), at_hours(36, 37, 38), SECONDS, 0.3)
    assert found.moments == 3


def test_without_two_markets_there_is_no_choice() -> None:
    with pytest.raises(InputError, match="two markets"):
        chosen_offers(Never(), minutes(), at_hours(6), {"c3.xlarge": 1.0}, 0.3)
