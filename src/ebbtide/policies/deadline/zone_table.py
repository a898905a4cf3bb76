"""`deadline` over several zones: what a run costs from every state on, solved from models of their spells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.spells.fitting import AGE_BINS_S, DOWN, UP, SpellModel, part_of_day
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.zone_solving import solved_zones
from ebbtide.policies.deadline.zones import ZonesProblem

# Ticks of the program, and steps of slack; between steps costs are a line.
TICK_S, SLACK_STEP_S = 600.0, 600.0


@dataclass(frozen=True)
class ZoneTable:
    """Costs from every state on.

    Attributes:
        problem: What they are for.
        models: Of each zone.
        usd: By ticks left, what is held (nothing, on-demand, spot), zone, bin of its spell's age, and slack.
        ages: Of an up spell met at any time; shape (zones, bins).
        lasts_s: What a machine lasts in the mean, by zone.
        home: The zone that stands for where a run starts, before it has asked anyone.
        away_s: For how long it has been down, should it refuse: what half of all down time exceeds.
        tick_s: Of the table.
        step_s: Of its slack.
    """

    problem: ZonesProblem
    models: tuple[SpellModel, ...]
    usd: np.ndarray
    ages: Floats
    lasts_s: Floats
    home: int
    away_s: float
    tick_s: float = TICK_S
    step_s: float = SLACK_STEP_S


def solve_zones(
    problem: ZonesProblem,
    models: Sequence[SpellModel],
    *,
    begins_s: float | None = None,
    ask_every_s: float = TICK_S,
    gamma: float = 0.0,
) -> ZoneTable:
    """Solve it.

    Args:
        problem: The job, the zones and their prices.
        models: Of each zone's spells.
        begins_s: When it starts, seconds since 1970; None: the time of day is not known.
        ask_every_s: How often other zones are asked while a machine is held: what comes and goes between is
            missed.
        gamma: USD of expected cost that a USD of standard deviation is worth.

    Raises:
        InputError: Not a model for each zone, or a negative gamma.
    """
    if len(models) != len(problem.zones):
        raise InputError(f"{len(problem.zones)} zones need as many models, not {len(models)}")
    if not gamma >= 0:
        raise InputError(f"gamma is {gamma}; it cannot be negative")
    ticks = math.ceil(problem.deadline_h * HOUR_S / TICK_S)
    steps = math.ceil(problem.slack_s / SLACK_STEP_S) + 2
    factors = np.stack([model.by_part for model in models])
    if begins_s is None:
        factors, parts = np.ones_like(factors), np.zeros(ticks + 1, dtype=np.int64)
    else:
        ends_s = begins_s + problem.deadline_h * HOUR_S
        parts = part_of_day(ends_s - np.arange(ticks + 1, dtype=np.float64) * TICK_S)
    kinds = (DOWN, UP)
    in_tick = np.array(
        [[[model.ends_within(kind, age_s, TICK_S) for age_s in AGE_BINS_S] for kind in kinds] for model in models]
    )
    # From the probability at no time in particular to that of each part of the day.
    ends = -np.expm1(np.log1p(-np.minimum(in_tick, 1 - 1e-12))[None] * np.moveaxis(factors, 2, 0)[:, :, :, None])
    lasts_s = np.array([model.mean_left_s(UP, 0.0) for model in models])
    away_s = np.array([[model.mean_left_s(DOWN, age_s) for age_s in AGE_BINS_S] for model in models])
    seen_s = min(max(ask_every_s, TICK_S), 6 * HOUR_S)
    # One that comes up is found at the next asking, if it is still up then.
    missed = np.exp(-(seen_s - TICK_S) / 2.0 / lasts_s)
    found = -np.expm1(-(TICK_S / away_s)[None] * factors[:, DOWN].T[:, :, None]) * missed[None, :, None]
    ages = np.stack([model.ages(UP) for model in models])
    share_up = np.array([model.share_up for model in models])
    onward = np.minimum(TICK_S / np.diff(AGE_BINS_S, append=np.inf), 1.0)
    usd = solved_zones(
        ticks,
        TICK_S,
        steps,
        SLACK_STEP_S,
        problem.restart_h * HOUR_S,
        problem.start_s,
        problem.on_demand_usd_per_hour,
        np.array(problem.spot_usd_per_hour),
        np.array(problem.place_of),
        problem.egress_usd,
        ends,
        onward,
        found,
        share_up,
        ages,
        parts,
        gamma,
    )
    home = int(np.argmin(np.array(problem.spot_usd_per_hour) / np.maximum(share_up, 1e-3)))
    half = int(np.searchsorted(np.cumsum(models[home].ages(DOWN)), 0.5))
    return ZoneTable(problem, tuple(models), usd, ages, lasts_s, home, float(AGE_BINS_S[half]))
