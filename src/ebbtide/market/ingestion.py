"""Ingestion of prices from exports or the live EC2 API into one clean Parquet file, and checks of new batches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.base.input_files import existing_file
from ebbtide.base.utc import DAY_S, HOUR_S, iso
from ebbtide.errors import InputError, unknown_name
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import LINUX, MARKET_FIELDS, Market
from ebbtide.market.prices import PriceHistory, recorded_span
from ebbtide.market.sources.cells import parsed_times
from ebbtide.market.sources.contents import head_of, is_archive, start_of_text, unpacked
from ebbtide.market.sources.ec2_json import price_frame, read_ec2_json, read_price_table
from ebbtide.market.sources.exports import read_azure_csv, read_azure_items_csv, read_azure_json
from ebbtide.market.sources.foreign import require_prices
from ebbtide.market.sources.parquet import load_parquet, load_prices
from ebbtide.market.sources.stored import is_price_store, stored_prices
from ebbtide.market.sources.tables import table_of_frame, without_comments
from ebbtide.market.sources.validation import (
    Cleaning,
    DroppedRows,
    cleaned,
    known_rows,
    require_known_types,
    sum_of,
)

if TYPE_CHECKING:
    import pandas as pd

# `kaggle-csv` is the older name of tables of text.
FORMATS = (
    "parquet",
    "price-store",
    "ec2-json",
    "table",
    "kaggle-csv",
    "azure-csv",
    "azure-json",
    "azure-items-csv",
)


@dataclass(frozen=True)
class Ingested:
    """The result of an ingestion.

    Attributes:
        history: The price history after the new rows were added.
        rows_before: Change points in the price file before.
        cleaning: What was sorted and dropped in the new rows.
        left_out: Rows left out because the catalogue does not have their instance types.
    """

    history: PriceHistory
    rows_before: int
    cleaning: Cleaning
    left_out: DroppedRows = field(default_factory=DroppedRows)

    @property
    def types_left_out(self) -> tuple[str, ...]:
        return self.left_out.types

    @property
    def rows_added(self) -> int:
        return self.history.change_points - self.rows_before

    def __str__(self) -> str:
        text = f"{self.rows_added} rows added to {self.rows_before}; {self.cleaning}"
        if self.left_out.rows:
            text += f"; {self.left_out}"
        return text


# EC2 publishes some prices hours after others.
_LATE_S = DAY_S


def ingest_files(
    paths: Sequence[str | Path],
    into: str | Path,
    *,
    file_format: str | None = None,
    timezone: str | None = None,
    region: str | None = None,
    product: str | None = None,
    catalogue: Catalogue | None = None,
) -> Ingested:
    """Add exports to the price file `into`, creating it if it does not exist.

    Of rows with the same market and time the last wins: later files over earlier ones, all of them over `into`.
    Nothing is written unless every row of every file is valid.

    Args:
        paths: Export files, or folders of them.
        into: Path of the Parquet file of prices.
        file_format: One of `FORMATS`; recognised from each file if None.
        timezone: Time zone of times without an offset, which are errors if it is None.
        region: Region of Azure sheets whose file name does not give it.
        product: Product of tables of EC2's prices that do not have it; an error where it is None.
        catalogue: The known instance types; rows of others are left out, and the result counts them.

    Raises:
        InputError: A file or row is invalid, or no row has a known instance type.
    """
    before = _held(into, catalogue)
    known = catalogue or default_catalogue()
    frames: list[pd.DataFrame] = []
    cleanings: list[Cleaning] = []
    left_out = DroppedRows()
    ends_s = -math.inf
    strange: tuple[pd.DataFrame, Path] | None = None
    for path in paths:
        found: list[pd.DataFrame] = []
        with unpacked(path) as files:
            for name, file in files:
                with _named(name, file):
                    frame = read_source(
                        file, file_format=file_format, timezone=timezone, region=region, product=product
                    )
                    ends_s = max(ends_s, _recorded_end_s(file, file_format))
                    fresh, cleaning = cleaned(frame, name)
                    kept, left = known_rows(fresh, known)
                    left_out += left
                    cleanings.append(cleaning)
                    if len(kept):
                        found.append(kept)
                    elif strange is None:
                        strange = frame.reset_index(drop=True), name
        # Of a folder or an archive, what begins later goes before what begins earlier, whatever its name.
        frames += sorted(found, key=lambda frame: frame["timestamp"].min())
    if not frames and strange is not None:
        require_known_types(*strange, known)
    return replace(_merge(frames, into, sum_of(cleanings), before, ends_s=ends_s), left_out=left_out)


def ingest_ec2(
    regions: Sequence[str],
    into: str | Path,
    *,
    instance_types: Sequence[str] = (),
    products: Sequence[str] = (LINUX,),
    catalogue: Catalogue | None = None,
    endpoint_url: str | None = None,
) -> Ingested:
    """Fetch spot prices from EC2 into the price file `into`, from a day before the newest that it has.

    Rows of instance types that are not in the catalogue are left out, and the result lists them.

    Raises:
        InputError: EC2 refused, or there are no prices at all, neither fetched nor in the file.
    """
    from ebbtide.market.sources.ec2_api import fetch_prices

    before = _held(into, catalogue)
    since = fetch_since(before, instance_types)
    fetched = fetch_prices(
        regions, instance_types=instance_types, products=products, since=since, endpoint_url=endpoint_url
    )
    left_out = DroppedRows()
    if len(fetched):
        fetched, left_out = known_rows(fetched, catalogue or default_catalogue())
    if not len(fetched):
        if before is None:
            raise InputError(f"EC2 has no prices for {', '.join(regions)}; nothing is written")
        return Ingested(before, before.change_points, Cleaning(0, 0, 0, 0), left_out)
    # The API answers newest first: reverse it, so that the result does not report rows out of order.
    fresh, cleaning = cleaned(fetched.iloc[::-1], "EC2")
    return replace(_merge([fresh], into, cleaning, before), left_out=left_out)


def read_source(
    path: str | Path,
    *,
    file_format: str | None = None,
    timezone: str | None = None,
    region: str | None = None,
    product: str | None = None,
) -> pd.DataFrame:
    """Read one export as a frame of the price schema, with rows in the order of the file.

    Raises:
        InputError: The format is unknown, or the file is invalid.
    """
    if file_format is not None and file_format not in FORMATS:
        raise unknown_name("format", file_format, FORMATS)
    path = existing_file(path)
    chosen = file_format or _recognised(path)
    if chosen == "parquet":
        return _parquet(path, timezone, product)
    if chosen == "price-store":
        return stored_prices(path)[0]
    if chosen == "ec2-json":
        return read_ec2_json(path, timezone=timezone, product=product)
    if chosen == "azure-csv":
        return read_azure_csv(path, region=region, timezone=timezone or "UTC")
    if chosen == "azure-json":
        return read_azure_json(path, timezone=timezone)
    if chosen == "azure-items-csv":
        return read_azure_items_csv(path, timezone=timezone)
    return read_price_table(path, timezone=timezone, product=product)


def _recorded_end_s(path: Path, file_format: str | None) -> float:
    """End of a source's record, seconds since 1970; minus infinity: the record ends with its last row."""
    chosen = file_format or _recognised(path)
    if chosen == "parquet":
        return recorded_span(path).get("end_s", -math.inf)
    return stored_prices(path)[1] if chosen == "price-store" else -math.inf


