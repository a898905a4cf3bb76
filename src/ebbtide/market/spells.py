"""How long machines can be had and cannot: up and down spells, their ages, and how likely each is to end.

Today's clouds take machines for want of capacity, and the lengths of spells have heavy tails: a spell that has
lasted is likely to last. So the model is one of hazards by age: events over exposure in bins of age that grow by a
factor, which needs no law of the lengths, takes spells whose end was not seen for what they are, and lets a zone
with little data lean on all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.errors import InputError
from ebbtide.market.price_series import Floats
from ebbtide.utc import HOUR_S

Bools = np.ndarray

# Ages at which bins begin: 0, 10 min, 20 min, 40 min... to a week.
AGE_BINS_S: Floats = np.concatenate([[0.0], 600.0 * 2.0 ** np.arange(11)])

# So many hours of exposure of a zone weigh as much as all that the others have seen of the same bin.
_POOLED_H = 24.0


@dataclass(frozen=True)
class Spells:
    """What was seen of one zone, by kind of spell.

    Attributes:
        exposure_h: Hours spent in each bin of age, of up spells and of down spells; shape (2, bins).
        ended: Spells that ended in each bin; the same shape.
    """

    exposure_h: Floats
    ended: Floats

    def __add__(self, other: Spells) -> Spells:
        return Spells(self.exposure_h + other.exposure_h, self.ended + other.ended)


DOWN, UP = 0, 1


def spells_of(available: Bools, gap_s: float) -> Spells:
    """Count them in a record.

    The first spell's beginning was not seen, so its age is not known: it is left out. The last one's end was not
    seen: its hours count as exposure, and no end.

    Args:
        available: Whether a machine could be had, a tick each.
        gap_s: Time from tick to tick.

    Raises:
        InputError: Fewer than two ticks, or no time between them.
    """
    if len(available) < 2 or not gap_s > 0:
        raise InputError("a record of availability needs two ticks or more, and time between them")
    up = np.asarray(available, dtype=bool)
    changes = np.flatnonzero(np.diff(up)) + 1
    exposure_h, ended = np.zeros((2, len(AGE_BINS_S))), np.zeros((2, len(AGE_BINS_S)))
    for place, begin in enumerate(changes):
        seen = place + 1 < len(changes)
        end = changes[place + 1] if seen else len(up)
        kind, length_s = int(up[begin]), (end - begin) * gap_s
        exposure_h[kind] += np.clip(length_s - AGE_BINS_S, 0.0, np.diff(AGE_BINS_S, append=np.inf)) / HOUR_S
        if seen:
            ended[kind, np.searchsorted(AGE_BINS_S, length_s, side="left") - 1] += 1
    return Spells(exposure_h, ended)


@dataclass(frozen=True)
class SpellModel:
    """How likely a spell is to end, by its kind and age.

    Attributes:
        per_hour: The hazard in each bin of age; shape (2, bins), down and up.
    """

    per_hour: Floats

    def ends_within(self, kind: int, age_s: float, within_s: float) -> float:
        """The probability that a spell of this age ends within so long."""
        edges = np.append(AGE_BINS_S, np.inf)
        low, high = np.maximum(edges[:-1], age_s), np.minimum(edges[1:], age_s + within_s)
        hours = np.maximum(high - low, 0.0) / HOUR_S
        return float(-np.expm1(-np.dot(hours, self.per_hour[kind])))

    def mean_left_s(self, kind: int, age_s: float) -> float:
        """How much longer a spell of this age lasts in the mean; the last bin's hazard goes on for ever."""
        edges = np.append(AGE_BINS_S, np.inf)
        alive, total_s = 1.0, 0.0
        for low, high, per_hour in zip(edges[:-1], edges[1:], self.per_hour[kind], strict=True):
            if high <= age_s:
                continue
            span_h = (high - max(low, age_s)) / HOUR_S
            share = -np.expm1(-per_hour * span_h)
            total_s += alive * share / per_hour * HOUR_S
            alive *= 1.0 - share
        return float(total_s)

    def drawn(self, ticks: int, gap_s: float, random: np.random.Generator) -> Bools:
        """A record like those that it was fitted to, which begins with a new spell."""
        found = np.zeros(ticks, dtype=bool)
        share_up = self.mean_left_s(UP, 0.0) / (self.mean_left_s(UP, 0.0) + self.mean_left_s(DOWN, 0.0))
        kind, age = int(random.random() < share_up), 0
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
    pooled = np.stack([_hazards(whole.exposure_h[kind], whole.ended[kind]) for kind in (DOWN, UP)])
    if own is None:
        return SpellModel(pooled)
    return SpellModel((own.ended + _POOLED_H * pooled) / (own.exposure_h + _POOLED_H))


def _hazards(exposure_h: Floats, ended: Floats) -> Floats:
    """Ends an hour; a bin that hardly any spell came to has what the bin before it has."""
    overall = (ended.sum() + 0.5) / max(exposure_h.sum(), 1.0)
    found = np.empty(len(ended))
    before = overall
    for place, (hours, ends) in enumerate(zip(exposure_h, ended, strict=True)):
        before = found[place] = (ends + before) / (hours + 1.0)
    return found
