"""Price histories: the recorded prices of many markets, and statistics of each market."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.base.files import replacing
from ebbtide.base.utc import DAY_S, HOUR_S, MINUTE_S, Time, from_epoch_s, iso, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.market.parquet_notes import notes_of, write_with_notes
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.market.sources.parquet import read_parquet
from ebbtide.market.sources.stored import is_price_store, stored_prices
from ebbtide.market.sources.validation import cleaned, known_rows, require_known_types

if TYPE_CHECKING:
    import pandas as pd

_LOGGER = logging.getLogger(__name__)


def describe(
    history: Mapping[Market, PriceSeries], end_s: float, catalogue: Catalogue | None = None
) -> pd.DataFrame:
    """Summarise each market in one row, from its first price to `end_s`, the end of the record.

    Columns: `rows` (change points as recorded), `changes` (those that changed the price), `first`,
    `longest_gap_h` (the longest time without a row), `mean_usd_per_hour`, `median_usd_per_hour`, `min`, `max`
    (weighted by the time each price held), `changes_per_day`, `median_interval_min` (between changes),
    `on_demand_usd_per_hour` (NaN where unknown), `ratio_to_on_demand` (of the means) and `share_above_on_demand`
    (of time).
    """
    import pandas as pd

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


class PriceHistory(Mapping[Market, PriceSeries]):
    """The prices of many markets over one span of time, as change points.

    A mapping from `Market` to `PriceSeries`, in the order of the markets. A price holds from its timestamp until
    the next; prices before a market's first timestamp and after `end_s` are unknown.

    Attributes:
        markets: Every market of the history, sorted.
        start_s: When the record begins, seconds since 1970.
        end_s: When the record ends, seconds since 1970: the last timestamp of any market, unless set.
    """

    def __init__(
        self,
        series: Mapping[Market, PriceSeries],
        *,
        start_s: float | None = None,
        end_s: float | None = None,
    ) -> None:
        if not series:
            raise InputError("a price history needs at least one market")
        self._series = dict(sorted(series.items()))
        self.markets = tuple(self._series)
        self._all_begun_s = max(float(s.times_s[0]) for s in series.values())
        self.start_s = min(float(s.times_s[0]) for s in series.values()) if start_s is None else start_s
        self.end_s = max(float(s.times_s[-1]) for s in series.values()) if end_s is None else end_s

    def __getitem__(self, market: Market) -> PriceSeries:
        return self._series[market]

    def __iter__(self) -> Iterator[Market]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def __repr__(self) -> str:
        return f"<PriceHistory of {len(self)} markets, {iso(self.start_s)} to {iso(self.end_s)}>"

    def begun_by(self, time_s: float) -> tuple[Sequence[Market], float]:
        """The markets with a price at `time_s`, and when the next market's record begins (infinity if none)."""
        if time_s >= self._all_begun_s:
            return self.markets, math.inf
        first_s = {market: float(series.times_s[0]) for market, series in self.items()}
        begun = [market for market, at_s in first_s.items() if at_s <= time_s]
        return begun, min(at_s for at_s in first_s.values() if at_s > time_s)

    def each(self, change: Callable[[Market, PriceSeries], PriceSeries]) -> PriceHistory:
        """The history with every market's prices changed by a function, over the same time."""
        changed = {market: change(market, series) for market, series in self.items()}
        return PriceHistory(changed, start_s=self.start_s, end_s=self.end_s)

    @property
    def change_points(self) -> int:
        return sum(len(series) for series in self._series.values())

    @classmethod
    def read(cls, path: str | Path, catalogue: Catalogue | None = None) -> PriceHistory:
        """Read a Parquet file of the price schema (`markets.PRICE_COLUMNS`), strictly, or a price store.

        A store has what clouds told, so that rows of unknown instance types are left out, and logged.

        Raises:
            InputError: The file is missing, empty, lacks a column, has an unknown one, or has a row that is
                not a valid price; the message names file, row and field.
        """
        if not (Path(path).is_file() and is_price_store(path)):
            return cls.from_frame(read_parquet(path, catalogue), **recorded_span(path))
        known = catalogue or default_catalogue()
        frame, looked_s = stored_prices(path)
        kept, left_out = known_rows(frame, known)
        if kept.empty:
            require_known_types(frame, path, known)
        if left_out.rows:
            _LOGGER.warning("%s: %s", path, left_out)
        found = cls.from_frame(cleaned(kept, path)[0])
        return cls(found, end_s=max(found.end_s, looked_s))

    @classmethod
    def from_frame(
        cls, frame: pd.DataFrame, *, start_s: float | None = None, end_s: float | None = None
    ) -> PriceHistory:
        """Build from a clean frame of the price schema: each market's rows in time order, without repeats.

        Use `ebbtide.market.sources.validation.checked` on a frame from elsewhere.

        Args:
            frame: The change points.
            start_s: When the record begins, if that is before its first row, seconds since 1970.
            end_s: When the record ends, if that is after its last row, seconds since 1970.
        """
        if frame.empty:
            raise InputError("no prices: the table is empty")
        codes = frame.groupby(list(MARKET_FIELDS), observed=True, sort=False).ngroup().to_numpy()
        order = np.argsort(codes, kind="stable")
        times = _epoch_s(frame["timestamp"])[order]
        prices = frame["price_usd_per_hour"].to_numpy(np.float64)[order]
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        bounds = np.append(starts, len(frame))
        heads = frame.iloc[order[starts]]
        keys = zip(*(heads[field].astype(str) for field in MARKET_FIELDS), strict=True)
        return cls(
            {
                Market(*key): PriceSeries(times[low:high], prices[low:high])
                for key, low, high in zip(keys, bounds[:-1], bounds[1:], strict=True)
            },
            start_s=None if start_s is None else min(start_s, float(times.min())),
            end_s=None if end_s is None else max(end_s, float(times.max())),
        )

    def to_frame(self) -> pd.DataFrame:
        """The change points as a frame of the price schema, by market and time."""
        import pandas as pd

        lengths = [len(series) for series in self._series.values()]
        times = np.concatenate([series.times_s for series in self._series.values()])
        columns: dict[str, object] = {"timestamp": _timestamps(times)}
        for field in MARKET_FIELDS:
            names = [getattr(market, field) for market in self._series]
            columns[field] = pd.Categorical(np.repeat(np.array(names, dtype=object), lengths))
        columns["price_usd_per_hour"] = np.concatenate([s.prices for s in self._series.values()])
        return pd.DataFrame(columns)

    def equals(self, other: PriceHistory) -> bool:
        """Return whether both histories hold the same change points of the same markets, over the same span."""
        return (
            (self.markets, self.start_s, self.end_s) == (other.markets, other.start_s, other.end_s)
            and all(np.array_equal(series.times_s, other[market].times_s) for market, series in self.items())
            and all(np.array_equal(series.prices, other[market].prices) for market, series in self.items())
        )

    def write(self, path: str | Path) -> None:
        """Write as Parquet, atomically, with the span of the record: the last price may hold for long."""
        write_with_notes(path, self.to_frame(), {"start_s": self.start_s, "end_s": self.end_s})

    def at(self, time: Time) -> pd.Series:
        """The price in force in every market at `time`, USD per hour; NaN before a market's first price.

        Raises:
            InputError: `time` is outside the record.
        """
        import pandas as pd

        time_s = to_epoch_s(time)
        self.check_inside(time_s)
        prices = [series.at(time_s) for series in self._series.values()]
        return pd.Series(prices, index=_market_index(self._series), name="price_usd_per_hour")

    def window(self, start: Time, end: Time) -> PriceHistory:
        """The record of [start, end), beginning with the prices in force at the start.

        Raises:
            InputError: The window is empty, not inside the record, or holds no price.
        """
        start_s, end_s = to_epoch_s(start), to_epoch_s(end)
        if end_s <= start_s:
            raise InputError(f"window {iso(start_s)} to {iso(end_s)} is empty; its end must be after its start")
        self.check_inside(start_s)
        self.check_inside(end_s)
        cut = {market: PriceSeries(*series.between(start_s, end_s)) for market, series in self.items()}
        known = {market: series for market, series in cut.items() if len(series)}
        if not known:
            raise InputError(f"no market has a price between {iso(start_s)} and {iso(end_s)}")
        return PriceHistory(known, start_s=start_s, end_s=end_s)

    def select(self, keep: Callable[[Market], bool] | Iterable[Market]) -> PriceHistory:
        """The record of some markets, over the same span.

        Raises:
            InputError: No market is left, or one of those named is unknown.
        """
        if not callable(keep):
            wanted = list(keep)
            for market in wanted:
                if market not in self._series:
                    raise InputError(f"unknown market {market}; known: {', '.join(map(str, self))}")
            chosen = {market: self._series[market] for market in wanted}
        else:
            chosen = {market: series for market, series in self.items() if keep(market)}
        if not chosen:
            raise InputError("no market is left by the selection")
        return PriceHistory(chosen, start_s=self.start_s, end_s=self.end_s)

    def resample(self, step_s: float = 60.0, *, method: str = "step", max_gap_s: float | None = None) -> PriceGrid:
        """Sample every market on one even grid, from the first whole step of the record to its end.

        Args:
            step_s: Seconds between grid points.
            method: `step` holds each price until the next, as markets do; `linear` interpolates between
                change points, as in SpotTune IV-A1, and so looks ahead within a step.
            max_gap_s: Longest time a price is held, seconds; NaN beyond it. By default a gap in the record is
                filled with the price before it, however long it is.

        Returns:
            The grid; NaN before a market's first price.

        Raises:
            InputError: `step_s` is not positive, or the method is unknown.
        """
        if not step_s > 0:
            raise InputError(f"step_s is {step_s}; it must be positive")
        if method not in ("step", "linear"):
            raise InputError(f"unknown interpolation method {method!r}; known: linear, step")
        times_s = np.arange(np.ceil(self.start_s / step_s), np.floor(self.end_s / step_s) + 1) * step_s
        prices = np.empty((len(times_s), len(self)))
        for column, series in enumerate(self._series.values()):
            index = np.searchsorted(series.times_s, times_s, side="right") - 1
            known = index >= 0
            index = np.maximum(index, 0)
            if method == "linear":
                values = np.interp(times_s, series.times_s, series.prices)
            else:
                values = series.prices[index]
            if max_gap_s is not None:
                known &= times_s - series.times_s[index] <= max_gap_s
            values[~known] = np.nan
            prices[:, column] = values
        return PriceGrid(self.markets, times_s, prices)

    def describe(self, catalogue: Catalogue | None = None) -> pd.DataFrame:
        """Summarise each market in one row: level, spread, changes, gaps, ratio to on-demand (see `describe`)."""
        return describe(self, self.end_s, catalogue)

    def check_inside(self, time_s: float) -> None:
        """Raise `InputError` for a time outside the record."""
        if not self.start_s <= time_s <= self.end_s:
            raise InputError(
                f"{iso(time_s)} is outside the history, which covers {iso(self.start_s)} to {iso(self.end_s)}"
            )


