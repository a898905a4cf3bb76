"""Availability: how many machines of a market can be rented, over time.

Today's clouds revoke because capacity runs out, not because of the price. A market without a record is taken to
always have machines.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.base.utc import iso
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import LINUX, MARKET_FIELDS, Market
from ebbtide.market.parquet_notes import notes_of, write_with_notes
from ebbtide.market.price_series import Floats
from ebbtide.market.sources.cells import parsed_times
from ebbtide.market.sources.parquet import load_parquet
from ebbtide.market.sources.regions import region_of_zone

if TYPE_CHECKING:
    import pandas as pd


class CapacitySeries:
    """Machines available in one market: `nodes[i]` from `times_s[i]` until `times_s[i + 1]`, or `end_s`.

    Before the first record and after `end_s` nothing is known, and nothing counts as available.

    Args:
        times_s: When each count begins to hold, seconds since 1970, rising, shape (n,).
        nodes: Machines available from each time on, shape (n,).
        end_s: When the record ends, seconds since 1970.
    """

    def __init__(self, times_s: Floats, nodes: np.ndarray, end_s: float) -> None:
        keep = np.append(True, np.diff(nodes) != 0)
        self.times_s = times_s[keep]
        self.nodes = nodes[keep].astype(np.int64)
        self.end_s = end_s

    @cached_property
    def _times(self) -> list[float]:
        times: list[float] = self.times_s.tolist()
        return times

    def at(self, time_s: float) -> int:
        """Machines available at `time_s`."""
        index = bisect_right(self._times, time_s) - 1
        return int(self.nodes[index]) if index >= 0 and time_s < self.end_s else 0

    def next_below(self, time_s: float, nodes: int) -> float:
        """The first moment from `time_s` on with fewer than `nodes` machines, seconds since 1970."""
        if self.at(time_s) < nodes:
            return time_s
        index = bisect_right(self._times, time_s)
        below = np.flatnonzero(self.nodes[index:] < nodes)
        return self._times[index + int(below[0])] if len(below) else self.end_s

    def next_change(self, time_s: float) -> float:
        """Time of the next capacity change after `time_s`, seconds since 1970; infinity if there is none."""
        index = bisect_right(self._times, time_s)
        if index < len(self._times):
            return self._times[index]
        return self.end_s if time_s < self.end_s else math.inf

    def share_available(self, nodes: int = 1) -> float:
        """The share of the recorded time with at least `nodes` machines."""
        held = np.diff(self.times_s, append=self.end_s)
        return float(held[self.nodes >= nodes].sum() / held.sum())


class Availability(Mapping[Market, CapacitySeries]):
    """The capacity of many markets. Markets that are not in it are unlimited."""

    def __init__(self, series: Mapping[Market, CapacitySeries]) -> None:
        self._series = dict(sorted(series.items()))

    def __getitem__(self, market: Market) -> CapacitySeries:
        return self._series[market]

    def __iter__(self) -> Iterator[Market]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def __repr__(self) -> str:
        spans = [f"{iso(s.times_s[0])} to {iso(s.end_s)}" for s in self._series.values()][:1]
        return f"<Availability of {len(self)} markets{', ' + spans[0] if spans else ''}>"

    @classmethod
    def read(cls, path: str | Path) -> Availability:
        """Read launch probes, capacity rounds or tick lists (`../shared/traces/README.md`) from Parquet.

        Launch probes have one row per probe with `available` 0 or 1; capacity rounds have `launched` of
        `requested`; tick lists have `data`, one count every `gap_seconds` from `start`.

        Raises:
            InputError: The file is none of these, or a row is invalid.
        """
        frame = load_parquet(path)
        if frame.empty:
            raise InputError("holds no rows", file=path)
        _require_names(frame, path)
        if {"data", "gap_seconds", "start", "cloud", "zone", "device"} <= set(frame.columns):
            return cls(_from_ticks(frame, path))
        for column in ("available", "launched"):
            if {column, "timestamp", "cloud", "region", "zone", "instance_type"} <= set(frame.columns):
                return cls(_from_probes(frame, column, path))
        raise InputError(
            "is not an availability record: needs timestamp, cloud, region, zone, instance_type and available or "
            "launched, or cloud, start, gap_seconds, zone, device and data; it has "
            f"{', '.join(map(str, frame.columns[:12]))}",
            file=path,
        )

    def write(self, path: str | Path) -> None:
        """Write as Parquet, atomically: one row per change, as capacity rounds, and one where a record ends.

        Notes of the file say where each record ends, so that its last row is not read as a round.
        """
        import pandas as pd

        tables, ends = [], []
        for market, series in self.items():
            times_s = np.append(series.times_s, series.end_s)
            launched = np.append(series.nodes, 0)
            times = pd.to_datetime(np.round(times_s * 1e6).astype(np.int64), unit="us", utc=True)
            tables.append(pd.DataFrame({"timestamp": times, **asdict(market), "launched": launched}))
            ends.append([getattr(market, name) for name in MARKET_FIELDS] + [series.end_s])
        columns = ["timestamp", *MARKET_FIELDS, "launched"]
        frame = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)
        write_with_notes(path, frame, {"ends": ends})


def _recorded_ends(path: str | Path) -> dict[Market, float]:
    """Read the end of each record from a file's notes, seconds since 1970; empty for files of other programs."""
    try:
        return {Market(*map(str, names)): float(end_s) for *names, end_s in notes_of(path).get("ends", [])}
    except (TypeError, ValueError):
        raise InputError("has notes of Ebbtide that are not the ends of records", file=path) from None


