"""Up spells (machines are available) and down spells: the hazard of their end by age.

Today's clouds revoke because capacity runs out, and the lengths of spells have heavy tails: a spell that has
lasted is likely to last. The model is a piecewise-constant hazard by age: events over exposure in bins of age that
grow by a factor. It assumes no law of the lengths, handles right-censored spells, and pools a zone with little
data partially with all others. Where the time of day is known, the hazard has a factor for every three hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats

Bools = np.ndarray

# Ages at which bins begin, seconds: 0, 10 min, 20 min, 40 min... to a week.
AGE_BINS_S: Floats = np.concatenate([[0.0], 600.0 * 2.0 ** np.arange(11)])

# The day, UTC, in parts of three hours.
PARTS_OF_DAY = 8
_PART_S = DAY_S / PARTS_OF_DAY

# Strengths of the priors, in pseudo-counts of ended spells: for a zone, the pooled model of all zones; for a bin
# of the pooled model, the bin before it; for a part of the day, a factor of 1. Chosen from 1 to 40 by how well
# they predict the later half and the last two thirds of the recorded zones.
_OWN_ENDS, _POOLED_ENDS, _PART_ENDS = 20.0, 1.0, 20.0

DOWN, UP = 0, 1


@dataclass(frozen=True)
class Spells:
    """Exposure and ends of one zone's spells, the data of a hazard model.

    Attributes:
        exposure_h: Hours spent by kind (down, up), bin of age and part of the day, shape (2, bins, PARTS_OF_DAY).
        ended: Number of spells that ended there, same shape.
    """

    exposure_h: Floats
    ended: Floats

    def __add__(self, other: Spells) -> Spells:
        return Spells(self.exposure_h + other.exposure_h, self.ended + other.ended)


def spells_of(available: Bools, gap_s: float) -> Spells:
    """Count the spells of a record of ticks without times; the part of the day is averaged out.

    Args:
        available: Whether a machine was available at each tick, shape (ticks,).
        gap_s: Time between two ticks, seconds.

    Raises:
        InputError: There are fewer than two ticks, or no time between them.
    """
    if len(available) < 2 or not gap_s > 0:
        raise InputError("a record of availability needs two ticks or more, and time between them")
    found = spells_of_probes(np.arange(len(available), dtype=np.float64) * gap_s, available, gap_s * 1.5)
    return Spells(_anytime(found.exposure_h), _anytime(found.ended))


def spells_of_probes(times_s: Floats, available: Bools, longest_gap_s: float) -> Spells:
    """Count the spells in probes, each of which holds until the next one.

    A right-censored spell adds exposure and no end. The age of the record's first spell is counted from the begin
    of the record, which is too low; without it, a zone that hardly ever changes would give no data (on recorded
    zones, later parts are predicted better with it). After a gap, a spell of unknown beginning is left out.

    Args:
        times_s: Times of the probes, seconds since 1970, rising, shape (probes,).
        available: Whether a machine was available at each probe, shape (probes,).
        longest_gap_s: Longest time between two probes, seconds; a longer one is a gap in the record.

    Raises:
        InputError: The times do not rise.
    """
    times_s, up = np.asarray(times_s, dtype=float), np.asarray(available, dtype=bool)
    gaps_s = np.diff(times_s)
    if len(gaps_s) and not gaps_s.min() > 0:
        raise InputError(f"probes are not in the order of time at probe {int(np.argmin(gaps_s)) + 2}")
    exposure_h = np.zeros((2, len(AGE_BINS_S), PARTS_OF_DAY))
    ended = np.zeros_like(exposure_h)
    for part in np.split(np.arange(len(up)), np.flatnonzero(gaps_s > longest_gap_s) + 1):
        begins = part[1:][np.diff(up[part])]
        if part[0] == 0:
            begins = np.append(part[:1], begins)
        if not len(begins):
            continue
        # Each probe of known age holds until the next one; an end lies halfway between them, on average.
        probes = part[part >= begins[0]]
        last = probes[-1]
        lasts_s = np.append(gaps_s[probes[:-1]], min(gaps_s[last - 1], longest_gap_s))
        ages_s = times_s[probes] - times_s[begins[np.searchsorted(begins, probes, side="right") - 1]]
        ends = np.append(np.diff(up[probes]), False)
        bins = np.searchsorted(AGE_BINS_S, ages_s + 0.5 * lasts_s, side="right") - 1
        where = (up[probes].astype(int), bins, part_of_day(times_s[probes]))
        np.add.at(exposure_h, where, np.where(ends, 0.5, 1.0) * lasts_s / HOUR_S)
        np.add.at(ended, where, ends)
    return Spells(exposure_h, ended)


def part_of_day(time_s: Floats) -> np.ndarray:
    """Index of the three-hour part of the UTC day, from 0, in the shape given."""
    return (np.asarray(time_s) % DAY_S // _PART_S).astype(np.int64)


def _anytime(counts: Floats) -> Floats:
    return np.repeat(counts.mean(axis=2, keepdims=True), PARTS_OF_DAY, axis=2)


@dataclass(frozen=True)
class SpellModel:
    """The hazard of a spell's end by its kind, its age and the time of day.

    Attributes:
        per_hour: Hazard in each bin of age for down and up spells, per hour, shape (2, bins).
        by_part: Factor on the hazard in each part of the day, shape (2, PARTS_OF_DAY).
    """

    per_hour: Floats
    by_part: Floats = field(default_factory=lambda: np.ones((2, PARTS_OF_DAY)))

    def ends_within(self, kind: int, age_s: float, within_s: float) -> float:
        """The probability that a spell of age `age_s` ends within `within_s`, averaged over the time of day."""
        edges = np.append(AGE_BINS_S, np.inf)
        low, high = np.maximum(edges[:-1], age_s), np.minimum(edges[1:], age_s + within_s)
        hours = np.maximum(high - low, 0.0) / HOUR_S
        return float(-np.expm1(-np.dot(hours, self.per_hour[kind])))

    def mean_left_s(self, kind: int, age_s: float) -> float:
        """Mean remaining time of a spell of this age, seconds; the last bin's hazard continues for ever."""
        return float(self._lives_s(kind, age_s).sum())

    def ages(self, kind: int) -> Floats:
        """The share of all spell time that is spent in each bin of age, shape (bins,)."""
        lives_s = self._lives_s(kind, 0.0)
        shares: Floats = lives_s / lives_s.sum()
        return shares

    @property
    def share_up(self) -> float:
        """The share of time with machines available, in the long run."""
        up_s, down_s = self.mean_left_s(UP, 0.0), self.mean_left_s(DOWN, 0.0)
        return up_s / (up_s + down_s)

    def _lives_s(self, kind: int, age_s: float) -> Floats:
        """Mean time that a spell of this age will still spend in each bin, seconds, shape (bins,)."""
        edges = np.append(AGE_BINS_S, np.inf)
        alive, found = 1.0, np.zeros(len(AGE_BINS_S))
        bins = zip(edges[:-1], edges[1:], self.per_hour[kind], strict=True)
        for place, (low, high, per_hour) in enumerate(bins):
            if high <= age_s:
                continue
            share = -np.expm1(-per_hour * (high - max(low, age_s)) / HOUR_S)
            found[place] = alive * share / per_hour * HOUR_S
            alive *= 1.0 - share
        return found

    def _ends_by_tick(self, kind: int, ticks: int, gap_s: float) -> list[float]:
        """`ends_within` a tick for ages of 0, 1, 2... ticks."""
        ages_s = np.arange(ticks + 1) * gap_s
        hours = np.clip(ages_s[:, None] - AGE_BINS_S, 0.0, np.diff(AGE_BINS_S, append=np.inf)) / HOUR_S
        chances: list[float] = (-np.expm1(-np.diff(hours @ self.per_hour[kind]))).tolist()
        return chances

    def drawn(self, ticks: int, gap_s: float, random: np.random.Generator, shared: Floats | None = None) -> Bools:
        """A random record of availability that begins with a new spell, shape (ticks,), without the time of day.

        Args:
            ticks: Number of ticks to draw.
            gap_s: Time between two ticks, seconds.
            random: Generator of the random numbers.
            shared: Random numbers of each tick that other zones share, from 0 to 1, shape (ticks,); NaN where the
                zone has its own. A small number ends a spell.
        """
        found = np.zeros(ticks, dtype=bool)
        kind, age = int(random.random() < self.share_up), 0
        chances = [self._ends_by_tick(one, ticks, gap_s) for one in (DOWN, UP)]
        drawn = random.random(ticks)
        if shared is not None:
            drawn = np.where(np.isnan(shared), drawn, shared)
        for tick, number in enumerate(drawn.tolist()):
            found[tick] = bool(kind)
            if number < chances[kind][age]:
                kind, age = 1 - kind, 0
            else:
                age += 1
        return found