def recorded_span(path: str | Path) -> dict[str, float]:
    """The `start_s` and `end_s` that a Parquet file of prices tells of its record; empty: its rows alone tell it.

    Raises:
        InputError: They are not numbers.
    """
    notes = notes_of(path)
    span: dict[str, float] = {name: notes[name] for name in ("start_s", "end_s") if name in notes}
    for name, value in span.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(
                f"says that {name} of its record is {value!r:.40}; it is a time in seconds", file=path
            )
    return span


class PriceGrid:
    """Prices of many markets on an even grid of times.

    Attributes:
        markets: Markets of the columns, in order.
        times_s: Seconds since 1970, shape (times,).
        prices: USD per hour, shape (times, markets), NaN where unknown.
    """

    def __init__(self, markets: tuple[Market, ...], times_s: Floats, prices: Floats) -> None:
        self.markets = markets
        self.times_s = times_s
        self.prices = prices

    def __repr__(self) -> str:
        return f"<PriceGrid of {len(self.times_s)} times x {len(self.markets)} markets>"

    def to_frame(self) -> pd.DataFrame:
        """A wide frame: one row a time, one column a market."""
        import pandas as pd

        return pd.DataFrame(
            self.prices,
            index=pd.DatetimeIndex(_timestamps(self.times_s), name="timestamp"),
            columns=_market_index(self.markets),
        )

    def write(self, path: str | Path) -> None:
        """Write as Parquet in the long price schema (unknown prices left out), atomically."""
        import pandas as pd

        rows, columns = np.nonzero(~np.isnan(self.prices.T))[::-1]
        frame: dict[str, object] = {"timestamp": _timestamps(self.times_s[rows])}
        for field in MARKET_FIELDS:
            names = [getattr(market, field) for market in self.markets]
            codes, categories = pd.factorize(np.array(names, dtype=object))
            frame[field] = pd.Categorical.from_codes(codes[columns], pd.Index(categories))
        frame["price_usd_per_hour"] = self.prices[rows, columns]
        with replacing(path) as temporary:
            pd.DataFrame(frame).to_parquet(temporary, index=False, compression="zstd")


def _epoch_s(timestamps: pd.Series) -> Floats:
    return timestamps.astype("datetime64[us, UTC]").astype("int64").to_numpy() / 1e6


def _timestamps(times_s: Floats) -> pd.DatetimeIndex:
    import pandas as pd

    microseconds = np.round(times_s * 1e6).astype("int64")
    return pd.DatetimeIndex(microseconds.astype("datetime64[us]")).tz_localize("UTC")


def _market_index(markets: Iterable[Market]) -> pd.MultiIndex:
    import pandas as pd

    keys = [tuple(getattr(market, field) for field in MARKET_FIELDS) for market in markets]
    return pd.MultiIndex.from_tuples(keys, names=list(MARKET_FIELDS))