def _from_probes(frame: pd.DataFrame, column: str, path: str | Path) -> dict[Market, CapacitySeries]:
    import pandas as pd

    frame = frame.assign(timestamp=parsed_times(frame["timestamp"], path, "timestamp"))
    counts = frame[column]
    if not pd.api.types.is_numeric_dtype(counts.dtype) or pd.api.types.is_complex_dtype(counts.dtype):
        raise InputError(f"{counts.iloc[0]!s} is not a number of machines", file=path, row=1, field=column)
    numbers = counts.astype("float64")
    bad = ~(numbers >= 0) | ~np.isfinite(numbers)
    if bad.any():
        row = int(np.argmax(bad.to_numpy())) + 1
        raise InputError("is missing, negative or infinite", file=path, row=row, field=column)
    series = {}
    ends = _recorded_ends(path)
    keys = ["cloud", "region", "zone", "instance_type", *(["product"] if ends else [])]
    for key, rows in frame.groupby(keys, observed=True, sort=False):
        assert isinstance(key, tuple)
        rows = rows.sort_values("timestamp", kind="stable").drop_duplicates("timestamp", keep="last")
        times = rows["timestamp"].astype("int64").to_numpy() / 1e6
        # The last probe holds for one more interval.
        interval = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        market = Market(*map(str, key))
        if market in ends:
            # The row at its end is no round.
            series[market] = CapacitySeries(times[:-1], rows[column].to_numpy()[:-1], ends[market])
        else:
            series[market] = CapacitySeries(times, rows[column].to_numpy(), float(times[-1]) + interval)
    return series


def _from_ticks(frame: pd.DataFrame, path: str | Path) -> dict[Market, CapacitySeries]:
    starts = parsed_times(frame["start"], path, "start").astype("int64").to_numpy() / 1e6
    series: dict[Market, CapacitySeries] = {}
    for number, (row, start) in enumerate(zip(frame.to_dict("records"), starts.tolist(), strict=True), start=1):
        nodes, gap_s = _ticks(row["data"], path, number), _gap_s(row["gap_seconds"], path, number)
        times = start + np.arange(len(nodes)) * gap_s
        cloud, zone = str(row["cloud"]), str(row["zone"])
        region = region_of_zone(zone) if cloud == "aws" else zone.rsplit("-", 1)[0]
        name = _instance_type(cloud, str(row["device"]), int(row.get("device_count", 1)))
        market = Market(cloud, region, zone, name, LINUX)
        if market in series:
            # One zone was probed more than once; later traces of another kind become a product of their own.
            kind = f"{row.get('kind', 'trace')} {iso(start)[:10]} of {row.get('nodes', 1)}"
            market = Market(cloud, region, zone, name, f"{LINUX} ({kind})")
        series[market] = CapacitySeries(times, nodes, float(times[-1]) + gap_s)
    return series


def _require_names(frame: pd.DataFrame, path: str | Path) -> None:
    """Markets are identified by name: the columns of names must hold text in every row."""
    for name in ("cloud", "region", "zone", "instance_type", "device"):
        if name in frame and frame[name].isna().any():
            row = int(np.argmax(frame[name].isna().to_numpy())) + 1
            raise InputError("is blank; every row needs one", file=path, row=row, field=name)


def _ticks(value: object, path: str | Path, row: int) -> np.ndarray:
    """The number of machines at each tick, shape (ticks,)."""
    try:
        counts = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        counts = np.empty(0)
    if counts.ndim != 1 or not len(counts) or not np.isfinite(counts).all() or (counts < 0).any():
        raise InputError(
            "is not a list of counts, none of them missing or negative", file=path, row=row, field="data"
        )
    return counts.astype(np.int64)


def _gap_s(value: object, path: str | Path, row: int) -> float:
    """Seconds between two ticks."""
    try:
        gap_s = float(str(value))
    except ValueError:
        gap_s = math.nan
    if not 0 < gap_s < math.inf:
        raise InputError(f"{value} is not a positive number of seconds", file=path, row=row, field="gap_seconds")
    return gap_s


def _instance_type(cloud: str, device: str, count: int) -> str:
    """The smallest instance type with `count` of an accelerator; `DEVICE-COUNT` where there is none."""
    fitting = [
        entry
        for entry in default_catalogue().instance_types
        if entry.cloud == cloud
        and entry.accelerator_count == count
        and (entry.accelerator or "").lower().endswith(f" {device.lower()}")
    ]
    return min(fitting, key=lambda entry: entry.vcpus).name if fitting else f"{device}-{count}"
