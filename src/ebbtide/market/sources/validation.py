"""Checking tables of prices: every cell, then the order of rows.

There are two ways in. `checked` is for files that should already be clean (those that Ebbtide writes): anything
wrong is an error. `cleaned` is for exports from elsewhere: rows out of order are sorted, of rows with the same
market and timestamp the last in file order is kept, and the changes are reported; a cell that is not a price is
still an error, because guessing it would invent data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import MARKET_FIELDS, PRICE_COLUMNS, Market

# Consoles and APIs cut their exports at this many rows.
_EXPORT_LIMIT = 1000

# Spot prices began in 2009. A time outside these years is in the wrong unit.
_FIRST_TIME, _LAST_TIME = pd.Timestamp("1970-01-01", tz="UTC"), pd.Timestamp("2200-01-01", tz="UTC")

# Characters of a value in a message.
_SHOWN = 60


@dataclass(frozen=True)
class Cleaning:
    """What `cleaned` did to a table, as a report to the user.

    Attributes:
        rows_in: Number of rows before cleaning.
        rows_out: Number of rows kept.
        rows_sorted: Number of rows that were out of order.
        duplicates_dropped: Number of rows dropped for a later one of the same market and time.
        warnings: What may be wrong with the table, in words.
    """

    rows_in: int
    rows_out: int
    rows_sorted: int
    duplicates_dropped: int
    warnings: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        parts = [f"{self.rows_out} rows kept of {self.rows_in}"]
        if self.rows_sorted:
            parts.append(f"{self.rows_sorted} were out of order and are sorted")
        if self.duplicates_dropped:
            parts.append(f"{self.duplicates_dropped} had the market and time of a later row and are dropped")
        return "; ".join([*parts, *self.warnings])


def sum_of(cleanings: Sequence[Cleaning]) -> Cleaning:
    """The sum of several cleanings."""
    return Cleaning(
        sum(each.rows_in for each in cleanings),
        sum(each.rows_out for each in cleanings),
        sum(each.rows_sorted for each in cleanings),
        sum(each.duplicates_dropped for each in cleanings),
        tuple(warning for each in cleanings for warning in each.warnings),
    )


def checked(frame: pd.DataFrame, file: str | Path, catalogue: Catalogue | None = None) -> pd.DataFrame:
    """The frame unchanged, after checking it against the price schema.

    Raises:
        InputError: The first thing wrong: columns, times, prices, names, unknown instance types, order of a
            market's rows, repeated rows.
    """
    frame = _with_valid_cells(frame, file)
    require_known_types(frame, file, catalogue or default_catalogue())
    codes = market_codes(frame)
    times = frame["timestamp"].astype("int64").to_numpy()
    order = np.argsort(codes, kind="stable")
    steps = np.diff(times[order])
    wrong = (np.diff(codes[order]) == 0) & (steps <= 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        before, row = (int(position) + 1 for position in order[at : at + 2])
        market = market_of(frame, row - 1)
        if steps[at] == 0:
            problem = f"repeats market {market} at the time of row {before}"
        else:
            problem = f"is earlier than row {before} of the same market, {market}"
        raise InputError(
            f"{problem}; `ebbtide ingest` sorts and removes repeats", file=file, row=row, field="timestamp"
        )
    return frame


def cleaned(frame: pd.DataFrame, file: str | Path) -> tuple[pd.DataFrame, Cleaning]:
    """The frame with each market's rows sorted by time; of rows with the same time the last is kept.

    Raises:
        InputError: A cell is not valid for its column.
    """
    frame = _with_valid_cells(frame, file)
    codes = market_codes(frame)
    times = frame["timestamp"].astype("int64").to_numpy()
    order = np.lexsort((times, codes))
    by_market = np.argsort(codes, kind="stable")
    falls = (np.diff(codes[by_market]) == 0) & (np.diff(times[by_market]) < 0)
    last = np.ones(len(frame), dtype=bool)
    last[:-1] = (np.diff(codes[order]) != 0) | (np.diff(times[order]) != 0)
    counts = np.bincount(codes)
    cut = [
        str(market_of(frame, int(np.argmax(codes == code)))) for code in np.flatnonzero(counts == _EXPORT_LIMIT)
    ]
    warnings = [f"{market} has exactly {_EXPORT_LIMIT} rows: the export may have been cut" for market in cut]
    if len(frame) == _EXPORT_LIMIT and not cut:
        warnings.append(f"the file has exactly {_EXPORT_LIMIT} rows: the export may have been cut")
    kept = frame.iloc[order[last]].reset_index(drop=True)
    return kept, Cleaning(len(frame), len(kept), int(falls.sum()), len(frame) - len(kept), tuple(warnings))


def market_codes(frame: pd.DataFrame) -> np.ndarray:
    """A number for each row's market, by first appearance, shape (rows,)."""
    codes: np.ndarray = frame.groupby(list(MARKET_FIELDS), observed=True, sort=False).ngroup().to_numpy()
    return codes


