"""The contract of price sources refuses sources that break it, each by the test that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from ebbtide.errors import InputError
from ebbtide.market.markets import MARKET_FIELDS
from ebbtide.testing.contracts.price_sources import PriceRecord, PriceSourceContract


def good(records: Sequence[PriceRecord]) -> pd.DataFrame:
    rows = [
        [one.time, *(getattr(one.market, name) for name in MARKET_FIELDS), one.usd_per_hour] for one in records
    ]
    frame = pd.DataFrame(rows, columns=["timestamp", *MARKET_FIELDS, "price_usd_per_hour"])
    frame["timestamp"] = pd.to_datetime(frame["timestamp"], utc=True)
    frame["price_usd_per_hour"] = pd.to_numeric(frame["price_usd_per_hour"])
    return frame


def in_cents(records: Sequence[PriceRecord]) -> pd.DataFrame:
    frame = good(records)
    return frame.assign(price_usd_per_hour=frame["price_usd_per_hour"] * 100)


def local(records: Sequence[PriceRecord]) -> pd.DataFrame:
    frame = good(records)
    return frame.assign(timestamp=frame["timestamp"].dt.tz_convert("America/New_York"))


def without_zone(records: Sequence[PriceRecord]) -> pd.DataFrame:
    frame = good(records)
    return frame.assign(timestamp=frame["timestamp"].dt.tz_localize(None))


def an_hour_late(records: Sequence[PriceRecord]) -> pd.DataFrame:
    frame = good(records)
    return frame.assign(timestamp=frame["timestamp"] + pd.Timedelta(hours=1))


def of_one_zone(records: Sequence[PriceRecord]) -> pd.DataFrame:
    return good(records).assign(zone="us-east-1a")


def filled(records: Sequence[PriceRecord]) -> pd.DataFrame:
    """Takes what is no price for a small one."""
    good_ones = [one for one in records if one.usd_per_hour.replace(".", "").isdigit()]
    others = [PriceRecord(one.time, one.market, "0.0001") for one in records if one not in good_ones]
    return good([*good_ones, *others])


def without_row(records: Sequence[PriceRecord]) -> pd.DataFrame:
    try:
        return good(records)
    except ValueError:
        raise InputError("a bad record") from None


def last_price_everywhere(records: Sequence[PriceRecord]) -> pd.DataFrame:
    """Makes up a price for a period without any."""
    return good(records or PriceSourceContract()._records()[:1])


@pytest.mark.parametrize(
    ("read", "check", "problem"),
    [
        (in_cents, "it_gives_times_and_prices_as_they_were", "is 3.21 USD per hour; 0.0321 is right"),
        (local, "it_gives_the_price_schema", "times are in America/New_York; UTC is right"),
        (without_zone, "it_gives_the_price_schema", "they must have a time zone"),
        (an_hour_late, "one_record_is_enough", "is nan USD per hour; 0.0321 is right"),
        (of_one_zone, "it_gives_times_and_prices_as_they_were", "us-east-1a/m3.medium/.* are right"),
        (filled, "a_price_that_is_none_is_told_by_its_row", "the price 'cheap' gave .*; InputError is right"),
        (good, "a_price_that_is_none_is_told_by_its_row", "raised ValueError: Unable to parse"),
        (without_row, "a_price_that_is_none_is_told_by_its_row", "the error names no row: a bad record"),
        (filled, "a_missing_price_is_left_out_or_told", "is right"),
        (
            last_price_everywhere,
            "a_period_without_prices_is_empty_or_told",
            "it gives 1 rows for a period without",
        ),
    ],
)
def test_a_source_that_breaks_it_is_refused(
    read: Callable[[Sequence[PriceRecord]], pd.DataFrame], check: str, problem: str, tmp_path: Path
) -> None:
    class Checked(PriceSourceContract):
        def read(self, records: Sequence[PriceRecord], _folder: Path) -> pd.DataFrame:
            return read(records)

    with pytest.raises(AssertionError, match=problem):
        getattr(Checked(), f"test_{check}")(tmp_path)
