"""How long machines can be had and cannot: up and down spells, their ages, and how likely each is to end.

Today's clouds take machines for want of capacity, and the lengths of spells have heavy tails: a spell that has
lasted is likely to last. So the model is one of hazards by age: events over exposure in bins of age that grow by a
factor, which needs no law of the lengths, takes spells whose end was not seen for what they are, and lets a zone
with little data lean on all others. Where the time of day is known, a factor for each three hours goes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ebbtide._utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats

Bools = np.ndarray

# Ages at which bins begin: 0, 10 min, 20 min, 40 min... to a week.
AGE_BINS_S: Floats = np.concatenate([[0.0], 600.0 * 2.0 ** np.arange(11)])

# The day, UTC, in parts of three hours.
PARTS_OF_DAY = 8
_PART_S = DAY_S / PARTS_OF_DAY

# What is believed before anything is counted weighs as much as so many ends of spells: of a zone, what all zones
# together show; of all zones' bin, what the bin before shows; of a part of the day, that it is like the others.
# Among 1 to 40 ends these foretell later halves and last two thirds of the recorded zones about best.
_OWN_ENDS, _POOLED_ENDS, _PART_ENDS = 20.0, 1.0, 20.0

DOWN, UP = 0, 1


@dataclass(frozen=True)
class Spells:
    """What was seen of one zone, by kind of spell.

    Attributes:
        exposure_h: Hours spent, by kind (down, up), bin of age and part of the day; shape (2, bins, PARTS_OF_DAY).
        ended: Spells that ended then; the same shape.
    """

    exposure_h: Floats
    ended: Floats

    def __add__(self, other: Spells) -> Spells:
        return Spells(self.exposure_h + other.exposure_h, self.ended + other.ended)


def spells_of(available: Bools, gap_s: float) -> Spells:
    """Count them in a record of ticks, the times of which are not known: the part of the day stays unknown, too.

    Args:
        available: Whether a machine could be had, a tick each.
        gap_s: Time from tick to tick.

    Raises:
        InputError: Fewer than two ticks, or no time between them.
    """
    if len(available) < 2 or not gap_s > 0:
        raise InputError("a record of availability needs two ticks or more, and time between them")
    found = spells_of_probes(np.arange(len(available), dtype=np.float64) * gap_s, available, gap_s * 1.5)
    return Spells(_anytime(found.exposure_h), _anytime(found.ended))


def spells_of_probes(times_s: Floats, available: Bools, longest_gap_s: float) -> Spells:
    """Count them in probes, each of which speaks for the time until the next.

    Of a spell whose end was not seen, the hours count as exposure, and no end. The age of the record's first spell
    is counted from the record's begin, which is too low: but else a zone that hardly ever changes would tell
    nothing (on recorded zones this foretells later parts better). Behind a hole such a spell is left out.

    Args:
        times_s: Of probes, seconds since 1970, ascending; shape (probes,).
        available: Whether a machine was to be had; the same shape.
        longest_gap_s: Between probes; a longer one is a hole.

    Raises:
        InputError: Times do not ascend.
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
        # Each probe of a known age speaks for the time to the next; an end lies in the middle of it, in the mean.
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
    """Which three hours of the UTC day, from 0."""
    return (np.asarray(time_s) % DAY_S // _PART_S).astype(np.int64)


def _anytime(counts: Floats) -> Floats:
    return np.repeat(counts.mean(axis=2, keepdims=True), PARTS_OF_DAY, axis=2)


@dataclass(frozen=True)
class SpellModel:
    """How likely a spell is to end, by its kind, its age and the time of day.

    Attributes:
        per_hour: The hazard in each bin of age; shape (2, bins), down and up.
        by_part: What it is multiplied by in each part of the day; shape (2, PARTS_OF_DAY).
    """

    per_hour: Floats
    by_part: Floats = field(default_factory=lambda: np.ones((2, PARTS_OF_DAY)))

    def ends_within(self, kind: int, age_s: float, within_s: float) -> float:
        """The probability that a spell of this age ends within so long, at no time of day in particular."""
        edges = np.append(AGE_BINS_S, np.inf)
        low, high = np.maximum(edges[:-1], age_s), np.minimum(edges[1:], age_s + within_s)
        hours = np.maximum(high - low, 0.0) / HOUR_S
        return float(-np.expm1(-np.dot(hours, self.per_hour[kind])))

    def mean_left_s(self, kind: int, age_s: float) -> float:
        """How much longer a spell of this age lasts in the mean; the last bin's hazard goes on for ever."""
        return float(self._lives_s(kind, age_s).sum())

    def ages(self, kind: int) -> Floats:
        """The share of all spell time that is spent in each bin of age; shape (bins,)."""
        lives_s = self._lives_s(kind, 0.0)
        shares: Floats = lives_s / lives_s.sum()
        return shares

    @property
    def share_up(self) -> float:
        """Of all time, in the long run."""
        up_s, down_s = self.mean_left_s(UP, 0.0), self.mean_left_s(DOWN, 0.0)
        return up_s / (up_s + down_s)

    def _lives_s(self, kind: int, age_s: float) -> Floats:
        """Time that a spell of this age has still to spend in each bin, in the mean."""
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

    def drawn(self, ticks: int, gap_s: float, random: np.random.Generator) -> Bools:
        """A record like those that it was fitted to, which begins with a new spell; without the time of day."""
        found = np.zeros(ticks, dtype=bool)
        kind, age = int(random.random() < self.share_up), 0
        chances = [[self.ends_within(one, tick * gap_s, gap_s) for tick in range(ticks)] for one in (DOWN, UP)]
        for tick in range(ticks):
            found[tick] = bool(kind)
            if random.random() < chances[kind][age]:
                kind, age = 1 - kind, 0
            else:
                age += 1
        return found


def fit_spells(own: Spells | None, others: Sequence[Spells]) -> SpellModel:
    """Fit a zone's model, leaning on other zones where it has seen little.

    Args:
        own: What was seen of the zone; None: nothing.
        others: Of the zones to lean on.

    Raises:
        InputError: Nothing was seen at all.
    """
    seen = [*others, *([own] if own is not None else [])]
    if not seen or not any(one.exposure_h.sum() for one in seen):
        raise InputError("no spell of availability was seen whose beginning is known")
    whole = seen[0]
    for one in seen[1:]:
        whole = whole + one
    pooled = np.stack([_hazards(whole.exposure_h[kind].sum(1), whole.ended[kind].sum(1)) for kind in (DOWN, UP)])
    if own is None:
        return SpellModel(pooled, _by_part(whole, pooled))
    # At each age as often as elsewhere, times all its ends over those foretold; then by its ends at that age.
    ended, exposure_h = own.ended.sum(2), own.exposure_h.sum(2)
    level = (ended.sum(1) + _OWN_ENDS) / ((exposure_h * pooled).sum(1) + _OWN_ENDS)
    believed = pooled * level[:, None]
    per_hour = (ended + _OWN_ENDS) / (exposure_h + _OWN_ENDS / believed)
    return SpellModel(per_hour, _by_part(own, per_hour))


def _hazards(exposure_h: Floats, ended: Floats) -> Floats:
    """Ends an hour; a bin that hardly any spell came to has about what the bin before it has."""
    found = np.empty(len(ended))
    before = (ended.sum() + 0.5) / max(exposure_h.sum(), 1.0)
    for place, (hours, ends) in enumerate(zip(exposure_h, ended, strict=True)):
        before = found[place] = (ends + _POOLED_ENDS) / (hours + _POOLED_ENDS / before)
    return found


def _by_part(seen: Spells, per_hour: Floats) -> Floats:
    """Ends in each part of the day over those that the ages alone foretell."""
    foretold = (seen.exposure_h * per_hour[:, :, None]).sum(1)
    factors: Floats = (seen.ended.sum(1) + _PART_ENDS) / (foretold + _PART_ENDS)
    return factors