def market_of(frame: pd.DataFrame, position: int) -> Market:
    """The market of one row of a frame, by position."""
    row = frame.iloc[position]
    return Market(*(str(row[name]) for name in MARKET_FIELDS))


def parsed_times(values: pd.Series, file: str | Path, field: str, *, timezone: str | None = None) -> pd.Series:
    """Times as UTC, to the microsecond.

    Args:
        values: Aware datetimes, or text in ISO 8601 or similar formats, shape (rows,).
        file: File that error messages name.
        field: Column that error messages name.
        timezone: Time zone of times without an offset, which are errors if it is None.

    Raises:
        InputError: The first time that does not parse, is missing, or has no offset and no `timezone`.
    """
    if pd.api.types.is_numeric_dtype(values.dtype):
        problem = "is a number, not a time; write for example 2015-04-01T12:00:00Z"
        _require(pd.Series(False, index=values.index), file, field, values, problem)
    parsed = _parsed_times(values, file, field, timezone)
    within = (parsed >= _FIRST_TIME) & (parsed < _LAST_TIME)
    _require(within, file, field, values, "is not in the years 1970 to 2199")
    return parsed


def _parsed_times(values: pd.Series, file: str | Path, field: str, timezone: str | None) -> pd.Series:
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        _require(values.notna(), file, field, values, "is not a time")
        aware: pd.Series = values.dt.tz_convert("UTC").astype("datetime64[us, UTC]")
        return aware
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        naive = pd.Series(True, index=values.index)
        parsed = values
    else:
        text = values.astype("string").str.strip()
        naive = ~text.str.contains(r"(?:Z|[+-]\d{2}:?\d{2}|UTC)$", case=False, regex=True).fillna(False).astype(
            bool
        )
        parsed = _to_datetimes(text, naive)
        _require(parsed.notna(), file, field, values, "is not a time")
    if not naive.any():
        return parsed.astype("datetime64[us, UTC]")
    if timezone is None:
        at = int(np.argmax(naive.to_numpy()))
        raise InputError(
            f"{values.iloc[at]!s} has no time zone; write it with an offset or Z, or name its time zone "
            "(`ebbtide ingest --timezone UTC`)",
            file=file,
            row=at + 1,
            field=field,
        )
    result = parsed.copy().astype("datetime64[us, UTC]") if not naive.all() else None
    try:
        local = (
            pd.to_datetime(values[naive].astype("string").str.strip(), errors="raise")
            if result is not None
            else parsed
        )
        placed = local.dt.tz_localize(None).dt.tz_localize(timezone, ambiguous=True, nonexistent="shift_forward")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"time zone {timezone!r}: {error}", file=file, field=field) from None
    placed = placed.dt.tz_convert("UTC").astype("datetime64[us, UTC]")
    if result is None:
        return placed
    result[naive] = placed
    return result


def _to_datetimes(text: pd.Series, naive: pd.Series) -> pd.Series:
    """Parse text, times with and without offset separately: pandas refuses both in one column."""
    parsed = pd.Series(pd.NaT, index=text.index, dtype="datetime64[us, UTC]")
    for part in (naive, ~naive):
        if part.any():
            times = pd.to_datetime(text[part], utc=True, errors="coerce", format="ISO8601")
            if times.isna().any():
                times = times.fillna(pd.to_datetime(text[part], utc=True, errors="coerce", format="mixed"))
            parsed[part] = times.astype("datetime64[us, UTC]")
    return parsed