def _parquet(path: Path, timezone: str | None, product: str | None) -> pd.DataFrame:
    """A Parquet file in the price schema, or with the columns of another table of prices."""
    frame = load_prices(path)
    if "price_usd_per_hour" not in frame:
        table = table_of_frame(load_parquet(path))
        if {"price", "instance_type"} <= set(table.cells):
            return price_frame(table, path, timezone=timezone, product=product)
    elif timezone is not None and "timestamp" in frame:
        frame["timestamp"] = parsed_times(frame["timestamp"], path, "timestamp", timezone=timezone)
    return frame


@contextmanager
def _named(name: Path, file: Path) -> Iterator[None]:
    """Give errors the name that a file has in its archive, and not where it was unpacked."""
    try:
        yield
    except InputError as error:
        if name == file or error.file is None:
            raise
        raise InputError(error.problem, file=name, row=error.row, field=error.field) from None


def _recognised(path: Path) -> str:
    """The format of a file, by its content."""
    head = head_of(path)
    if head.startswith(b"PAR1"):
        return "parquet"
    if is_price_store(path):
        return "price-store"
    if is_archive(path):
        raise InputError("is an archive; `ebbtide ingest` reads the files in it", file=path)
    require_prices(head, path)
    text = without_comments(start_of_text(head, path).lstrip("\ufeff \r\n\t")).lstrip()
    if not text:
        raise InputError("holds nothing", file=path)
    if text[0] in "{[":
        return (
            "azure-json"
            if re.search(r'"(?:Items|armSkuName)"', text) and '"SpotPriceHistory"' not in text
            else "ec2-json"
        )
    if re.match(r"(?:---\s+)?(?:- - |(?:- )?\s*\w+:(?:\s|$))", text):
        return "ec2-json"
    if re.search(r"\barmSkuName\b", text.partition("\n")[0], re.IGNORECASE):
        return "azure-items-csv"
    return "azure-csv" if re.match(r"\"?date\"?\s*[,;\t|]", text, re.IGNORECASE) else "table"