def onward_in(tick_s: float) -> Floats:
    """Probability that a spell comes into its next bin of age in a tick: it leaves a bin after the bin's width in
    the mean; shape (bins,)."""
    onward: Floats = np.minimum(tick_s / np.diff(AGE_BINS_S, append=np.inf), 1.0)
    return onward


def a_tick_later(state: Floats, ends: Floats, onward: Floats) -> Floats:
    """The probabilities of kind and age of a spell a tick later.

    Args:
        state: Those now, shape (kinds, bins of age).
        ends: Probability that a spell ends within the tick, the same shape.
        onward: Probability that one that does not comes into its next bin of age, shape (bins,).
    """
    ended = (state * ends).sum(1)
    lasting = state * (1.0 - ends)
    older = lasting * onward
    later: Floats = lasting - older
    later[:, 1:] += older[:, :-1]
    later[UP, 0] += ended[DOWN]
    later[DOWN, 0] += ended[UP]
    return later


def fit_spells(own: Spells | None, others: Sequence[Spells]) -> SpellModel:
    """Fit a zone's model by partial pooling: its own counts, with the model of all zones as the prior.

    Args:
        own: Spells of the zone; None if there are none.
        others: Spells of the other zones.

    Raises:
        InputError: There is no spell at all.
    """
    seen = [*others, *([own] if own is not None else [])]
    if not seen or not any(one.exposure_h.sum() for one in seen):
        raise InputError("there is no spell of availability whose beginning is known")
    whole = seen[0]
    for one in seen[1:]:
        whole = whole + one
    pooled = np.stack([_hazards(whole.exposure_h[kind].sum(1), whole.ended[kind].sum(1)) for kind in (DOWN, UP)])
    if own is None:
        return SpellModel(pooled, _by_part(whole, pooled))
    # First scale the pooled hazards to the zone's total number of ends, then adjust each bin by its own ends.
    ended, exposure_h = own.ended.sum(2), own.exposure_h.sum(2)
    level = (ended.sum(1) + _OWN_ENDS) / ((exposure_h * pooled).sum(1) + _OWN_ENDS)
    prior = pooled * level[:, None]
    per_hour = (ended + _OWN_ENDS) / (exposure_h + _OWN_ENDS / prior)
    return SpellModel(per_hour, _by_part(own, per_hour))


