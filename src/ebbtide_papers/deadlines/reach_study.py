"""Costs in reach without foresight: each policy on capacity drawn from models, against an exact bound.

A policy that knows the future pays less than any other can, so a ratio in hindsight explains little. Here the
capacity of the three zones that would have cost least is drawn from models of what was recorded in them, zone by
zone. For such capacity the exact program gives the least that any policy without foresight can expect to pay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S
from ebbtide.policies.deadline.costs import ZonesProblem
from ebbtide.policies.deadline.table import solve_zones
from ebbtide_papers.deadlines.zones import RESTART_H, ZonesStudy, by_failover, by_table, past_models
from ebbtide_papers.deadlines.zones_bound import MOST_ZONES, solve_bound

# Length of a tick of drawn capacity, and of the exact program: that of a start, since work and deadline are whole
# numbers of those, so that no cost is interpolated.
_TICK_S = RESTART_H * HOUR_S

# Number of runs on drawn capacity, one after the other.
RUNS = 1_000

_UNIFORM = "uniform-progress "


@dataclass(frozen=True)
class Reach:
    """Mean costs on drawn capacity, USD.

    Attributes:
        zones: The zones, the cheapest first.
        bound_usd: The mean of what no policy without foresight expects to go below, from the same states.
        ours_usd: The mean of `deadline`.
        failover_usd: The mean of Uniform Progress with failover to the next-cheapest zone.
        best_zone_usd: The mean of Uniform Progress in the cheapest zone.
        error_usd: Standard error of what `deadline` costs more than the bound.
    """

    zones: tuple[str, ...]
    bound_usd: float
    ours_usd: float
    failover_usd: float
    best_zone_usd: float
    error_usd: float


def study_reach(study: ZonesStudy, seed: int = 0) -> Reach:
    """Every policy on capacity drawn from models of the cheapest zones of a set.

    Moves between these zones cost a restart and nothing else, for the policies as for the bound.

    Args:
        study: The study of the set.
        seed: Seed of the draws.
    """
    usd = {
        name.removeprefix(_UNIFORM): runs.usd.mean()
        for name, runs in study.runs.items()
        if name.startswith(_UNIFORM)
    }
    records = study.records
    chosen = sorted(range(len(records.zones)), key=lambda zone: usd[records.zones[zone]])[:MOST_ZONES]
    own, _ = past_models(records, records.ticks)
    models = [own[zone] for zone in chosen]
    prices = tuple(float(records.spot_usd[zone].mean()) for zone in chosen)
    names, nowhere = tuple(records.zones[zone] for zone in chosen), np.zeros((1, 1))
    whole = study.problem
    problem = ZonesProblem(
        whole.work_h,
        whole.deadline_h,
        whole.restart_h,
        whole.on_demand_usd_per_hour,
        names,
        prices,
        (0,) * len(chosen),
        nowhere,
        nowhere,
    )
    bound = solve_bound(problem, models, _TICK_S, only_start=True)
    run_ticks = math.ceil(whole.deadline_h * HOUR_S / _TICK_S) + 1
    ticks = (RUNS + 1) * run_ticks
    up = np.array(
        [model.drawn(ticks, _TICK_S, np.random.default_rng([seed, zone])) for zone, model in enumerate(models)]
    )
    drawn = replace(
        records,
        zones=names,
        places=(records.places[chosen[0]],) * len(chosen),
        available=up,
        spot_usd=np.repeat(np.array(prices)[:, None], ticks, axis=1),
        tick_s=_TICK_S,
        counts=None,
    )
    # Without the first: a drawn record begins with a new spell.
    starts = run_ticks * np.arange(1, RUNS + 1)
    table = solve_zones(problem, models, ask_every_s=study.ask_every_s)
    ours = np.array([run[0] for run in by_table(drawn, table, starts, study.ask_every_s)])
    fails_over = [run[0] for run in by_failover(drawn, problem, starts)]
    # From the states in which the runs begin: few long spells then matter to both sides alike.
    bins = np.stack([_states(one, starts) for one in up], axis=1)
    least = np.array([bound.at_start(states) for states in bins.tolist()])
    alone = [
        np.mean([run[0] for run in by_failover(drawn.alone(zone), problem.alone(zone), starts)])
        for zone in range(len(chosen))
    ]
    return Reach(
        names,
        float(least.mean()),
        float(ours.mean()),
        float(np.mean(fails_over)),
        float(min(alone)),
        float((ours - least).std() / math.sqrt(RUNS)),
    )


def _states(up: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The state of a zone at each start, as the exact program counts them: bins of age of down spells, then of up
    spells."""
    changed = np.concatenate([[0], np.flatnonzero(np.diff(up)) + 1])
    ages_s = (starts - changed[np.searchsorted(changed, starts, side="right") - 1]) * _TICK_S
    found: np.ndarray = up[starts] * len(AGE_BINS_S) + np.searchsorted(AGE_BINS_S, ages_s, side="right") - 1
    return found
