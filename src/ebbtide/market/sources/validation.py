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
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import MARKET_FIELDS, PRICE_COLUMNS, Market, product_name
from ebbtide.market.sources.cells import parsed_prices, parsed_times, require

if TYPE_CHECKING:
    import pandas as pd

# Consoles and APIs cut their exports at this many rows.
_EXPORT_LIMIT = 1000

# Instance types that a message names.
_NAMED = 5

# Characters of a value in a message.
_SHOWN = 60


@dataclass(frozen=True)
class Cleaning:
    """Report of what `cleaned` changed in a table.

    Attributes:
        rows_in: Number of rows before cleaning.
        rows_out: Number of rows kept.
        rows_sorted: Number of rows that were out of order.
        duplicates_dropped: Number of rows dropped for a later one of the same market and time.
        warnings: Possible problems of the table, in words.
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
    frame, renamed = _with_valid_cells(frame, file)
    require_known_types(frame, file, catalogue or default_catalogue())
    if renamed:
        # Two names of one product: the rows of one market may now stand in any order.
        return cleaned(frame, file)[0]
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
    frame, _ = _with_valid_cells(frame, file)
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


def _with_valid_cells(frame: pd.DataFrame, file: str | Path) -> tuple[pd.DataFrame, bool]:
    """The frame with its columns in order and of their types, and whether products got other names."""
    import pandas as pd

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
        require(~blank, file, name, frame[name], "is blank; every row needs one")
        frame[name] = text.astype("category")
    frame["product"], renamed = _one_name_each(frame["product"], frame["cloud"])
    frame["timestamp"] = parsed_times(frame["timestamp"], file, "timestamp")
    frame["price_usd_per_hour"] = parsed_prices(frame["price_usd_per_hour"], file, "price_usd_per_hour")
    return frame, renamed


def _one_name_each(products: pd.Series, clouds: pd.Series) -> tuple[pd.Series, bool]:
    """Products by the one name that each has here, as categories, and whether that is another for any row."""
    import pandas as pd

    given = products.cat.categories
    codes = clouds.cat.codes.to_numpy(np.int64) * len(given) + products.cat.codes.to_numpy(np.int64)
    pairs, places = np.unique(codes, return_inverse=True)
    before = [str(given[pair % len(given)]) for pair in pairs]
    names = [
        product_name(str(clouds.cat.categories[pair // len(given)]), name)
        for pair, name in zip(pairs, before, strict=True)
    ]
    if names == before:
        return products, False
    return pd.Series(pd.Categorical(names).take(places), index=products.index), True


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


@dataclass(frozen=True)
class DroppedRows:
    """Rows that were left out, because the catalogue does not have their instance types.

    Attributes:
        rows: Number of rows left out.
        types: Names of their instance types, sorted.
    """

    rows: int = 0
    types: tuple[str, ...] = ()

    def __add__(self, other: DroppedRows) -> DroppedRows:
        return DroppedRows(self.rows + other.rows, tuple(sorted({*self.types, *other.types})))

    def __str__(self) -> str:
        shown = f"{', '.join(self.types[:_NAMED])}{', ...' if len(self.types) > _NAMED else ''}"
        return (
            f"left out {self.rows} rows of {len(self.types)} instance types that the catalogue does not know "
            f"({shown}); --instance-types adds types"
        )


def known_rows(frame: pd.DataFrame, catalogue: Catalogue) -> tuple[pd.DataFrame, DroppedRows]:
    """The rows whose instance types are in the catalogue, which may be none, and what was left out."""
    import pandas as pd

    unknown = unknown_types(frame, catalogue)
    if not unknown:
        return frame, DroppedRows()
    is_unknown = pd.Series(False, index=frame.index)
    for cloud in {cloud for cloud, _ in unknown}:
        names = [name for of, name in unknown if of == cloud]
        is_unknown |= (frame["cloud"].astype(str) == cloud) & frame["instance_type"].isin(names)
    left_out = DroppedRows(int(is_unknown.sum()), tuple(sorted({name for _, name in unknown})))
    return frame[~is_unknown].reset_index(drop=True), left_out


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