def _held(into: str | Path, catalogue: Catalogue | None) -> PriceHistory | None:
    """Read the prices that a price file already holds; None: the file does not exist yet.

    Raises:
        InputError: The file cannot be read, or is a price store, which a Parquet file would replace.
    """
    if not Path(into).exists():
        return None
    if Path(into).is_file() and is_price_store(into):
        raise InputError("is a price store, to which `ebbtide watch` adds; name a Parquet file", file=into)
    return PriceHistory.read(into, catalogue)


def _merge(
    frames: Sequence[pd.DataFrame],
    into: str | Path,
    cleaning: Cleaning,
    before: PriceHistory | None,
    *,
    ends_s: float = -math.inf,
) -> Ingested:
    """Add clean frames to the price file: of rows with the same market and time, the last frame's wins.

    The record ends with the last row, at `ends_s` or where that of the file did, whichever is latest.
    """
    held = [before.to_frame()] if before else []
    merged, _ = cleaned(_stacked([*held, *frames]), into)
    history = PriceHistory.from_frame(
        merged,
        start_s=None if before is None else before.start_s,
        end_s=max(ends_s, -math.inf if before is None else before.end_s),
    )
    if before is None or not history.equals(before):
        history.write(into)
    return Ingested(history, before.change_points if before else 0, cleaning)


