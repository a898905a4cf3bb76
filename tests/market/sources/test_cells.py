"""Cells with one meaning are read, and those with two are refused with what to write."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InputError
from ebbtide.market.sources.cells import parsed_prices, parsed_times


def price(*texts: object) -> list[float]:
    return parsed_prices(pd.Series(list(texts), dtype="object"), "a.csv", "price").tolist()


def time(*texts: object, timezone: str | None = None) -> list[str]:
    found = parsed_times(pd.Series(list(texts), dtype="object"), "a.csv", "time", timezone=timezone)
    return found.dt.strftime("%Y-%m-%dT%H:%M:%S.%f").str.removesuffix(".000000").tolist()


@pytest.mark.parametrize(
    ("text", "usd"),
    [
        ("0.1578", 0.1578),
        (" 0.1578 ", 0.1578),
        ("$0.1578", 0.1578),
        ("0.1578 USD", 0.1578),
        ("USD 0.1578", 0.1578),
        ("US$0.1578", 0.1578),
        ("1.578E-1", 0.1578),
        (".5", 0.5),
        ("2.", 2.0),
        ("+0.5", 0.5),
        ("1,234.50", 1234.5),
        ("$2,345.00", 2345.0),
        ("1,234.5", 1234.5),
        (0.25, 0.25),
        (3, 3.0),
    ],
)
def test_prices_with_one_meaning_are_read(text: object, usd: float) -> None:
    assert price("0.1", text) == [0.1, usd]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0,1578", "0,1578 seems to have a decimal comma; write 0.1578"),
        ("12,5", "write 12.5"),
        (",5", "write .5"),
        ("1,234", "can be 1234 or 1.234; write 1234 or 1.234"),
        ("$1,234", "can be 1234 or 1.234"),
        ("1.234,50", "seems to have points between thousands; write 1234.50"),
        ("1.234.567", "write 1234567"),
        ("1.234.567,8", "write 1234567.8"),
        ("1 234.50", "has separators between digits; write 1234.50"),
        ("1\u00a0234,50", "write 1234.50"),
        ("1\u202f234", "has separators between digits; write 1234"),
        ("1'234.50", "has separators between digits; write 1234.50"),
        ("1\u2019234.50", "write 1234.50"),
        ("1_234.5", "has separators between digits; write 1234.5"),
        ("\u20ac0.15", "another currency; convert it"),
        ("0.15 EUR", "another currency"),
        ("\u00a30.15", "another currency"),
        ("\u00a50.15", "another currency"),
        ("\u20b90.15", "another currency"),
        ("A$0.15", "another currency"),
        ("C$ 0.15", "another currency"),
        ("15%", "but a share; write for example 0.1578"),
        ("0x10", "hexadecimal number"),
        ("0x1.8p1", "hexadecimal number"),
        ("12,34.5", "at odd places"),
        ("0,123.5", "at odd places"),
        ("1.2.3", "at odd places"),
        ("0.15/h", "is not a price in USD per hour; write for example 0.1578"),
        ("free", "is not a price in USD per hour"),
        ("(0.15)", "is not a price in USD per hour"),
        ("\u0660.\u0661", "is not a price in USD per hour"),
        ("-0.15", "is negative"),
        ("918000", "lost the decimal point"),
        ("1e9", "lost the decimal point"),
        ("-$0.15", "is not a price in USD per hour"),
        ("\u22120.15", "is negative"),
        ("0", "is no price; leave out rows of machines that are not offered"),
        ("0.000000", "is no price"),
        ("NaN", "is missing"),
        ("", "is missing"),
        (None, "is missing"),
        ("inf", "is not finite"),
        ("-Infinity", "is n"),
        ("1e999", "is not finite"),
        (True, "is not a price"),
    ],
)
def test_prices_with_two_meanings_or_none_are_refused(text: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        price("0.1", text)
    assert (caught.value.file, caught.value.row, caught.value.field) == ("a.csv", 2, "price")
    assert "\n" not in str(caught.value)


@given(st.integers(1, 10**12), st.integers(0, 6))
def test_a_price_is_never_another_number(micros: int, places: int) -> None:
    """However its separators are, a price is the number that was written, or refused."""
    usd = round(micros / 1e6, places)
    english, german = f"{usd:,.{places}f}", f"{usd:,.{places}f}".translate(str.maketrans(",.", ".,"))
    for text in (english, german, english.replace(",", " "), german.replace(".", "'"), f"{usd:.{places}f}"):
        try:
            (found,) = price(text)
        except InputError:
            continue
        # With points alone, 1.234 is what Python and EC2 mean by it.
        assert found == pytest.approx(usd) or (text == german and "," not in text), text


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-10-01T00:00:00.000Z", "2026-10-01T00:00:00"),
        ("2026-10-01T02:00:00+02:00", "2026-10-01T00:00:00"),
        ("2026-09-30T16:00:00-0800", "2026-10-01T00:00:00"),
        ("2026-10-01 00:00:00+00", "2026-10-01T00:00:00"),
        ("2026-10-01 00:00:00.250-03", "2026-10-01T03:00:00.250000"),
        ("2026-10-01 00:00 UTC", "2026-10-01T00:00:00"),
        ("2026-10-01 00:00:00 +0000 UTC", "2026-10-01T00:00:00"),
        ("2026/10/01 06:30:00Z", "2026-10-01T06:30:00"),
        ("20261001T063000Z", "2026-10-01T06:30:00"),
        ("Thu, 01 Oct 2026 06:30:00 GMT", "2026-10-01T06:30:00"),
        ("Oct 1, 2026 6:30 PM UTC", "2026-10-01T18:30:00"),
        ("13/04/2026 12:00:00Z", "2026-04-13T12:00:00"),
        ("04/13/2026 12:00:00Z", "2026-04-13T12:00:00"),
    ],
)
def test_times_with_one_meaning_are_read(text: str, utc: str) -> None:
    assert time(text) == [utc]


def test_another_row_shows_the_order_of_a_date() -> None:
    assert time("03/04/2026 00:00Z", "13/04/2026 00:00Z") == ["2026-04-03T00:00:00", "2026-04-13T00:00:00"]
    assert time("3.4.2026", "4.13.2026", timezone="UTC") == ["2026-03-04T00:00:00", "2026-04-13T00:00:00"]
    with pytest.raises(InputError, match="is a date in another order than others of its column"):
        time("13/04/2026", "04/13/2026", timezone="UTC")


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000)])
def test_unix_times_are_read_by_their_range(unit: str, factor: int) -> None:
    seconds = 1_790_812_800
    assert time(str(seconds * factor)) == ["2026-10-01T00:00:00"], unit
    assert time(seconds * factor) == ["2026-10-01T00:00:00"]
    if unit == "s":
        assert time(f"{seconds}.25") == ["2026-10-01T00:00:00.250000"]


@pytest.mark.parametrize(
    ("texts", "row", "problem"),
    [
        (["03/04/2026 12:00Z"], 1, "can be 2026-04-03 or 2026-03-04; write one of them"),
        (["03-04-2026"], 1, "can be 2026-04-03 or 2026-03-04"),
        (["5.5.2026"], 1, "is in an order that no row shows; write 2026-05-05"),
        (["03/04/26"], 1, "a year of two digits; write for example 2026-04-03T12:00:00Z"),
        (["2026-10-01T00:00:00Z", "2026-10-01T00:00:00"], 2, "has no time zone; write it with an offset or Z"),
        (["2026-10-01 00:00:00 EST"], 1, "names a time zone that can be several; write an offset"),
        (["20261001"], 1, "is not a time"),
        (["12345678901"], 1, "is a number, not a time"),
        (["1790812800", "1790812800000"], 2, "is not a Unix time in s, as that of row 1"),
        (["12:00 UTC"], 1, "is not a time"),
        (["October 2026 UTC"], 1, "is not a time"),
        (["2026-13-01T00:00:00Z"], 1, "is not a time"),
        (["soon"], 1, "is not a time; write for example"),
        ([None], 1, "is not a time"),
    ],
)
def test_times_with_two_meanings_or_none_are_refused(texts: list[object], row: int, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        time(*texts)
    assert (caught.value.file, caught.value.row, caught.value.field) == ("a.csv", row, "time")