def updated(model: SpellModel, seen: Spells) -> SpellModel:
    """A model with what has been seen of its zone since; it is the prior, as pooled zones are in `fit_spells`.

    With nothing seen it is the model itself; the time of day stays as it was.

    Args:
        model: The model before.
        seen: Spells of the zone seen since.
    """
    ended, exposure_h = seen.ended.sum(2), seen.exposure_h.sum(2)
    level = (ended.sum(1) + _OWN_ENDS) / ((exposure_h * model.per_hour).sum(1) + _OWN_ENDS)
    prior = model.per_hour * level[:, None]
    return SpellModel((ended + _OWN_ENDS) / (exposure_h + _OWN_ENDS / prior), model.by_part)


def _hazards(exposure_h: Floats, ended: Floats) -> Floats:
    """Hazards per hour, shape (bins,); a bin with little data gets about the hazard of the bin before it."""
    found = np.empty(len(ended))
    before = (ended.sum() + 0.5) / max(exposure_h.sum(), 1.0)
    for place, (hours, ends) in enumerate(zip(exposure_h, ended, strict=True)):
        before = found[place] = (ends + _POOLED_ENDS) / (hours + _POOLED_ENDS / before)
    return found


def _by_part(seen: Spells, per_hour: Floats) -> Floats:
    """Ends in each part of the day over those expected from the ages alone, shape (2, PARTS_OF_DAY)."""
    expected = (seen.exposure_h * per_hour[:, :, None]).sum(1)
    factors: Floats = (seen.ended.sum(1) + _PART_ENDS) / (expected + _PART_ENDS)
    return factors
