"""Checks of a batch of new prices before it is added to the price history."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ebbtide._utc import HOUR_S, iso
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.ingestion import read_source
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.validation import cleaned, require_known_types


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
class Verdict:
    """The result of checking one batch.

    Attributes:
        file: Path of the batch's file.
        rows: Number of valid rows in it.
        problem: Why it is rejected, in words; empty where it is accepted.
    """

    file: Path
    rows: int
    problem: str = ""


def judged(
    file: Path, known: PriceHistory | None, rules: BatchRules, catalogue: Catalogue | None = None
) -> Verdict:
    """Check a batch: its schema, the gap to the known prices, and jumps of the price.

    Args:
        file: The batch, in any format that `ebbtide ingest` reads.
        known: The price history so far; None if there is none.
        rules: Limits that the batch must keep.
        catalogue: Known instance types and list prices; the embedded one by default.
    """
    types = catalogue or default_catalogue()
    try:
        frame, _ = cleaned(read_source(file), file)
        if frame.empty:
            return Verdict(file, 0, "holds no prices")
        require_known_types(frame.reset_index(drop=True), file, types)
        problem = _gap(frame, known, rules) or _jump(frame, known, rules, types)
    except InputError as error:
        return Verdict(file, 0, error.problem if error.row is None else f"row {error.row}: {error.problem}")
    return Verdict(file, len(frame), problem)


def _gap(frame: pd.DataFrame, known: PriceHistory | None, rules: BatchRules) -> str:
    if known is None:
        return ""
    begins_s = frame["timestamp"].min().timestamp()
    gap_h = (begins_s - known.end_s) / HOUR_S
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
