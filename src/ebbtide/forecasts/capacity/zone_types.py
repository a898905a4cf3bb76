"""Types of zones: a few models that stand for all that are known, with the share of zones of each.

A zone that nobody has watched is one of them; which one shows within hours of watching it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import DOWN, UP, SpellModel
from ebbtide.market.price_series import Floats

# Five types did on recorded zones, each left out in turn, what eight did.
_MOST_TYPES = 5

# A bin in which a zone hardly spends any time still counts this much when models are compared.
_LEAST_SHARE = 0.02


@dataclass(frozen=True)
class ZoneTypes:
    """Models of types of zones.

    Attributes:
        models: One of each type.
        weights: Share of zones of each type; they sum to 1.
    """

    models: tuple[SpellModel, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("there is no model of any zone")
        if len(self.models) != len(self.weights) or not all(weight > 0 for weight in self.weights):
            raise InputError(f"{len(self.models)} types need as many weights, all above 0; not {self.weights}")


def zone_types(models: Sequence[SpellModel], most: int = _MOST_TYPES) -> ZoneTypes:
    """The models, of those given, that stand for all of them best: medoids by the logarithms of their hazards.

    Args:
        models: One model a zone.
        most: The largest number of types.

    Raises:
        InputError: No model is given.
    """
    if not models:
        raise InputError("there is no model of any zone")
    places = np.array([_place(model) for model in models])
    apart = ((places[:, None] - places[None]) ** 2).sum(axis=2)
    medoids = _medoids(apart, min(most, len(np.unique(places, axis=0))))
    nearest = np.argmin(apart[:, medoids], axis=1)
    shares = np.bincount(nearest, minlength=len(medoids)) / len(models)
    return ZoneTypes(tuple(models[place] for place in medoids), tuple(shares.tolist()))


def _place(model: SpellModel) -> Floats:
    """Logarithms of a model's hazards, each by the share of time that is spent at its age; shape (2 x bins,)."""
    parts = [
        np.log(model.per_hour[kind]) * np.sqrt(np.maximum(model.ages(kind), _LEAST_SHARE)) for kind in (DOWN, UP)
    ]
    return np.concatenate(parts)


def _medoids(apart: Floats, number: int) -> list[int]:
    """Indices of the members nearest to all others: added one by one, then exchanged while that helps."""
    found = [int(np.argmin(apart.sum(axis=1)))]
    while len(found) < number:
        nearest = apart[:, found].min(axis=1)
        gains = np.maximum(nearest[:, None] - apart, 0.0).sum(axis=0)
        gains[found] = -1.0
        found.append(int(np.argmax(gains)))
    while True:
        groups = np.argmin(apart[:, found], axis=1)
        members = [np.flatnonzero(groups == group) for group in range(len(found))]
        better = [int(own[np.argmin(apart[np.ix_(own, own)].sum(axis=1))]) for own in members]
        if better == found:
            return found
        if apart[:, better].min(axis=1).sum() >= apart[:, found].min(axis=1).sum():
            return found
        found = better
