"""Statistics of price histories, one row per market."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ebbtide._utc import DAY_S, HOUR_S, MINUTE_S, from_epoch_s
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries


def describe(
    history: Mapping[Market, PriceSeries], end_s: float, catalogue: Catalogue | None = None
) -> pd.DataFrame:
    """One row per market, each over the time from its first price to `end_s`, the end of the record.

    Columns: `rows` (change points as recorded), `changes` (those that changed the price), `first`,
    `longest_gap_h` (the longest time without a row), `mean_usd_per_hour`, `median_usd_per_hour`, `min`, `max`
    (weighted by the time each price held), `changes_per_day`, `median_interval_min` (between changes),
    `on_demand_usd_per_hour` (NaN where unknown), `ratio_to_on_demand` (of the means) and `share_above_on_demand`
    (of time).
    """
    catalogue = catalogue or default_catalogue()
    rows = {str(market): _describe(market, series, end_s, catalogue) for market, series in history.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("market")


def _describe(market: Market, series: PriceSeries, end_s: float, catalogue: Catalogue) -> dict[str, object]:
    first_s = float(series.times_s[0])
    changed = np.flatnonzero(np.diff(series.prices)) + 1
    intervals = np.diff(series.times_s[changed])
    gaps = np.diff(series.times_s, append=end_s)
    list_price = catalogue.on_demand_usd_per_hour(market, (first_s + end_s) / 2)
    mean = series.mean(first_s, end_s)
    days = (end_s - first_s) / DAY_S
    return {
        "rows": len(series),
        "changes": len(changed),
        "first": from_epoch_s(first_s),
        "longest_gap_h": float(gaps.max()) / HOUR_S,
        "mean_usd_per_hour": mean,
        "median_usd_per_hour": weighted_quantile(series.prices, gaps, 0.5),
        "min_usd_per_hour": float(series.prices.min()),
        "max_usd_per_hour": float(series.prices.max()),
        "changes_per_day": len(changed) / days if days > 0 else np.nan,
        "median_interval_min": float(np.median(intervals)) / MINUTE_S if len(intervals) else np.nan,
        "on_demand_usd_per_hour": np.nan if list_price is None else list_price,
        "ratio_to_on_demand": np.nan if list_price is None else mean / list_price,
        "share_above_on_demand": (
            np.nan if list_price is None else series.share_above(first_s, end_s, list_price)
        ),
    }


def weighted_quantile(values: np.ndarray, weights: np.ndarray, quantile: float) -> float:
    """The smallest value with at least `quantile` of the total weight at or below it.

    Without any weight it is the first value, or NaN if there is none.
    """
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    if not len(cumulative) or cumulative[-1] <= 0:
        return float(values[0]) if len(values) else float("nan")
    index = int(np.searchsorted(cumulative, quantile * cumulative[-1]))
    return float(values[order][min(index, len(values) - 1)])
