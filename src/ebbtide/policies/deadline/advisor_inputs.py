"""Checks of the input of advisors: numbers, truth values, models of zones, ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, PARTS_OF_DAY, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models
from ebbtide.forecasts.capacity.zone_types import ZoneTypes, zone_types

# Hours as schedulers count them are not exact: so much below a bound is at it.
_SAME_H = 1e-9

# Without a tick of its own a scheduler is taken to ask so often, seconds.
ASKS_EVERY_S = 300.0


def number(name: str, value: Any) -> float:
    """A number of 0 or more.

    Raises:
        InputError: It is none.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not -_SAME_H <= float(value) < math.inf:
        raise InputError(f"{name} is {value!r:.80}; it must be a number of 0 or more")
    return max(float(value), 0.0)


def truth(name: str, value: Any) -> bool:
    """True or false.

    Raises:
        InputError: It is neither.
    """
    if isinstance(value, bool | np.bool_) or (isinstance(value, Real) and value in (0, 1)):
        return bool(value)
    raise InputError(f"{name} is {value!r:.80}; it must be True or False")


def usable_hours(work_h: float, deadline_h: float, restart_h: float, tick_h: Any) -> tuple[float, float | None]:
    """Hours from the start until the last tick ends, and the hours of a tick, if there are ticks.

    Raises:
        InputError: A tick is no positive number, or the work and a start do not fit in whole ticks.
    """
    if tick_h is None:
        return deadline_h, None
    tick = number("tick_h", tick_h)
    if tick <= 0.0:
        raise InputError(f"tick_h is {tick_h}; it must be positive")
    usable_h = math.floor(deadline_h / tick + _SAME_H) * tick
    if usable_h < work_h + restart_h - _SAME_H:
        raise InputError(
            f"a deadline of {deadline_h:g} h cannot be kept in ticks of {tick:g} h: {work_h:g} h of work and a "
            f"start of {restart_h:g} h need more than {usable_h:g} h"
        )
    return usable_h, tick


def types_of(models: Any) -> ZoneTypes:
    """Types of zones from what is given as models: None for those of recorded zones.

    Raises:
        InputError: It is none of the kinds of models, or a hazard is not positive.
    """
    if models is None:
        models = default_spell_models()
    if isinstance(models, SpellModel):
        models = ZoneTypes((models,), (1.0,))
    elif isinstance(models, SpellModels):
        models = models.types or zone_types(list(models.by_market.values()) or [models.otherwise])
    elif isinstance(models, Sequence) and all(isinstance(one, SpellModel) for one in models):
        models = zone_types([_checked(one) for one in models])
    if not isinstance(models, ZoneTypes):
        raise InputError(
            f"models are {models!r:.80}; give a SpellModel, a list of one a zone, SpellModels as "
            "`availability fit` writes them, or ZoneTypes"
        )
    return ZoneTypes(tuple(_checked(one) for one in models.models), models.weights)


def _checked(model: SpellModel) -> SpellModel:
    """The model with hazards as floating numbers."""
    try:
        per_hour = np.array(model.per_hour, dtype=np.float64)
        by_part = np.array(model.by_part, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"a spell model has hazards that are no numbers: {error}") from None
    if per_hour.shape != (2, len(AGE_BINS_S)) or by_part.shape != (2, PARTS_OF_DAY):
        raise InputError(f"a spell model has hazards of shape {per_hour.shape}, not (2, {len(AGE_BINS_S)})")
    if not np.isfinite(per_hour).all() or not (per_hour > 0).all():
        raise InputError("a spell model has a hazard that is not positive")
    return SpellModel(per_hour, by_part)
