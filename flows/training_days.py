"""The days that models may be trained on: all but those that params.yaml holds back at the record's end."""

from __future__ import annotations

from pathlib import Path

from ebbtide.base.utc import DAY_S, iso
from ebbtide.errors import InputError
from ebbtide.market.prices import PriceHistory
from flows.parameters import PARAMS, HeldBack, parameters


def training_prices(prices: Path) -> PriceHistory:
    """The prices that models may be trained on: all but the days that params.yaml holds back at the record's end.

    Args:
        prices: The price file.

    Raises:
        InputError: The record is not longer than the days held back.
    """
    history, days = PriceHistory.read(prices), parameters(HeldBack).days
    until_s = history.end_s - days * DAY_S
    if until_s <= history.start_s:
        problem = f"is {days:g}; the record has {(history.end_s - history.start_s) / DAY_S:.1f} days"
        raise InputError(problem, file=PARAMS, field="held_back.days")
    return history.window(history.start_s, until_s)


def trained_on(history: PriceHistory) -> dict[str, str]:
    """The training window, as reports have it."""
    return {"from": iso(history.start_s), "until": iso(history.end_s)}
