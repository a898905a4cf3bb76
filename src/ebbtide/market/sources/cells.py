"""Times and prices from the cells of tables: what can be read in two ways is refused with what to write.

A price is written with a point and without separators, `0.1578`; commas count as separators of thousands only
where nothing else can be meant, as in `1,234.50`. A time is in ISO 8601 with an offset, or in another form of one
meaning: `03/04/2026` has two, unless another row of its column shows which number is the month.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Spot prices began in 2009. A time outside these years is in the wrong unit.
_FIRST_TIME, _LAST_TIME = "1970-01-01T00:00:00Z", "2200-01-01T00:00:00Z"

# The dearest machines are listed at some hundred USD per hour; spot prices have reached 1,000.
_MOST_USD = 10_000.0

# Characters of a value in a message.
_SHOWN = 60

# Unix times from 2001 to 2096: these ranges do not overlap, whatever the unit.
_LEAST_UNIX_S, _MOST_UNIX_S = 1_000_000_000, 4_000_000_000
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_UNIX = re.compile(r"\d{9,19}(?:\.\d+)?")
# Hours alone, as Postgres writes them, only count behind a time: 2026-10-01 ends like an offset, too.
_OFFSET = (
    r"(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}(?:\s*UTC)?|(?<=:\d{2})\s?[+-]\d{2}"
    r"|(?<=\.\d{3})[+-]\d{2}|(?<=\.\d{6})[+-]\d{2})"
)
_ISO = re.compile(
    r"\d{4}(?P<mark>[-/.])\d{1,2}(?P=mark)\d{1,2}(?:[T\s]\s*\d{1,2}:?\d{2}(?::?\d{2}(?:[.,]\d+)?)?)?\s*(?:"
    + _OFFSET
    + r")?"
    r"|\d{8}T\d{4}(?:\d{2}(?:[.,]\d+)?)?(?:" + _OFFSET + r")?",
    re.IGNORECASE,
)
_SLASHED = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?P<rest>\D.*)?")
_SHORT_YEAR = re.compile(r"\d{1,2}([/.-])\d{1,2}\1\d{2}(?:\D.*)?")
_WORDED = re.compile(
    r"(?=.*\b\d{4}\b)(?=.*\b\d{1,2}\b)"
    r".*\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b.*",
    re.IGNORECASE,
)
# Names such as EST and IST mean several offsets each.
_ZONE_NAME = re.compile(r"\b(?!UTC\b|GMT\b|AM\b|PM\b|T\b|Z\b)[A-Z]{2,5}\b(?!.*\d{4})")

_PLAIN = re.compile(r"[+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+\.\d+|[1-9]\d{0,2}(?:,\d{3}){2,}", re.ASCII)
_DOLLARS = re.compile(
    r"(?:US\s?\$|USD|\$)\s*(?P<after>[^$]*)|(?P<before>[^$]*?)\s*(?:USD|US\s?\$|\$)", re.IGNORECASE
)

_NO_PRICE = "is not a price in USD per hour"


def require(good: pd.Series, file: str | Path, field: str, values: pd.Series, problem: str) -> None:
    """Raise `InputError` for the first row that is not good."""
    if not good.all():
        at = int(np.argmin(good.to_numpy(dtype=bool)))
        raise InputError(f"{_shown(values.iloc[at])} {problem}", file=file, row=at + 1, field=field)


def parsed_prices(values: pd.Series, file: str | Path, field: str) -> pd.Series:
    """Prices as floats: text may carry a dollar sign, and commas between thousands where they can mean no other.

    Args:
        values: Numbers or text, shape (rows,).
        file: File that error messages name.
        field: Column that error messages name.

    Raises:
        InputError: The first price that is missing, no number, infinite, zero, negative or above any machine's, in
            another currency, or can be read in two ways; the message says what to write.
    """
    import pandas as pd

    if pd.api.types.is_bool_dtype(values.dtype):
        require(pd.Series(False, index=values.index), file, field, values, _NO_PRICE)
    if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_complex_dtype(values.dtype):
        numbers = values.astype("float64")
    else:
        text = values.astype("string").str.strip()
        plain = text.str.fullmatch(_PLAIN).fillna(False).astype(bool)
        numbers = pd.to_numeric(text.where(plain), errors="coerce").astype("float64")
        for at in np.flatnonzero(~plain.to_numpy() & text.notna().to_numpy()).tolist():
            numbers.iloc[at] = _price(str(text.iloc[at]), _At(file, at + 1, field))
    require(numbers.notna(), file, field, values, "is missing; every row needs a price in USD per hour")
    require(pd.Series(np.isfinite(numbers)), file, field, values, "is not finite")
    require(numbers >= 0, file, field, values, "is negative; a price in USD per hour cannot be")
    problem = "is no price; leave out rows of machines that are not offered"
    require(numbers > 0, file, field, values, problem)
    problem = (
        f"is more than {_MOST_USD:,.0f} USD per hour, which no machine costs; a spreadsheet may have lost the "
        "decimal point: write 0.918, not 918000"
    )
    require(numbers <= _MOST_USD, file, field, values, problem)
    return numbers


class _At:
    """Position of a cell; its errors name file, row and field."""

    def __init__(self, file: str | Path, row: int, field: str) -> None:
        self._file, self._row, self._field = file, row, field

    def error(self, value: str, problem: str) -> InputError:
        return InputError(f"{_shown(value)} {problem}", file=self._file, row=self._row, field=self._field)


def _price(text: str, at: _At) -> float:
    """A price that is not written plainly; NaN where the cell says that there is none."""
    dollars = _DOLLARS.fullmatch(text)
    number = text if dollars is None else (dollars["after"] or dollars["before"] or "").strip()
    if _PLAIN.fullmatch(number):
        return float(number)
    if _GROUPED.fullmatch(number):
        return float(number.replace(",", ""))
    if number.casefold() in ("", "nan", "none", "null", "n/a", "-"):
        return float("nan")
    if number.casefold().lstrip("+-") in ("inf", "infinity"):
        return float("inf")
    if number[0] in "-\u2212" and _PLAIN.fullmatch(number[1:]):
        return -float(number[1:]) or 0.0
    raise at.error(text, _price_problem(number))


def _price_problem(number: str) -> str:
    """Describe why a price cannot be read, and what to write instead."""
    if re.search(r"[%\u2030]", number):
        return f"{_NO_PRICE} but a share; write for example 0.1578"
    if re.search(r"[\u00a3\u00a5\u20a0-\u20cf]|\b[A-Z]{3}\b|[A-Z]{1,3}\$|\bkr\b", number):
        return f"{_NO_PRICE} but in another currency; convert it, and write for example 0.1578"
    if re.fullmatch(r"[+-]?0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?", number):
        return f"{_NO_PRICE} but a hexadecimal number; write for example 0.1578"
    digits = re.sub(r"[\s\u00a0\u202f\u2009'\u2019_]", "", number)
    if re.fullmatch(r"[1-9]\d{0,2},\d{3}", digits):
        whole = digits.replace(",", "")
        return f"can be {whole} or {digits.replace(',', '.')}; write {whole} or {digits.replace(',', '.')}"
    if re.fullmatch(r"\d*,\d+", digits):
        return f"seems to have a decimal comma; write {digits.replace(',', '.')}"
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d*|\d{1,3}(?:\.\d{3}){2,}", digits):
        plain = digits.replace(".", "").replace(",", ".")
        return f"seems to have points between thousands; write {plain}"
    if digits != number and re.fullmatch(r"\d*(?:[.,]\d*)?", digits):
        return f"has separators between digits; write {digits.replace(',', '.')}"
    if re.fullmatch(r"[\d.,]+", digits):
        return f"{_NO_PRICE}: its points and commas are at odd places; write for example 1234.5"
    return f"{_NO_PRICE}; write for example 0.1578"


def parsed_times(values: pd.Series, file: str | Path, field: str, *, timezone: str | None = None) -> pd.Series:
    """Times as UTC, to the microsecond.

    Args:
        values: Aware datetimes, Unix times, or text in ISO 8601 or similar formats, shape (rows,).
        file: File that error messages name.
        field: Column that error messages name.
        timezone: Time zone of times without an offset, which are errors if it is None.

    Raises:
        InputError: The first time that does not parse, is missing, can be read in two ways, or has no offset and
            no `timezone`.
    """
    import pandas as pd

    if isinstance(values.dtype, pd.DatetimeTZDtype):
        require(values.notna(), file, field, values, "is not a time")
        parsed: pd.Series = values.dt.tz_convert("UTC").astype("datetime64[us, UTC]")
    elif pd.api.types.is_datetime64_any_dtype(values.dtype):
        require(values.notna(), file, field, values, "is not a time")
        _require_zone(pd.Series(True, index=values.index), values, file, field, timezone)
        parsed = _placed(values, timezone, file, field)
    else:
        parsed = _from_text(values, file, field, timezone)
    within = (parsed >= pd.Timestamp(_FIRST_TIME)) & (parsed < pd.Timestamp(_LAST_TIME))
    require(within, file, field, values, "is not in the years 1970 to 2199")
    return parsed


def _from_text(values: pd.Series, file: str | Path, field: str, timezone: str | None) -> pd.Series:
    import pandas as pd

    if pd.api.types.is_float_dtype(values.dtype):
        text = (
            values.map(lambda value: f"{value:.6f}".rstrip("0").rstrip(".")).astype("string").where(values.notna())
        )
    else:
        text = values.astype("string").str.strip()
    if pd.api.types.is_numeric_dtype(values.dtype) or text.str.fullmatch(_UNIX).fillna(False).all():
        return _from_unix(text, values, file, field)
    parsed = pd.Series(pd.NaT, index=text.index, dtype="datetime64[us, UTC]")
    naive = ~text.str.contains(rf"(?:{_OFFSET})$", case=False, regex=True).fillna(False).astype(bool)
    plain = text.str.replace(r"(?<=\d)\s*(?:UTC|GMT)$", "Z", case=False, regex=True)
    plain = plain.str.replace(r"([+-]\d{2}:?\d{2})Z$", r"\1", regex=True)
    plain = plain.str.replace(r"(?<=:\d{2})\s?([+-]\d{2})$", r"\1:00", regex=True)
    plain = plain.str.replace(r"(?<=\.\d{3})([+-]\d{2})$|(?<=\.\d{6})([+-]\d{2})$", r"\1\2:00", regex=True)
    is_iso = plain.str.fullmatch(_ISO).fillna(False).astype(bool)
    plain = plain.where(~is_iso, plain.str.replace(r"^(\d{4})[/.](\d{1,2})[/.](\d{1,2})", r"\1-\2-\3", regex=True))
    slashed = ~is_iso & plain.str.fullmatch(_SLASHED).fillna(False).astype(bool)
    if slashed.any():
        plain, at_end = _year_first(plain, slashed, values, file, field)
        naive |= slashed & at_end
        is_iso |= slashed
    short = plain.str.fullmatch(_SHORT_YEAR).fillna(False).astype(bool)
    require(
        ~short, file, field, values, "is a date with a year of two digits; write for example 2026-04-03T12:00:00Z"
    )
    named = text.str.contains(_ZONE_NAME).fillna(False).astype(bool) & naive & text.str.contains(r"\d", regex=True)
    require(
        ~named,
        file,
        field,
        values,
        "names a time zone that can be several; write an offset, as 2026-04-03T12:00:00+02:00",
    )
    worded = ~is_iso & plain.str.fullmatch(_WORDED).fillna(False).astype(bool)
    for part, form in ((is_iso, "ISO8601"), (worded, "mixed")):
        # pandas refuses times with and without offset in one column.
        for chosen in (part & naive, part & ~naive):
            if chosen.any():
                times = pd.to_datetime(plain[chosen], utc=True, errors="coerce", format=form)
                if form == "ISO8601" and times.isna().any():
                    times = times.fillna(pd.to_datetime(plain[chosen], utc=True, errors="coerce", format="mixed"))
                parsed[chosen] = times.astype("datetime64[us, UTC]")
    require(parsed.notna(), file, field, values, "is not a time; write for example 2026-04-03T12:00:00Z")
    if not naive.any():
        return parsed
    _require_zone(naive, values, file, field, timezone)
    parsed[naive] = _placed(parsed[naive].dt.tz_localize(None), timezone, file, field)
    return parsed


def _from_unix(text: pd.Series, values: pd.Series, file: str | Path, field: str) -> pd.Series:
    """Unix times, in the one unit in which all are in a range that no other unit has."""
    problem = "is a number, not a time; write for example 2015-04-01T12:00:00Z"
    require(text.notna() & text.str.fullmatch(_UNIX).fillna(False).astype(bool), file, field, values, problem)
    numbers = text.astype("float64")
    for unit, per_s in _UNITS.items():
        if _LEAST_UNIX_S <= numbers.iloc[0] / per_s < _MOST_UNIX_S:
            alike = (numbers >= _LEAST_UNIX_S * per_s) & (numbers < _MOST_UNIX_S * per_s)
            others = f"is not a Unix time in {unit}, as that of row 1; write for example 2015-04-01T12:00:00Z"
            require(alike, file, field, values, others)
            if unit == "s":
                return _utc_of((numbers * 1e6).round().astype("int64"))
            whole = text.str.partition(".")[0].astype("int64") * (1_000_000_000 // per_s) // 1_000
            return _utc_of(whole)
    raise InputError(f"{_shown(values.iloc[0])} {problem}", file=file, row=1, field=field)


def _utc_of(microseconds: pd.Series) -> pd.Series:
    import pandas as pd

    return pd.Series(
        pd.to_datetime(microseconds.to_numpy(), unit="us", utc=True), index=microseconds.index
    ).astype("datetime64[us, UTC]")


def _year_first(
    text: pd.Series, slashed: pd.Series, values: pd.Series, file: str | Path, field: str
) -> tuple[pd.Series, pd.Series]:
    """Dates as 3/4/2026 with the year first, and which of them have no offset.

    Raises:
        InputError: No row shows whether the day or the month comes first, or rows show both.
    """
    import pandas as pd

    parts = text[slashed].str.extract(_SLASHED)
    first, second = parts[0].astype("int64"), parts[2].astype("int64")
    day_first, month_first = first > 12, second > 12
    at = slashed.index.get_indexer(parts.index)
    if day_first.any() == month_first.any():
        row = int(at[int(np.argmax((day_first | month_first).to_numpy())) if day_first.any() else 0])
        day, month, year = (parts.iloc[0][column] for column in (0, 2, 3))
        if day_first.any():
            problem = "is a date in another order than others of its column; write for example 2026-04-03"
        else:
            ways = [f"{year}-{int(month):02}-{int(day):02}", f"{year}-{int(day):02}-{int(month):02}"]
            problem = f"can be {ways[0]} or {ways[1]}; write one of them"
            problem = problem if ways[0] != ways[1] else f"is in an order that no row shows; write {ways[0]}"
        raise InputError(f"{_shown(values.iloc[row])} {problem}", file=file, row=row + 1, field=field)
    day, month = (first, second) if day_first.any() else (second, first)
    rest = parts["rest"].fillna("").astype("string")
    built = parts[3] + "-" + month.map("{:02}".format) + "-" + day.map("{:02}".format) + rest
    changed = text.copy()
    changed[slashed] = built.astype("string")
    no_offset = pd.Series(False, index=text.index)
    no_offset[slashed] = ~rest.str.contains(rf"(?:{_OFFSET})$", case=False, regex=True)
    return changed, no_offset


def _require_zone(naive: pd.Series, values: pd.Series, file: str | Path, field: str, timezone: str | None) -> None:
    if timezone is None and naive.any():
        at = int(np.argmax(naive.to_numpy()))
        raise InputError(
            f"{values.iloc[at]!s} has no time zone; write it with an offset or Z, or name its time zone "
            "(`ebbtide ingest --timezone UTC`)",
            file=file,
            row=at + 1,
            field=field,
        )


def _placed(local: pd.Series, timezone: str | None, file: str | Path, field: str) -> pd.Series:
    """Times without an offset, in a time zone."""
    try:
        placed = local.dt.tz_localize(
            timezone, ambiguous=np.ones(len(local), dtype=bool), nonexistent="shift_forward"
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"time zone {timezone!r}: {error}", file=file, field=field) from None
    utc: pd.Series = placed.dt.tz_convert("UTC").astype("datetime64[us, UTC]")
    return utc


def _shown(value: object) -> str:
    try:
        text = str(value)
    except (NotImplementedError, ValueError, OverflowError):
        return "it"  # a time that Python cannot represent
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
