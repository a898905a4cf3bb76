"""Whether a batch of new prices is fit to be added to those that are known."""

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
    """What a batch may be.

    Attributes:
        max_gap_h: It begins at most so long after what is known ends.
        max_of_list: No price is above so many times the list price, where that is known;
        max_jump: where it is not, no price is so many times another of the same market, in the batch or known.
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
    """What was found in a batch.

    Attributes:
        file: The batch.
        rows: Good ones in it.
        problem: Why it is set aside; empty: it is fit.
    """

    file: Path
    rows: int
    problem: str = ""


def judged(
    file: Path, known: PriceHistory | None, rules: BatchRules, catalogue: Catalogue | None = None
) -> Verdict:
    """Look at a batch: schema, gap to what is known, jumps.

    Args:
        file: In any format that `ebbtide ingest` reads.
        known: Prices so far; None: there are none.
        rules: What it may be.
        catalogue: Of known instance types, and of list prices.
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
    most = f"at most {rules.max_gap_h:g} are let by"
    return f"begins at {iso(begins_s)}, {gap_h:.0f} h after what is known ends; {most}"


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
