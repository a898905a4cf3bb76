"""Contract tests of price sources: the price schema, in UTC and USD per hour, and errors for bad records."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ebbtide.base.utc import HOUR_S, iso, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.markets import MARKET_FIELDS, PRICE_COLUMNS, Market
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.validation import cleaned
from ebbtide.testing.contracts._checking import refused

_START_S = to_epoch_s("2015-04-01T00:00:00Z")
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True)
class PriceRecord:
    """A market's price from a point in time, as given to a source.

    Attributes:
        time: Time from which the price holds, ISO 8601 in UTC; any text in tests of bad records.
        market: Market that has the price.
        usd_per_hour: Price in USD per hour as text; any text in tests of bad records.
    """

    time: str
    market: Market
    usd_per_hour: str


class PriceSourceContract:
    """Tests of a reader of prices. Inherit from this class in one whose name begins with `Test`:

        from ebbtide.testing import PriceSourceContract

        class TestMine(PriceSourceContract):
            def read(self, records, folder):
                path = folder / "export.csv"
                path.write_text("".join(f"{r.time},{r.market.zone},{r.usd_per_hour}\\n" for r in records))
                return read_my_export(path)

    The suite cleans the result as `ebbtide ingest` does, so a source may return rows in any order, and need not
    check cells that the cleaning checks.

    Attributes:
        markets: Two markets that the source can tell apart.
    """

    markets: tuple[Market, Market] = (
        Market("aws", "us-east-1", "us-east-1a", "c3.xlarge"),
        Market("aws", "us-east-1", "us-east-1b", "m3.medium"),
    )

    def read(self, records: Sequence[PriceRecord], folder: Path) -> pd.DataFrame:
        """Write the records in the source's own format, and read them back with the source.

        Args:
            records: The prices, in the order in which to write them; there may be none.
            folder: Path of an empty folder of the test.
        """
        raise NotImplementedError("a test class of PriceSourceContract needs read(self, records, folder)")

    def test_it_gives_the_price_schema(self, tmp_path: Path) -> None:
        frame = self.read(self._records(), tmp_path)
        assert sorted(frame.columns) == sorted(PRICE_COLUMNS), (
            f"it gives the columns {', '.join(map(str, frame.columns))}; {', '.join(PRICE_COLUMNS)} are right"
        )
        kind = frame["timestamp"].dtype
        assert isinstance(kind, pd.DatetimeTZDtype), f"times are {kind}; they must have a time zone"
        assert str(kind.tz) == "UTC", f"times are in {kind.tz}; UTC is right"
        usd = frame["price_usd_per_hour"]
        assert pd.api.types.is_float_dtype(usd.dtype), f"prices are {usd.dtype}; floats are right"
        assert not frame.isna().any().any(), "a cell is missing"

    def test_it_gives_times_and_prices_as_they_were(self, tmp_path: Path) -> None:
        """Catches prices in cents and times in another time zone."""
        records = self._records()
        _check_same(self._history(records, tmp_path), records)

    def test_the_order_of_the_records_does_not_matter(self, tmp_path: Path) -> None:
        records = self._records()
        shuffled = random.Random(1).sample(records, len(records))
        _check_same(self._history(shuffled, tmp_path), records)

    def test_repeated_records_count_once(self, tmp_path: Path) -> None:
        records = self._records()
        _check_same(self._history([*records, records[1], records[-1]], tmp_path), records)

    def test_one_record_is_enough(self, tmp_path: Path) -> None:
        records = self._records()[:1]
        _check_same(self._history(records, tmp_path), records)

    def test_a_period_without_prices_is_empty_or_told(self, tmp_path: Path) -> None:
        try:
            frame = self.read([], tmp_path)
        except InputError as error:
            _check_told(error)
        else:
            assert len(frame) == 0, f"it gives {len(frame)} rows for a period without prices"

    def test_a_price_that_is_none_is_told_by_its_row(self, tmp_path: Path) -> None:
        for number, bad in enumerate(("cheap", "-0.1", "inf", "1e999")):
            self._check_refused("price", bad, tmp_path / str(number))

    def test_a_missing_price_is_left_out_or_told(self, tmp_path: Path) -> None:
        good = self._records()
        missing = PriceRecord(good[1].time, good[1].market, "")
        try:
            found = self._history([good[0], missing, *good[2:]], tmp_path)
        except InputError as error:
            _check_told(error)
        else:
            _check_same(found, [good[0], *good[2:]])

    def test_a_time_that_is_none_is_told_by_its_row(self, tmp_path: Path) -> None:
        for number, bad in enumerate(("soon", "2015-13-41T00:00:00Z", "2015-04-01T00:00:00+99:00")):
            self._check_refused("time", bad, tmp_path / str(number))

    def _check_refused(self, what: str, bad: str, folder: Path) -> None:
        folder.mkdir()
        records = self._records()
        one = records[2]
        time, usd = (bad, one.usd_per_hour) if what == "time" else (one.time, bad)
        records[2] = PriceRecord(time, one.market, usd)
        error = refused(InputError, lambda: self._history(records, folder), f"a record with the {what} {bad!r}")
        _check_told(error)
        assert error.row is not None, f"a record with the {what} {bad!r}: the error names no row: {error}"

    def _records(self) -> list[PriceRecord]:
        """Return prices of both markets, in order of time; one record repeats the price before it."""
        first, second = self.markets
        steps = (
            (0, first, "0.0321"),
            (0, second, "0.5"),
            (1, first, "0.04"),
            (2, first, "0.04"),
            (3, second, "12"),
        )
        return [PriceRecord(iso(_START_S + hours * HOUR_S), market, usd) for hours, market, usd in steps]

    def _history(self, records: Sequence[PriceRecord], folder: Path) -> PriceHistory:
        """Return the price history that `ebbtide ingest` makes from the records."""
        return PriceHistory.from_frame(cleaned(self.read(records, folder), "source")[0])


def _check_told(error: InputError) -> None:
    text = str(error)
    assert "\n" not in text, f"an error is told in one line, not as {text!r}"
    assert len(text) <= _MOST_CHARACTERS, f"an error of {len(text)} characters is too long to be read"


def _check_same(found: PriceHistory, records: Sequence[PriceRecord]) -> None:
    """Check each market's price at every record's time, and that no other market has prices."""
    markets = {record.market for record in records}
    assert set(found) == markets, f"it gives the markets {_names(found)}; {_names(markets)} are right"
    for record in records:
        time_s, usd = to_epoch_s(record.time), float(record.usd_per_hour)
        series = found[record.market]
        is_now = series.at(time_s)
        assert np.isclose(is_now, usd, rtol=1e-9), (
            f"the price of {record.market} at {record.time} is {is_now:g} USD per hour; {usd:g} is right"
        )
        first_s = min(to_epoch_s(other.time) for other in records if other.market == record.market)
        assert series.times_s[0] == first_s, (
            f"the first price of {record.market} is at {iso(series.times_s[0])}; {iso(first_s)} is right"
        )


def _names(markets: Iterable[Market]) -> str:
    return (
        ", ".join("/".join(getattr(market, name) for name in MARKET_FIELDS) for market in sorted(markets))
        or "none"
    )
