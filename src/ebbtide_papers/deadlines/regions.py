"""Dependence between zones of a region: how often their spells end together, and the next hour's capacity.

In recorded capacity, a zone's machines go twice as often in the minutes in which those of another zone of its
region go; zones of other regions tell nothing. The model has two parts. `shared_ends` is the share of ends that a
region has in common. `RegionModel` corrects a zone's own forecast (by the kind and age of its spell) by what its
neighbours show now: whether more or fewer of them than usual have capacity, and whether some lost or got it within
the hour. Its few weights are pooled over all zones and drawn towards 0, where zones are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import HOUR_S, MINUTE_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import (
    AGE_BINS_S,
    DOWN,
    UP,
    Bools,
    SpellModel,
    a_tick_later,
    onward_in,
)
from ebbtide.forecasts.capacity.records import ZoneRecord, ZoneRecords
from ebbtide.market.price_series import Floats

# Spells that end within this time of each other end together.
_TOGETHER_S = 20 * MINUTE_S

# Strength of the prior that neighbours tell nothing, chosen from 1 to 1,000 on the first halves of records.
_RIDGE = 10.0

_LEAST = 1e-4


def shared_ends(available: Bools, regions: Sequence[str], tick_s: float) -> float:
    """The share of lost capacity that zones of a region lose together, from 0 to 1; NaN: no region has two zones.

    Args:
        available: Whether each zone had a machine at each tick, shape (zones, ticks).
        regions: Region of each zone.
        tick_s: Time between two ticks, seconds.
    """
    up = np.asarray(available, dtype=bool)
    near = max(round(_TOGETHER_S / tick_s), 1)
    lost = np.diff(up.astype(np.int8), axis=1, prepend=up[:, :1]) < 0
    # Whether a zone loses its machines at a tick or near it, of those that had them before.
    soon = np.stack([np.convolve(row, np.ones(2 * near + 1), "same") > 0 for row in lost])
    had = np.zeros_like(up)
    had[:, near + 1 :] = up[:, : -near - 1]
    together = alone = expected = 0.0
    for one in range(len(up)):
        for other in range(len(up)):
            if one == other or regions[one] != regions[other]:
                continue
            at = lost[one] & had[other]
            usual = float(soon[other][had[other]].mean()) if had[other].any() else 0.0
            alone += at.sum()
            together += (soon[other] & at).sum()
            expected += usual * at.sum()
    if not alone:
        return float("nan")
    return float(np.clip((together - expected) / max(alone - expected, 1e-9), 0.0, 1.0))


@dataclass(frozen=True)
class RegionModel:
    """Correction of the log odds of a zone's capacity in an hour by the state of its neighbours.

    Attributes:
        weights: By kind of the zone's spell (down, up) and by what is seen: neighbours with capacity beyond the
            usual share, that lost it within the hour, that got it within the hour; shape (2, 3).
    """

    weights: Floats

    def forecast(self, own: Floats, available: Bools, seen: Floats) -> Floats:
        """The probability of capacity in an hour, shape (zones, ticks).

        Args:
            own: That by each zone's own spell, shape (zones, ticks).
            available: Whether each zone has a machine, shape (zones, ticks).
            seen: What the neighbours show, shape (zones, ticks, 3).
        """
        from scipy.special import expit

        own = np.clip(own, _LEAST, 1.0 - _LEAST)
        shift = (self.weights[np.asarray(available, dtype=int)] * seen).sum(-1)
        found: Floats = expit(np.log(own / (1.0 - own)) + shift)
        return found


def own_forecast(records: ZoneRecords, models: Sequence[SpellModel], ahead_s: float = HOUR_S) -> Floats:
    """The probability that each zone has capacity some time ahead, by its own spell alone, shape (zones, ticks).

    Args:
        records: Records of the zones; ages count from the first tick.
        models: The model of each zone.
        ahead_s: How far ahead, seconds.
    """
    ticks = max(round(ahead_s / records.tick_s), 1)
    found = np.empty(records.available.shape)
    for zone, model in enumerate(models):
        by_age = np.array(
            [[_later(model, kind, age, records.tick_s, ticks) for age in _BINS] for kind in (DOWN, UP)]
        )
        found[zone] = by_age[
            records.available[zone].astype(int), _age_bins(records.available[zone], records.tick_s)
        ]
    return found


_BINS = range(len(AGE_BINS_S))


def _later(model: SpellModel, kind: int, age: int, tick_s: float, ticks: int) -> float:
    """The probability of capacity some ticks after a spell of this kind was in this bin of age."""
    ends = np.array([[model.ends_within(one, age_s, tick_s) for age_s in AGE_BINS_S] for one in (DOWN, UP)])
    state = np.zeros_like(ends)
    state[kind, age] = 1.0
    for _ in range(ticks):
        state = a_tick_later(state, ends, onward_in(tick_s))
    return float(state[UP].sum())


def _age_bins(up: Bools, tick_s: float) -> np.ndarray:
    ages_s = ZoneRecord("", up, tick_s).ages_s()
    bins: np.ndarray = np.searchsorted(AGE_BINS_S, ages_s, side="right") - 1
    return bins


def seen_of_neighbours(records: ZoneRecords, usual: Floats) -> Floats:
    """State of the other zones of each zone's region at each tick, shape (zones, ticks, 3).

    Args:
        records: Records of the zones.
        usual: Share of time for which each zone has capacity, shape (zones,).
    """
    up = records.available.astype(np.float64)
    hour = max(round(HOUR_S / records.tick_s), 1)
    changed = np.diff(up, axis=1, prepend=up[:, :1])
    lost, got = (np.stack([_within(row, hour) for row in rows]) for rows in (changed < 0, changed > 0))
    found = np.zeros((*up.shape, 3))
    regions = [place.region for place in records.places]
    for zone, region in enumerate(regions):
        beside = [other for other, name in enumerate(regions) if name == region and other != zone]
        if beside:
            found[zone, :, 0] = (up[beside] - usual[beside, None]).mean(0)
            found[zone, :, 1], found[zone, :, 2] = lost[beside].mean(0), got[beside].mean(0)
    return found


def _within(happened: Bools, ticks: int) -> Floats:
    """Return 1 for each tick with an event in the last `ticks` ticks, itself included, else 0."""
    counts = np.cumsum(happened.astype(np.int64))
    before = np.concatenate([np.zeros(ticks, dtype=np.int64), counts])[: len(counts)]
    found: Floats = (counts - before > 0).astype(np.float64)
    return found


def fit_region_model(own: Floats, available: Bools, seen: Floats, later: Bools) -> RegionModel:
    """Fit the weights by penalised maximum likelihood.

    Args:
        own: Forecast by each zone's own spell, shape (zones, ticks).
        available: Whether each zone had a machine, the same shape.
        seen: What the neighbours showed, shape (zones, ticks, 3).
        later: Whether the zone had one when the forecast was for, shape (zones, ticks).

    Raises:
        InputError: Shapes differ, or there is no tick.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    if not own.size or not own.shape == np.shape(available) == np.shape(later) == seen.shape[:2]:
        raise InputError("forecasts, capacity and what neighbours show need the same zones and ticks, one or more")
    own = np.clip(own, _LEAST, 1.0 - _LEAST)
    odds, truth = np.log(own / (1.0 - own)).ravel(), np.asarray(later, dtype=np.float64).ravel()
    kinds = np.asarray(available, dtype=bool).ravel()
    plain = seen.reshape(-1, seen.shape[2])
    features = np.concatenate([plain * ~kinds[:, None], plain * kinds[:, None]], axis=1)

    def loss(weights: Floats) -> tuple[float, Floats]:
        scores = odds + features @ weights
        value = float((np.logaddexp(0.0, scores) - truth * scores).sum() + _RIDGE * weights @ weights)
        return value, features.T @ (expit(scores) - truth) + 2.0 * _RIDGE * weights

    found = minimize(loss, np.zeros(features.shape[1]), jac=True, method="L-BFGS-B")
    return RegionModel(np.asarray(found.x, dtype=np.float64).reshape(2, -1))
