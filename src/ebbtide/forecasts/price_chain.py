"""Prices as a Markov chain that depends on the hour and the day of the week (Cümülön-D 5.1, after Cümülön).

At each tick of a few minutes the price moves to another with a probability that depends on the price, and moves up
or down more or less often by the hour of the day and the day of the week. Which price it moves to is estimated
from all hours together, how often it moves from each hour. Rows of each hour's own are mixed in where there are
many ticks: estimated from a few ticks alone, they predict later days worse than rows without hours (most markets
of 2015).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ebbtide.base.compiling import compiled
from ebbtide.base.files import replacing
from ebbtide.base.utc import DAY_S, HOUR_S, from_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats, PriceSeries

Levels = NDArray[np.uint16]

_HOURS, _DAYS = 24, 7
_WEEK_S = _DAYS * DAY_S

# 1970-01-05 was a Monday.
_A_MONDAY_S = 4 * DAY_S

# Share of a price's row that comes from the prices around it; the whole row where the price never occurred.
_NEIGHBOUR_SHARE = 1e-3
_NEIGHBOUR_WIDTH = 2.0


# Values of `row_weight` to choose from: from rows of each hour's own to rows of all hours.
_ROW_WEIGHTS = (100.0, 500.0, 3e3, 2e4, 1e7)


class Steps(NamedTuple):
    """A chain in steps of several ticks, from a start; P prices.

    Attributes:
        transition: Probability of the price after each step given the one before, shape (steps, P, P).
        charge: Expected charge of a machine in a step given the prices before and after it, USD, shape
            (steps, P, P).
        charge_variance: Variance of the charge given the price before the step, USD squared, shape (steps, P).
    """

    transition: Floats
    charge: Floats
    charge_variance: Floats


@dataclass(frozen=True, eq=False)
class PriceChain:
    """A Markov chain of one market's price.

    Attributes:
        prices: Price levels, USD per hour, rising, shape (P,).
        transition: Transition probabilities per tick by hour of the week (Monday 0:00 UTC first), shape
            (168, P, P).
        tick_s: Length of a tick, seconds.
    """

    prices: Floats
    transition: Floats
    tick_s: float

    @classmethod
    def fit(
        cls,
        series: PriceSeries,
        start_s: float,
        end_s: float,
        *,
        prices: Floats | None = None,
        tick_s: float = 300.0,
        hour_weight: float = 300.0,
        day_weight: float = 300.0,
        row_weight: float | None = None,
        least_s: float = _WEEK_S,
    ) -> PriceChain:
        """Fit a chain to a record (Cümülön-D 5.1).

        Args:
            series: The market's prices, USD per hour.
            start_s: When the data to fit begin, seconds since 1970.
            end_s: When the data to fit end, seconds since 1970.
            prices: Price levels, USD per hour, shape (P,); by default `price_levels` of the record.
            tick_s: Length of a tick, seconds.
            hour_weight: Pseudo-count of moves, at the rate of all hours, added to each hour of the day.
            day_weight: Pseudo-count of moves, at the hour's rate, added to each hour of each day of the week.
            row_weight: Pseudo-count of ticks, from the pooled row, added to each price and hour of the day; by
                default the one that best predicts the last quarter of the record from the rest.
            least_s: Seconds of prices that are enough. In less than a week not every hour of the week is seen;
                those that are not move as all hours do.

        Raises:
            InputError: The record is shorter than that.
        """
        if end_s - max(start_s, float(series.times_s[0])) < least_s:
            least = "a week" if least_s == _WEEK_S else f"{least_s / DAY_S:g} days"
            raise InputError(f"a price chain needs {least} of prices at least")
        times_s, seen = _ticks(series, start_s, end_s, tick_s)
        levels = price_levels(seen) if prices is None else prices
        if row_weight is None:
            later_s = times_s[0] + 0.75 * (end_s - times_s[0])

            def later_log_likelihood(weight: float) -> float:
                tried = cls.fit(
                    series,
                    start_s,
                    later_s,
                    prices=levels,
                    tick_s=tick_s,
                    hour_weight=hour_weight,
                    day_weight=day_weight,
                    row_weight=weight,
                )
                return tried.log_likelihood(series, later_s, end_s)

            enough = later_s - times_s[0] > _WEEK_S
            row_weight = max(_ROW_WEIGHTS, key=later_log_likelihood) if enough else _ROW_WEIGHTS[-1]
        places = nearest_level(levels, seen)
        before, after, slots = places[:-1], places[1:], hour_of_week(times_s[:-1])
        pooled = _smoothed(_count(before, after, len(levels)))
        ups, downs = np.triu(pooled, 1), np.tril(pooled, -1)
        tilts = [
            _tilts(slots, moved, way.sum(axis=1)[before], hour_weight, day_weight)
            for moved, way in ((after > before, ups), (after < before, downs))
        ]
        tilted = _tilted(ups, downs, *tilts)
        counts = np.zeros((_HOURS, len(levels), len(levels)))
        np.add.at(counts, (slots % _HOURS, before, after), 1.0)
        weekly = np.tile(counts, (_DAYS, 1, 1))
        seen_there = weekly.sum(axis=2, keepdims=True)
        return cls(levels, (weekly + row_weight * tilted) / (seen_there + row_weight), tick_s)

    def unconditioned(self, series: PriceSeries, start_s: float, end_s: float) -> PriceChain:
        """A chain with the same price levels, fitted to a record, that does not depend on the hour."""
        _, seen = _ticks(series, start_s, end_s, self.tick_s)
        places = nearest_level(self.prices, seen)
        counts = _count(places[:-1], places[1:], len(self.prices))
        rows = np.broadcast_to(_smoothed(counts), self.transition.shape)
        return replace(self, transition=np.ascontiguousarray(rows))

    def log_likelihood(self, series: PriceSeries, start_s: float, end_s: float) -> float:
        """Mean log-likelihood of a record's transitions per tick, nats."""
        times_s, seen = _ticks(series, start_s, end_s, self.tick_s)
        places = nearest_level(self.prices, seen)
        chances = self.transition[hour_of_week(times_s[:-1]), places[:-1], places[1:]]
        return float(np.log(np.maximum(chances, 1e-12)).mean())

    def simulate(self, start_s: float, price: float, ticks: int, runs: int, seed: int = 0) -> Levels:
        """Random traces of the price as indices into `prices`, tick by tick from the start, shape (runs, ticks).

        Args:
            start_s: When the traces begin, seconds since 1970; decides hours and days.
            price: Price at the start, USD per hour.
            ticks: Number of ticks, the first included.
            runs: Number of traces to draw.
            seed: Seed of the random numbers.
        """
        slots = hour_of_week(start_s + np.arange(ticks, dtype=np.float64) * self.tick_s)
        found = np.empty((runs, ticks), dtype=np.uint16)
        found[:, 0] = nearest_level(self.prices, np.array([price]))[0]
        random = np.random.default_rng(seed)
        for first in range(0, runs, _RUNS_AT_ONCE):
            part = found[first : first + _RUNS_AT_ONCE]
            _walk(self._cumulated, slots, random.random((len(part), ticks)), part)
        return found

    @cached_property
    def _cumulated(self) -> Floats:
        return np.ascontiguousarray(np.cumsum(self.transition, axis=2))

    def steps(self, start_s: float, steps: int, step_s: float, *, charged_at: int | None = None) -> Steps:
        """The chain in steps of several ticks, each charged tick by tick at the price of the tick.

        Args:
            start_s: When the first step begins, seconds since 1970.
            steps: Number of steps to take.
            step_s: Length of a step, seconds.
            charged_at: If given, a step is charged as a whole at the price of its tick of this index: for steps
                between decisions that are made that many ticks before a charge.

        Raises:
            InputError: A step is not a whole number of ticks, or a charge is not within it.
        """
        ticks = round(step_s / self.tick_s)
        if abs(ticks * self.tick_s - step_s) > 1e-6 or ticks < 1:
            raise InputError(f"a step of {step_s:g} s is not a whole number of ticks of {self.tick_s:g} s")
        if charged_at is not None and not 0 <= charged_at < ticks:
            delay_s = charged_at * self.tick_s
            raise InputError(f"decisions {delay_s:g} s before a charge; a step is {step_s:g} s, give less")
        usd = np.tile(self.prices * self.tick_s / HOUR_S, (ticks, 1))
        if charged_at is not None:
            usd[:] = 0.0
            usd[charged_at] = self.prices * step_s / HOUR_S
        found = [self._step(start_s + step * step_s, usd) for step in range(steps)]
        return Steps(*(np.array(column) for column in zip(*found, strict=True)))

    def _step(self, start_s: float, usd: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute a step: transition, expected charge and its variance; `usd` is the charge by tick and price."""
        chance = np.eye(usd.shape[1])
        first, second = np.zeros_like(chance), np.zeros_like(chance)
        slots = hour_of_week(start_s + np.arange(len(usd), dtype=np.float64) * self.tick_s)
        for slot, charge in zip(slots, usd, strict=True):
            rows = self.transition[slot]
            second = (second + 2.0 * first * charge + chance * charge**2) @ rows
            first = (first + chance * charge) @ rows
            chance = chance @ rows
        mean = first.sum(axis=1)
        given = np.divide(first, chance, out=np.broadcast_to(mean[:, None], first.shape).copy(), where=chance > 0)
        return chance, given, np.maximum(second.sum(axis=1) - mean**2, 0.0)


# Traces for which random numbers are drawn at once.
_RUNS_AT_ONCE = 10_000


def hour_of_week(times_s: Floats) -> NDArray[np.int64]:
    """Hours since Monday 0:00 UTC, 0 to 167, in the shape given."""
    hours = np.floor((np.asarray(times_s) - _A_MONDAY_S) / HOUR_S).astype(np.int64)
    return np.asarray(hours % (_DAYS * _HOURS))


def price_levels(seen: Floats, most: int = 100, cent: float = 0.01) -> Floats:
    """Price levels of a chain, USD per hour, rising, shape (P,).

    They are the recorded prices, rounded to the cent; where these are more than `most`, quantiles of the ticks and
    a geometric grid over the highest prices.

    Args:
        seen: Recorded prices tick by tick, USD per hour, shape (ticks,).
        most: About the largest number of levels.
        cent: Rounding of the prices, USD per hour.
    """
    rounded = np.unique(np.maximum(np.round(seen / cent) * cent, cent))
    if len(rounded) <= most:
        return np.asarray(rounded)
    fine = np.unique(np.quantile(seen, np.linspace(0.0, 1.0, most - 20)))
    high = np.geomspace(max(fine[-2], cent), fine[-1], 21)[1:]
    levels = np.unique(np.concatenate([fine, high]))
    return np.asarray(levels[np.append(True, np.diff(levels) > 1e-9)])


def nearest_level(levels: Floats, prices: Floats) -> NDArray[np.int64]:
    """The index of the level nearest to each price, in the shape given."""
    edges = (levels[1:] + levels[:-1]) / 2.0
    return np.asarray(np.searchsorted(edges, prices, side="right"))


def _ticks(series: PriceSeries, start_s: float, end_s: float, tick_s: float) -> tuple[Floats, Floats]:
    first_s = np.ceil(max(start_s, float(series.times_s[0])) / tick_s) * tick_s
    times_s = np.arange(first_s, end_s, tick_s)
    if len(times_s) < 2:
        raise InputError(f"no two ticks between {from_epoch_s(start_s)} and {from_epoch_s(end_s)}")
    return times_s, series.at_each(times_s)


def _count(before: Any, after: Any, levels: int) -> Floats:
    counts = np.zeros((levels, levels))
    np.add.at(counts, (before, after), 1.0)
    return counts


def _smoothed(counts: Floats) -> Floats:
    """Transition probabilities: each row's own frequencies with a small share of its neighbours'."""
    places = np.arange(len(counts))
    kernel = np.exp(-np.abs(places[:, None] - places[None, :]) / _NEIGHBOUR_WIDTH)
    # A row with more ticks counts more for its neighbours.
    around = kernel @ counts
    around /= around.sum(axis=1, keepdims=True)
    seen = counts.sum(axis=1, keepdims=True)
    own = np.divide(counts, seen, out=around.copy(), where=seen > 0)
    smoothed: Floats = (1.0 - _NEIGHBOUR_SHARE) * own + _NEIGHBOUR_SHARE * around
    return smoothed


def _tilts(slots: Any, moved: Any, expected: Floats, hour_weight: float, day_weight: float) -> Floats:
    """Rate of moves in one direction in each hour of the week over the rate of all hours, shape (168,)."""
    seen = np.bincount(slots, weights=moved, minlength=_DAYS * _HOURS).reshape(_DAYS, _HOURS)
    due = np.bincount(slots, weights=expected, minlength=_DAYS * _HOURS).reshape(_DAYS, _HOURS)
    of_hour = (seen.sum(axis=0) + hour_weight) / (due.sum(axis=0) + hour_weight)
    return np.asarray((seen + day_weight * of_hour) / (due + day_weight)).ravel()


def _tilted(ups: Floats, downs: Floats, up_tilts: Floats, down_tilts: Floats) -> Floats:
    """Transition probabilities by hour of the week, shape (168, P, P)."""
    rows = up_tilts[:, None, None] * ups + down_tilts[:, None, None] * downs
    moving = rows.sum(axis=2, keepdims=True)
    rows *= np.minimum(1.0, 1.0 / np.maximum(moving, 1e-300))
    places = np.arange(len(ups))
    rows[:, places, places] = np.maximum(1.0 - rows.sum(axis=2), 0.0)
    found: Floats = rows / rows.sum(axis=2, keepdims=True)
    return found


@compiled
def _walk(cumulated: Any, slots: Any, drawn: Any, places: Any) -> None:
    levels = cumulated.shape[2]
    for run in range(places.shape[0]):
        for tick in range(1, places.shape[1]):
            row = cumulated[slots[tick - 1], places[run, tick - 1]]
            low, high = 0, levels - 1
            while low < high:
                middle = (low + high) // 2
                if row[middle] <= drawn[run, tick]:
                    low = middle + 1
                else:
                    high = middle
            places[run, tick] = low


_KEY = "ebbtide-price-chain"


def save_chain(chain: PriceChain, path: str | Path, about: Mapping[str, Any]) -> None:
    """Write a chain atomically, with a description of its data (`about`, JSON values)."""
    header = json.dumps({"tick_s": chain.tick_s, "about": dict(about)})
    with replacing(path) as temporary:
        save_file({"prices": chain.prices, "transition": chain.transition}, temporary, metadata={_KEY: header})


def load_chain(path: str | Path) -> tuple[PriceChain, dict[str, Any]]:
    """Read what `save_chain` wrote: the chain and the description of its data.

    Raises:
        InputError: The file is not a price chain.
    """
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(_KEY, "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as a price chain: {error}", file=path) from None
    if header is None or set(arrays) != {"prices", "transition"}:
        raise InputError("is no price chain", file=path)
    return PriceChain(arrays["prices"], arrays["transition"], header["tick_s"]), header["about"]
