"""Lifetimes of machines: at a max price, and of probe machines kept running until they are preempted.

In a probe log (Dynamic Pricing, Fig. 2) each line is an event of one machine: `created`, `running`, `not_running`
(found gone), `creation_failed`. Lifetimes are right-censored where the record ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.market.sources.parquet import load_parquet

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes of machines rented at evenly spaced moments of a record.

    Attributes:
        lived_s: Seconds until revocation, or until the record ends if that is earlier, shape (n,).
        ended: Whether the machine was revoked; False where its lifetime is right-censored, shape (n,).
    """

    lived_s: Floats
    ended: np.ndarray

    @property
    def mean_s(self) -> float:
        """Mean lifetime, seconds: total time lived over the number of revocations.

        This is the maximum-likelihood estimate of an exponential law with right-censoring; infinity where there
        was no revocation.
        """
        ends = int(self.ended.sum())
        return float(self.lived_s.sum()) / ends if ends else math.inf

    def share_living(self, duration_s: float) -> float:
        """Share that lived for `duration_s`, among machines of which this is known; NaN if there are none."""
        known = self.ended | (self.lived_s >= duration_s)
        return float((self.lived_s[known] >= duration_s).mean()) if known.any() else math.nan

    @property
    def median_s(self) -> float:
        """Median lifetime, seconds; infinity where more than half are right-censored."""
        return float(np.median(np.where(self.ended, self.lived_s, math.inf))) if len(self.lived_s) else math.inf


def lifetimes(
    series: PriceSeries, start_s: float, end_s: float, max_price: float, every_s: float = HOUR_S
) -> Lifetimes:
    """Lifetimes of machines rented every `every_s` seconds, whenever the price is not above the max price.

    Args:
        series: Prices of the market, USD per hour.
        start_s: The first moment of renting, seconds since 1970.
        end_s: When the record ends, seconds since 1970.
        max_price: The max price, USD per hour; at infinity nothing is revoked.
        every_s: Seconds between two moments of renting.
    """
    moments = np.arange(max(start_s, float(series.times_s[0])), end_s, every_s)
    moments = moments[series.at_each(moments) <= max_price]
    until = np.array([series.next_above(moment, max_price) for moment in moments.tolist()])
    return Lifetimes(np.minimum(until, end_s) - moments, until < end_s)


_COLUMNS = ("timestamp", "cloud", "collection", "event", "instance", "gpus", "gpu_type", "zone")
_EVENTS = ("created", "running", "not_running", "creation_failed")


@dataclass(frozen=True)
class Life:
    """Lifetime of a machine, from its creation to its end.

    Attributes:
        cloud: Name of the machine's cloud.
        zone: Name of the machine's zone.
        gpu: Type of its GPUs: `k80`, `v100`...
        gpus: Number of GPUs in the machine.
        start_s: Time of creation, seconds since 1970.
        end_s: Time at which it was first found gone, else last found running, seconds since 1970.
        preempted: Whether it was found gone; if not, its lifetime is right-censored.
    """

    cloud: str
    zone: str
    gpu: str
    gpus: int
    start_s: float
    end_s: float
    preempted: bool


def read_probe_log(path: str | Path) -> tuple[Life, ...]:
    """The machines of a log, sorted by cloud and start.

    Raises:
        InputError: The file is missing, lacks a column, or has an unknown event.
    """
    frame = load_parquet(path)
    for name in _COLUMNS:
        if name not in frame:
            raise InputError(f"has no column {name!r}; needs {', '.join(_COLUMNS)}", file=path)
    for row, event in enumerate(frame["event"], start=1):
        if event not in _EVENTS:
            raise InputError(f"{event!r} is none of {', '.join(_EVENTS)}", file=path, row=row, field="event")
    frame = frame[frame["instance"].notna()].sort_values("timestamp", kind="stable")
    lives = [
        life
        for _, events in frame.groupby(["cloud", "collection", "instance"], observed=True)
        for life in _lives(events)
    ]
    return tuple(sorted(lives, key=lambda life: (life.cloud, life.start_s, life.zone)))


def _lives(events: pd.DataFrame) -> list[Life]:
    """The machines that had one name, one after another: names are reused."""
    lives: list[Life] = []
    begun: Life | None = None
    row: Any
    for row in events.itertuples(index=False):
        time_s = row.timestamp.timestamp()
        if row.event == "created":
            lives += [begun] if begun else []
            gpu = str(row.gpu_type).removeprefix("nvidia-tesla-")
            begun = Life(row.cloud, row.zone, gpu, int(row.gpus), time_s, time_s, False)
        elif begun and row.event == "running":
            begun = replace(begun, end_s=time_s)
        elif begun:
            lives.append(replace(begun, end_s=time_s, preempted=True))
            begun = None
    return lives + ([begun] if begun else [])


def by_machine(lives: Sequence[Life]) -> dict[str, dict[str, float | int | None]]:
    """Lifetimes of the machines of each cloud, zone and size.

    Returns:
        By `cloud zone gpus x gpu`: number of machines, number preempted, mean lifetime in hours (time lived over
        preemptions; None without any), and median and longest observed hours, right-censored ones included.
    """
    table: dict[str, dict[str, float | int | None]] = {}
    keys = sorted({(life.cloud, life.zone, life.gpu, life.gpus) for life in lives})
    for cloud, zone, gpu, gpus in keys:
        own = [life for life in lives if (life.cloud, life.zone, life.gpu, life.gpus) == (cloud, zone, gpu, gpus)]
        lived_h = np.array([life.end_s - life.start_s for life in own]) / HOUR_S
        found = Lifetimes(lived_h * HOUR_S, np.array([life.preempted for life in own]))
        table[f"{cloud} {zone} {gpus} x {gpu}"] = {
            "machines": len(own),
            "preempted": int(found.ended.sum()),
            "mean_h": found.mean_s / HOUR_S if found.ended.any() else None,
            "median_seen_h": float(np.median(lived_h)),
            "longest_seen_h": float(lived_h.max()),
        }
    return table
