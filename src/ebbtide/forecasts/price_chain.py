"""Prices as a Markov chain that knows the hour and the day of the week (Cümülön-D 5.1, after Cümülön).

A tick is a few minutes; in each, the price goes to another with a chance that depends on the price, and goes up
or down more or less readily by the hour of the day and the day of the week. Where to is learned from all hours at
once, how readily from each hour. Rows of each hour's own come on top where many ticks were seen; alone, learned
from a handful, they tell less of later days than rows without hours (most markets of 2015).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ebbtide._compiling import compiled
from ebbtide._utc import DAY_S, HOUR_S, from_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats, PriceSeries

Levels = NDArray[np.uint16]

_HOURS, _DAYS = 24, 7
_WEEK_S = _DAYS * DAY_S

# 1970-01-05 was a Monday.
_A_MONDAY_S = 4 * DAY_S

# Chance, at a price, of what was seen at prices next to it; where a price was never seen, all there is to go by.
_NEIGHBOUR_SHARE = 1e-3
_NEIGHBOUR_WIDTH = 2.0


# From rows of each hour's own to none.
_ROW_WEIGHTS = (100.0, 500.0, 3e3, 2e4, 1e7)


class Steps(NamedTuple):
    """A chain in steps of several ticks, from a start; P prices.

    Attributes:
        transition: Chance of the price after each step, shape (steps, P, P).
        charge: What a machine is expected to be charged for in a step, USD, given the price before and after it;
            shape (steps, P, P).
        charge_variance: Given the price before; shape (steps, P).
    """

    transition: Floats
    charge: Floats
    charge_variance: Floats


@dataclass(frozen=True, eq=False)
class PriceChain:
    """A market's prices.

    Attributes:
        prices: USD per hour, rising, shape (P,).
        transition: Chance from tick to tick by hour of the week (Monday 0:00 UTC first), shape (168, P, P).
        tick_s: How long a tick is.
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
    ) -> PriceChain:
        """Learn a chain from a record.

        Args:
            series: Prices.
            start_s: From when on.
            end_s: Up to when.
            prices: Those that are told apart; by default `price_levels` of the record.
            tick_s: How long a tick is.
            hour_weight: How many moves as of all hours are added to those of an hour of the day.
            day_weight: How many moves as of that hour are added to those of it on one day of the week.
            row_weight: How many ticks as of all that are added to those at one price in one hour of the day; by
                default what tells most of the record's last quarter, learned from the rest.

        Raises:
            InputError: The record is shorter than a week.
        """
        if end_s - max(start_s, float(series.times_s[0])) < _WEEK_S:
            raise InputError("a price chain needs a week of prices at least")
        times_s, seen = _ticks(series, start_s, end_s, tick_s)
        levels = price_levels(seen) if prices is None else prices
        if row_weight is None:
            later_s = times_s[0] + 0.75 * (end_s - times_s[0])

            def told(weight: float) -> float:
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

            row_weight = max(_ROW_WEIGHTS, key=told) if later_s - times_s[0] > _WEEK_S else _ROW_WEIGHTS[-1]
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
        """A chain of the same prices that knows no hour, from a record."""
        _, seen = _ticks(series, start_s, end_s, self.tick_s)
        places = nearest_level(self.prices, seen)
        counts = _count(places[:-1], places[1:], len(self.prices))
        rows = np.broadcast_to(_smoothed(counts), self.transition.shape)
        return replace(self, transition=np.ascontiguousarray(rows))

    def log_likelihood(self, series: PriceSeries, start_s: float, end_s: float) -> float:
        """Mean log chance of a record's moves from tick to tick, nats."""
        times_s, seen = _ticks(series, start_s, end_s, self.tick_s)
        places = nearest_level(self.prices, seen)
        chances = self.transition[hour_of_week(times_s[:-1]), places[:-1], places[1:]]
        return float(np.log(np.maximum(chances, 1e-12)).mean())

    def simulate(self, start_s: float, price: float, ticks: int, runs: int, seed: int = 0) -> Levels:
        """Traces of the price, as places in `prices`, tick by tick from the start on; shape (runs, ticks).

        Args:
            start_s: When; decides hours and days.
            price: At the start.
            ticks: How many, the first included.
            runs: How many traces.
            seed: Of chance.
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
        """The chain in steps, each charged tick by tick at the price of the tick.

        Args:
            start_s: When the first begins.
            steps: How many.
            step_s: How long each is.
            charged_at: Instead, each is charged as a whole at the price of this tick of it: with decisions so many
                ticks before a charge, steps from decision to decision.

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
        """One step: chances, and moments of the charge, carried from tick to tick; `usd` by tick and price."""
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


# Random numbers are drawn for so many traces at a time.
_RUNS_AT_ONCE = 10_000


def hour_of_week(times_s: Floats) -> NDArray[np.int64]:
    """Hours since Monday 0:00 UTC, 0 to 167."""
    hours = np.floor((np.asarray(times_s) - _A_MONDAY_S) / HOUR_S).astype(np.int64)
    return np.asarray(hours % (_DAYS * _HOURS))


def price_levels(seen: Floats, most: int = 100, cent: float = 0.01) -> Floats:
    """Prices to tell apart: those seen, to the cent; where these are too many, evenly many ticks each."""
    rounded = np.unique(np.maximum(np.round(seen / cent) * cent, cent))
    if len(rounded) <= most:
        return np.asarray(rounded)
    fine = np.unique(np.quantile(seen, np.linspace(0.0, 1.0, most - 20)))
    high = np.geomspace(max(fine[-2], cent), fine[-1], 21)[1:]
    levels = np.unique(np.concatenate([fine, high]))
    return np.asarray(levels[np.append(True, np.diff(levels) > 1e-9)])


def nearest_level(levels: Floats, prices: Floats) -> NDArray[np.int64]:
    """The place of the level nearest to each price."""
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
    """Rows of chances: what was seen, with a little of what was seen at the prices around."""
    places = np.arange(len(counts))
    kernel = np.exp(-np.abs(places[:, None] - places[None, :]) / _NEIGHBOUR_WIDTH)
    # A row that was seen more often tells more of its neighbours.
    around = kernel @ counts
    around /= around.sum(axis=1, keepdims=True)
    seen = counts.sum(axis=1, keepdims=True)
    own = np.divide(counts, seen, out=around.copy(), where=seen > 0)
    smoothed: Floats = (1.0 - _NEIGHBOUR_SHARE) * own + _NEIGHBOUR_SHARE * around
    return smoothed


def _tilts(slots: Any, moved: Any, expected: Floats, hour_weight: float, day_weight: float) -> Floats:
    """How much more readily the price moves one way in each hour of the week than in all; shape (168,)."""
    seen = np.bincount(slots, weights=moved, minlength=_DAYS * _HOURS).reshape(_DAYS, _HOURS)
    due = np.bincount(slots, weights=expected, minlength=_DAYS * _HOURS).reshape(_DAYS, _HOURS)
    of_hour = (seen.sum(axis=0) + hour_weight) / (due.sum(axis=0) + hour_weight)
    return np.asarray((seen + day_weight * of_hour) / (due + day_weight)).ravel()


def _tilted(ups: Floats, downs: Floats, up_tilts: Floats, down_tilts: Floats) -> Floats:
    """Rows of chances by hour of the week, shape (168, P, P)."""
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