def _stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames one below the other; text columns as text, because the categories of two files differ."""
    import pandas as pd

    if len(frames) == 1:
        return frames[0]
    plain = [
        frame.astype({name: "string" for name, kind in frame.dtypes.items() if str(kind) == "category"})
        for frame in frames
    ]
    return pd.concat(plain, ignore_index=True)


def fetch_since(known: PriceHistory | None, instance_types: Sequence[str]) -> dict[str, float]:
    """Times from which prices of EC2's regions have to be fetched, seconds since 1970.

    A region's prices are fetched from a day before the newest known one, since EC2 publishes some of them late. A
    region is left out, so that all of its past is fetched, where one of the types is new there.

    Args:
        known: The prices so far; None: there are none.
        instance_types: Names of the types to fetch; empty: all.
    """
    newest: dict[str, float] = {}
    for market, series in (known or {}).items():
        if not instance_types or market.instance_type in instance_types:
            newest[market.region] = max(newest.get(market.region, 0.0), float(series.times_s[-1]))
    for region in list(newest):
        held = {market.instance_type for market in known or () if market.region == region}
        if not set(instance_types) <= held:
            del newest[region]
    return {region: newest_s - _LATE_S for region, newest_s in newest.items()}


def unknown_rows(fetched: pd.DataFrame, known: PriceHistory | None) -> pd.DataFrame:
    """The rows of those markets of a frame of prices that have something new: a later price, or another one.

    All rows of such a market are kept: between two that are new, one may return to what was known before.
    """
    if known is None or not len(fetched):
        return fetched
    kept = []
    for key, rows in fetched.groupby(list(MARKET_FIELDS), observed=True):
        market = Market(*map(str, key))
        if market in known:
            series = known[market]
            times_s = rows["timestamp"].map(lambda time: time.timestamp()).to_numpy(dtype=float)
            before = np.searchsorted(series.times_s, times_s, side="right") - 1
            same = (before >= 0) & (series.prices[before] == rows["price_usd_per_hour"].to_numpy(dtype=float))
            if (same & (times_s <= series.times_s[-1])).all():
                continue
        kept.append(rows)
    return _stacked(kept) if kept else fetched.iloc[:0]


@dataclass(frozen=True)
class BatchRules:
    """Limits that a batch must keep.

    Attributes:
        max_gap_h: The longest gap allowed between the end of the known prices and the batch, hours.
        max_of_list: The highest price allowed, as a multiple of the list price where that is known.
        max_jump: The largest ratio allowed between two prices of one market, in the batch or known; applies
            where no list price is known.
    """

    max_gap_h: float = 48.0
    max_of_list: float = 20.0
    max_jump: float = 200.0

    def __post_init__(self) -> None:
        for name in ("max_gap_h", "max_of_list", "max_jump"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name):g}; it must be positive")


@dataclass(frozen=True)
class BatchVerdict:
    """The result of checking one batch.

    Attributes:
        file: Path of the batch's file.
        rows: Number of valid rows in it.
        problem: Why it is rejected, in words; empty where it is accepted.
        ends_s: Time of its last row, seconds since 1970; minus infinity: not known.
    """

    file: Path
    rows: int
    problem: str = ""
    ends_s: float = field(default=-math.inf, compare=False)


def judged(
    file: Path,
    known: PriceHistory | None,
    rules: BatchRules,
    catalogue: Catalogue | None = None,
    *,
    known_until_s: float = -math.inf,
) -> BatchVerdict:
    """Check a batch: its schema, the gap to the known prices, and jumps of the price.

    Args:
        file: The batch, in any format that `ebbtide ingest` reads.
        known: The price history so far; None if there is none.
        rules: Limits that the batch must keep.
        catalogue: Known instance types and list prices; the embedded one by default.
        known_until_s: End of batches that were accepted but are not in the history yet, seconds since 1970.
    """
    types = catalogue or default_catalogue()
    try:
        given = read_source(file)
        frame, _ = known_rows(cleaned(given, file)[0], types)
        if frame.empty:
            require_known_types(given.reset_index(drop=True), file, types)
        problem = _gap(frame, known, rules, known_until_s) or _jump(frame, known, rules, types)
    except InputError as error:
        return BatchVerdict(file, 0, error.problem if error.row is None else f"row {error.row}: {error.problem}")
    return BatchVerdict(file, len(frame), problem, frame["timestamp"].max().timestamp())


def _gap(frame: pd.DataFrame, known: PriceHistory | None, rules: BatchRules, known_until_s: float) -> str:
    if known is None:
        return ""
    begins_s = frame["timestamp"].min().timestamp()
    gap_h = (begins_s - max(known.end_s, known_until_s)) / HOUR_S
    if gap_h <= rules.max_gap_h:
        return ""
    most = f"at most {rules.max_gap_h:g} h are allowed"
    return f"begins at {iso(begins_s)}, {gap_h:.0f} h after the known prices end; {most}"


def _jump(frame: pd.DataFrame, known: PriceHistory | None, rules: BatchRules, catalogue: Catalogue) -> str:
    for key, rows in frame.groupby(list(MARKET_FIELDS), observed=True):
        market = Market(*map(str, key))
        prices = rows["price_usd_per_hour"].to_numpy(dtype=float)
        worst = int(prices.argmax())
        when = iso(rows["timestamp"].iloc[worst].timestamp())
        listed = catalogue.on_demand_usd_per_hour(market, rows["timestamp"].iloc[worst].timestamp())
        if listed is not None:
            if prices[worst] > rules.max_of_list * listed:
                times = prices[worst] / listed
                return f"{market} costs {prices[worst]:g} at {when}, {times:.0f} times its list price"
            continue
        seen = prices if known is None or market not in known else np.append(prices, known[market].prices)
        if prices[worst] > rules.max_jump * seen.min() or prices.min() * rules.max_jump < seen.max():
            return f"{market} goes from {seen.min():g} to {seen.max():g} USD an hour (by {when})"
    return ""
