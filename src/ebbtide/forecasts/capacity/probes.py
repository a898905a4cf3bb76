"""Tables of probes: whether a market had machines at a time; read from files of several kinds, or generated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.base.files import replacing
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.drawing import drawn_availability, typed_models
from ebbtide.forecasts.capacity.models import PROBE_COLUMNS
from ebbtide.market.availability import Availability
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.cells import parsed_times
from ebbtide.market.sources.parquet import load_parquet

if TYPE_CHECKING:
    import pandas as pd


def generated_probes(prices: PriceHistory, seed: int, tick_s: float) -> pd.DataFrame:
    """Probes of every market of a price history, over its time.

    The spells of each market follow the model of one type of recorded zones: in some, machines go often.

    Args:
        prices: Price history that gives the markets and the time.
        seed: Seed of the random numbers.
        tick_s: Time between two probes, seconds.

    Raises:
        InputError: `tick_s` is not positive.
    """
    if not tick_s > 0:
        raise InputError(f"is {tick_s:g}; seconds between two probes are positive", field="tick_s")
    return probes_of_capacity(drawn_availability(prices, typed_models(prices, seed), 1, seed, tick_s), tick_s)


def read_probes(files: Sequence[Path]) -> pd.DataFrame:
    """Probes from files of probes, of capacity rounds or of ticks, as `Availability.read` reads them.

    Raises:
        InputError: A file is none of these, or a row is invalid.
    """
    import pandas as pd

    tables = [_read(file) for file in files]
    return pd.concat([_none(), *tables], ignore_index=True) if tables else _none()


def _read(file: Path) -> pd.DataFrame:
    # It checks every row.
    capacity = Availability.read(file)
    frame = load_parquet(file)
    if "gap_seconds" in frame:
        return probes_of_capacity(capacity, float(frame["gap_seconds"].min()))
    available = frame["available" if "available" in frame else "launched"]
    return frame.assign(
        timestamp=parsed_times(frame["timestamp"], file, "timestamp"), available=(available > 0).astype(np.int64)
    )[list(PROBE_COLUMNS)]


def probes_of_capacity(capacity: Availability, tick_s: float, machines: int = 1) -> pd.DataFrame:
    """Probes of a record of capacity: one row per market and tick, columns `PROBE_COLUMNS`.

    Args:
        capacity: The record.
        tick_s: Time between two probes, seconds.
        machines: Number of machines that a market has to have at once, to count as available.
    """
    import pandas as pd

    tables = []
    for market, series in capacity.items():
        times_s = np.arange(series.times_s[0], series.end_s, tick_s)
        nodes = series.nodes[np.searchsorted(series.times_s, times_s, side="right") - 1]
        times = pd.to_datetime(np.round(times_s * 1e3).astype(np.int64), unit="ms", utc=True)
        where = {name: getattr(market, name) for name in PROBE_COLUMNS[1:-1]}
        tables.append(
            pd.DataFrame({"timestamp": times, **where, "available": (nodes >= machines).astype(np.int64)})
        )
    return pd.concat(tables, ignore_index=True)


def before(probes: pd.DataFrame, time_s: float, *, later: bool = False) -> pd.DataFrame:
    """The probes before a time, seconds since 1970; or with `later` all others."""
    import pandas as pd

    return probes[(probes["timestamp"] < pd.Timestamp(time_s, unit="s", tz="UTC")) != later]


def write_probes(probes: pd.DataFrame, path: Path) -> None:
    """Write a table of probes to a Parquet file, atomically."""
    with replacing(path) as temporary:
        probes.to_parquet(temporary, index=False)


def _none() -> pd.DataFrame:
    import pandas as pd

    columns = {name: pd.Series(dtype="object") for name in PROBE_COLUMNS[1:-1]}
    times = pd.Series(dtype="datetime64[ms, UTC]")
    return pd.DataFrame({"timestamp": times, **columns, "available": pd.Series(dtype="int64")})