def parsed_prices(values: pd.Series, file: str | Path, field: str) -> pd.Series:
    """Prices as floats: text may carry a dollar sign and thousands separators.

    Raises:
        InputError: The first price that is missing, not a number, infinite or negative.
    """
    if pd.api.types.is_bool_dtype(values.dtype):
        _require(pd.Series(False, index=values.index), file, field, values, "is not a price in USD per hour")
    if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_complex_dtype(values.dtype):
        numbers = values.astype("float64")
    else:
        text = values.astype("string").str.strip().str.replace(r"[$,]", "", regex=True)
        numbers = pd.to_numeric(text, errors="coerce").astype("float64")
        _require(numbers.notna() | text.isna(), file, field, values, "is not a price in USD per hour")
    _require(numbers.notna(), file, field, values, "is missing; every row needs a price in USD per hour")
    _require(pd.Series(np.isfinite(numbers)), file, field, values, "is not finite")
    _require(numbers >= 0, file, field, values, "is negative; a price in USD per hour cannot be")
    return numbers


def _with_valid_cells(frame: pd.DataFrame, file: str | Path) -> pd.DataFrame:
    missing = [name for name in PRICE_COLUMNS if name not in frame.columns]
    unknown = [str(name) for name in frame.columns if name not in PRICE_COLUMNS]
    if missing or unknown:
        raise wrong_columns(frame.columns, PRICE_COLUMNS, file)
    if frame.empty:
        raise InputError("holds no rows", file=file)
    frame = frame.loc[:, list(PRICE_COLUMNS)].reset_index(drop=True)
    for name in MARKET_FIELDS:
        if isinstance(frame[name].dtype, pd.CategoricalDtype):
            text = frame[name]
            # Check each category once, not each row.
            blank = text.isna() | text.isin([each for each in text.cat.categories if not str(each).strip()])
        else:
            text = frame[name].astype("string")
            blank = text.isna() | (text.str.strip() == "")
        _require(~blank, file, name, frame[name], "is blank; every row needs one")
        frame[name] = text.astype("category")
    frame["timestamp"] = parsed_times(frame["timestamp"], file, "timestamp")
    frame["price_usd_per_hour"] = parsed_prices(frame["price_usd_per_hour"], file, "price_usd_per_hour")
    return frame


def wrong_columns(found: Iterable[object], needed: Sequence[str], file: str | Path) -> InputError:
    """An error for wrong columns: what is missing, and what is there instead."""
    names = [str(name) for name in found]
    missing = [name for name in needed if name not in names]
    unknown = [name for name in names if name not in needed]
    if missing:
        problem = f"has no column {_listed(missing)}; it has {_listed(names)}"
    else:
        problem = f"has an unknown column {_listed(unknown)}"
    return InputError(f"{problem}; needed are {', '.join(needed)}", file=file, field=(missing or unknown)[0])


def _listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a message, at most `most` of them."""
    shown = [repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...") for name in names[:most]]
    return ", ".join([*shown, *(["..."] if len(names) > most else [])]) or "none"


def unknown_types(frame: pd.DataFrame, catalogue: Catalogue) -> list[tuple[str, str]]:
    """The (cloud, instance type) pairs of a frame that are not in the catalogue."""
    pairs: Iterable[tuple[str, str]] = (
        frame[["cloud", "instance_type"]].drop_duplicates().astype(str).itertuples(index=False, name=None)
    )
    known = {(entry.cloud, entry.name) for entry in catalogue.instance_types}
    return [pair for pair in pairs if pair not in known]


def require_known_types(frame: pd.DataFrame, file: str | Path, catalogue: Catalogue) -> None:
    """Raise `InputError` for the first row whose instance type is not in the catalogue."""
    unknown = unknown_types(frame, catalogue)
    if not unknown:
        return
    cloud, name = unknown[0]
    row = int(np.argmax(((frame["cloud"] == cloud) & (frame["instance_type"] == name)).to_numpy())) + 1
    try:
        catalogue.instance_type(cloud, name)
    except InputError as error:
        raise InputError(error.problem, file=file, row=row, field="instance_type") from None


def _require(good: pd.Series, file: str | Path, field: str, values: pd.Series, problem: str) -> None:
    """Raise `InputError` for the first row that is not good."""
    if not good.all():
        at = int(np.argmin(good.to_numpy(dtype=bool)))
        try:
            value = str(values.iloc[at])
        except (NotImplementedError, ValueError, OverflowError):
            value = "it"  # a time that Python cannot represent
        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
        raise InputError(f"{shown} {problem}", file=file, row=at + 1, field=field)
