"""The tables of `deadline`: costs or choices of least expected cost, solved backwards over models of spells.

The cookbook of Cümülön-D over availability in place of price: its state is the time left, the work left, what is
held, and for how long the zone has been up or down. Restarts are included. No deadline is missed, since no choice
is allowed after which there would be no time for an on-demand start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ebbtide.base.compiled_records import (
    NOTHING,
    SPOT,
    SlackGrid,
    SpellChances,
    ZoneChoices,
    ZonesChances,
    ZonesCosts,
    ZonesProgram,
)
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import (
    AGE_BINS_S,
    DOWN,
    UP,
    SpellModel,
    a_tick_later,
    onward_in,
    part_of_day,
)
from ebbtide.market.egress import EgressPrices
from ebbtide.market.markets import Place
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.costs import DeadlineProblem, ZonesProblem, zones_problem
from ebbtide.policies.deadline.solving import solved_zone
from ebbtide.policies.deadline.solving_zones import solved_zones

# Length of a tick and width of a step of slack, seconds; between steps costs are interpolated.
_ONE_ZONE_TICK_S, _ONE_ZONE_STEP_S = 300.0, 120.0
_TICK_S, _STEP_S = 600.0, 600.0

# Most steps of slack in a tick, where machines differ in speed.
_MOST_STEPS_A_TICK = 4

# Measured speeds may show that a job takes longer than was said. Tables are solved for so many times its work, and
# some ticks more; with more left to do, costs are continued in a straight line.
_MOST_TIMES_WORK, _MORE_TICKS = 4.0, 6.0

# Numbers in a table over several zones: with more, ticks are made longer. It takes some four seconds to solve.
_MOST_CELLS = 30_000_000


@dataclass(frozen=True)
class DeadlineTable:
    """The choices of `deadline` in one zone, for every state.

    Attributes:
        problem: The job and the prices that it was solved for.
        choices: `NOTHING`, `SPOT` or `ON_DEMAND`; shape (ticks + 1, kinds, bins of age, held, steps of slack).
        expected_usd: Expected cost in USD from the start, if a down spell or an up spell has just begun.
        tick_s: Length of the table's ticks in seconds.
        slack_step_s: Width of its steps of slack in seconds.
    """

    problem: DeadlineProblem
    choices: np.ndarray
    expected_usd: tuple[float, float]
    tick_s: float = _ONE_ZONE_TICK_S
    slack_step_s: float = _ONE_ZONE_STEP_S

    @property
    def plain(self) -> ZoneChoices:
        """The table as compiled code takes it."""
        return ZoneChoices(self.choices, self.tick_s, self.slack_step_s, AGE_BINS_S)


def solve_deadline(problem: DeadlineProblem, model: SpellModel) -> DeadlineTable:
    """Solve for the choices in one zone.

    Args:
        problem: The job and its prices.
        model: How long the zone's spells last.
    """
    tick_s, step_s = _ONE_ZONE_TICK_S, _ONE_ZONE_STEP_S
    slack_s = (problem.deadline_h - problem.work_h) * HOUR_S
    grid = SlackGrid(
        math.ceil(problem.deadline_h * HOUR_S / tick_s), tick_s, math.ceil(slack_s / step_s) + 2, step_s
    )
    ends = np.array([[model.ends_within(kind, age, tick_s) for age in AGE_BINS_S] for kind in (DOWN, UP)])
    choices, costs = solved_zone(grid, problem.task, SpellChances(ends, np.tile(onward_in(tick_s), (2, 1))))
    place = slack_s / step_s
    low, share = int(place), place - int(place)
    expected = [(1 - share) * costs[kind, 0, 0, low] + share * costs[kind, 0, 0, low + 1] for kind in (DOWN, UP)]
    return DeadlineTable(problem, choices, (float(expected[0]), float(expected[1])))


@dataclass(frozen=True)
class ZoneTable:
    """The costs of `deadline` over several zones, from every state on.

    Attributes:
        problem: The job, the zones and the prices that it was solved for.
        models: How long the spells of each zone last.
        usd: Cost in USD; shape (ticks + 1, held, zones, bins of age, steps of slack).
        ages: Probability of each age of a zone's up spell by the time since it refused; shape (zones, bins since,
            bins of age).
        lasts_s: Mean time that a spot machine lasts, seconds; shape (zones,).
        home: Zone that stands for the place of a run before its first machine.
        away_s: Seconds for which that zone has been down, if it refuses at the start: the median age of down time.
        tick_s: Length of the table's ticks in seconds.
        step_s: Width of its steps of slack in seconds.
    """

    problem: ZonesProblem
    models: tuple[SpellModel, ...]
    usd: np.ndarray
    ages: Floats
    lasts_s: Floats
    home: int
    away_s: float
    tick_s: float = _TICK_S
    step_s: float = _STEP_S

    @property
    def costs(self) -> ZonesCosts:
        """The table as compiled code takes it."""
        return ZonesCosts(
            self.usd, self.tick_s, self.step_s, AGE_BINS_S, self.lasts_s, self.ages, self.home, self.away_s
        )

    def beginnings(self) -> tuple[Floats, Floats]:
        """Possible beginnings of a job: zones are asked in order of cost until one gives a machine, or all refuse.

        Returns:
            Probability that each zone is the one, and that all refuse; expected cost in USD after that, plus gamma
            times its standard deviation. Both of shape (zones + 1,), in the order of the zones.
        """
        slack_s = self.problem.slack_s
        given = slack_s - self.problem.task.speed * self.problem.restart_h * HOUR_S
        usd = [self.ages[zone, -1] @ self._at(SPOT, zone, given[zone]) for zone in range(len(self.models))]
        waits = int(np.searchsorted(AGE_BINS_S, self.away_s, side="right")) - 1
        usd.append(self._at(NOTHING, self.home, slack_s)[waits])
        chances = np.zeros(len(usd))
        left = 1.0
        for zone in sorted(range(len(self.models)), key=lambda one: float(usd[one])):
            chances[zone] = left * self.models[zone].share_up
            left -= chances[zone]
        chances[-1] = left
        return chances, np.array(usd, dtype=np.float64)

    def _at(self, held: int, zone: int, slack_s: float) -> Floats:
        """Costs at the start by bin of age, interpolated between steps of slack; shape (bins,)."""
        costs = self.usd[-1, held, zone].astype(np.float64)
        places = np.arange(costs.shape[1]) * self.step_s
        return np.array([np.interp(slack_s, places, row) for row in costs])


def cost_at_start(table: ZoneTable, risky: ZoneTable, gamma: float) -> tuple[float, float]:
    """Expected cost of a job and its standard deviation, USD, before any zone was asked.

    Args:
        table: The table of least expected cost, with a weight of 0.
        risky: The same, solved with a small weight of the deviation. The least sum of mean and weighted deviation
            grows with a small weight as fast as the deviation.
        gamma: The weight in the second table, USD of expected cost for a USD of deviation.
    """
    chances, means = table.beginnings()
    deviation = np.maximum(risky.beginnings()[1] - means, 0.0) / gamma
    mean = float(chances @ means)
    return mean, float(np.sqrt(max(float(chances @ (deviation**2 + means**2)) - mean**2, 0.0)))


def zones_tick_s(problem: ZonesProblem) -> float:
    """The length of the ticks of a job's table, seconds: the usual one, or as short as the table's size allows."""
    kinds = 4.0 if math.isfinite(problem.look_s) else 3.0
    states = kinds * len(problem.zones) * len(AGE_BINS_S) * _steps_a_tick(problem)
    cells = states * max(problem.most_slack_s, HOUR_S) * problem.deadline_h * HOUR_S
    return max(_TICK_S, math.sqrt(cells / _MOST_CELLS))


def _steps_a_tick(problem: ZonesProblem) -> int:
    """Steps of slack in a tick: as many as make what a tick on any machine takes a whole number, up to four.

    Between steps costs are interpolated, which smears them where each tick ends between two.
    """
    lost = [abs(1.0 - speed) for speed in problem.speed]
    exact = (number for number in (1, 2) if all(math.isclose(number * one, round(number * one)) for one in lost))
    return next(exact, _MOST_STEPS_A_TICK)


def solve_zones(
    problem: ZonesProblem,
    models: Sequence[SpellModel],
    *,
    begins_s: float | None = None,
    ask_every_s: float = _TICK_S,
    gamma: float = 0.0,
    tick_s: float = _TICK_S,
) -> ZoneTable:
    """Solve for the costs over several zones.

    Args:
        problem: The job, the zones and their prices.
        models: How long the spells of each zone last.
        begins_s: Start of the job in seconds since 1970; None if the time of day is not known.
        ask_every_s: Seconds between requests to other zones while a machine is held; machines that come and go
            between two requests are missed.
        gamma: USD of expected cost that a USD of standard deviation is worth.
        tick_s: Length of the table's ticks, seconds; of its steps of slack, too, unless speeds need narrower ones.

    Raises:
        InputError: The number of models is not that of zones, or gamma is negative.
    """
    if len(models) != len(problem.zones):
        raise InputError(f"{len(problem.zones)} zones need as many models, not {len(models)}")
    if not gamma >= 0:
        raise InputError(f"gamma is {gamma}; it cannot be negative")
    ticks = math.ceil(problem.deadline_h * HOUR_S / tick_s)
    step_s = tick_s / _steps_a_tick(problem)
    steps = math.ceil(problem.most_slack_s / step_s) + 2
    factors = np.stack([model.by_part for model in models])
    if begins_s is None:
        factors, parts = np.ones_like(factors), np.zeros(ticks + 1, dtype=np.int64)
    else:
        ends_s = begins_s + problem.deadline_h * HOUR_S
        parts = part_of_day(ends_s - np.arange(ticks + 1, dtype=np.float64) * tick_s)
    kinds = (DOWN, UP)
    in_tick = np.array(
        [[[model.ends_within(kind, age_s, tick_s) for age_s in AGE_BINS_S] for kind in kinds] for model in models]
    )
    # From the probability at any time of day to that in each part of the day.
    ends = -np.expm1(np.log1p(-np.minimum(in_tick, 1 - 1e-12))[None] * np.moveaxis(factors, 2, 0)[:, :, :, None])
    lasts_s = np.array([model.mean_left_s(UP, 0.0) for model in models])
    away_s = np.array([[model.mean_left_s(DOWN, age_s) for age_s in AGE_BINS_S] for model in models])
    between_s = min(max(ask_every_s, tick_s), 6 * HOUR_S)
    # A zone that comes up is found at the next request, if it is still up then.
    missed = np.exp(-(between_s - tick_s) / 2.0 / lasts_s)
    found = -np.expm1(-(tick_s / away_s)[None] * factors[:, DOWN].T[:, :, None]) * missed[None, :, None]
    refused = [_after_refusal(model, in_tick[zone], tick_s) for zone, model in enumerate(models)]
    up_since, ages = np.stack([one[0] for one in refused]), np.stack([one[1] for one in refused])
    share_up = np.array([model.share_up for model in models])
    chances = ZonesChances(ends, onward_in(tick_s), found, up_since, ages, parts)
    grid, most_s = SlackGrid(ticks, tick_s, steps, step_s), _most_to_do_s(problem, tick_s)
    usd = solved_zones(ZonesProgram(grid, problem.task, chances, gamma, most_s))
    home = int(np.argmin(np.array(problem.spot_usd_per_hour) / np.maximum(share_up, 1e-3)))
    half = int(np.searchsorted(np.cumsum(models[home].ages(DOWN)), 0.5))
    away = float(AGE_BINS_S[half])
    return ZoneTable(problem, tuple(models), usd, ages, lasts_s, home, away, tick_s, step_s)


def _most_to_do_s(problem: ZonesProblem, tick_s: float) -> float:
    """The most work left in seconds for which a table is solved: that of the job, and what it may turn out to be.

    A state depends on states with no more work left, as long as starts fit into a tick. Otherwise all are solved.
    """
    start_s = float(np.max(problem.task.start_s, initial=problem.task.restart_s))
    if start_s > tick_s:
        return problem.deadline_h * HOUR_S + tick_s
    lost_s = start_s * float(np.max(problem.task.speed))
    return _MOST_TIMES_WORK * problem.work_h * HOUR_S + _MORE_TICKS * tick_s + lost_s


def _after_refusal(model: SpellModel, ends: Floats, tick_s: float) -> tuple[Floats, Floats]:
    """Probable state of a zone by the time since it refused.

    Args:
        model: How long the zone's spells last.
        ends: Probability that a spell ends within a tick; shape (kinds, bins of age).
        tick_s: Length of a tick, seconds.

    Returns:
        Probability that it is up, by bin of the time since then, shape (bins,); and that of each age of its spell,
        if it is up, shape (bins since, bins of age). The last bin is for any time.
    """
    bins, onward = len(AGE_BINS_S), onward_in(tick_s)
    # A refusal shows that it is down, not since when.
    state = np.zeros((2, bins))
    state[DOWN] = model.ages(DOWN)
    up_since, ages = np.empty(bins), np.empty((bins, bins))
    middle_s = np.append((AGE_BINS_S[:-1] + AGE_BINS_S[1:]) / 2.0, np.inf)
    at, tick = 0, 0
    while at < bins - 1:
        state = a_tick_later(state, ends, onward)
        tick += 1
        while at < bins - 1 and tick * tick_s >= middle_s[at]:
            up_since[at], ages[at] = state[UP].sum(), state[UP] / state[UP].sum()
            at += 1
    up_since[-1], ages[-1] = model.share_up, model.ages(UP)
    return up_since, ages


@dataclass(frozen=True)
class Question:
    """Input of a table, as hashable values, so that each table is solved once.

    Attributes:
        zones: Name and place of each zone.
        spot_usd: Expected price of a spot machine in each zone, USD per hour.
        on_demand_usd: Price of an on-demand machine, USD per hour.
        work_h: Hours of work on one machine.
        deadline_h: Hours from the start to the deadline.
        restart_h: Hours from the start of a machine until it works.
        checkpoint_bytes: Size of the checkpoint that a move transfers, bytes.
        models: Hazards and factors by part of the day of each zone, as bytes.
        begins_s: Start of the job in seconds since 1970.
        ask_every_s: Seconds between requests to other zones while a machine is held.
        gamma: USD of expected cost that a USD of standard deviation is worth.
        bucket: Place where checkpoints are stored; None: the place of the machine that saved them.
        speed: Speed of each zone's machine against that of an on-demand machine; empty: they are as fast.
        look_s: Seconds of a machine that a look at a zone costs; infinity: no zone is watched.
    """

    zones: tuple[tuple[str, Place], ...]
    spot_usd: tuple[float, ...]
    on_demand_usd: float
    work_h: float
    deadline_h: float
    restart_h: float
    checkpoint_bytes: int
    models: tuple[tuple[bytes, bytes], ...]
    begins_s: float
    ask_every_s: float
    gamma: float
    bucket: Place | None = None
    speed: tuple[float, ...] = ()
    look_s: float = math.inf


@lru_cache(maxsize=64)
def problem_for(question: Question) -> ZonesProblem:
    """The problem of a question over all its zones, from a cache of the last 64."""
    return zones_problem(
        question.zones,
        question.spot_usd,
        question.on_demand_usd,
        work_h=question.work_h,
        deadline_h=question.deadline_h,
        restart_h=question.restart_h,
        checkpoint_bytes=question.checkpoint_bytes,
        egress=EgressPrices(),
        bucket=question.bucket,
        speed=question.speed,
        look_s=question.look_s,
    )


@lru_cache(maxsize=16)
def table_for(question: Question) -> ZoneTable:
    """The table of a question, from a cache of the last 16."""
    models = [
        SpellModel(np.frombuffer(hazards).reshape(2, -1), np.frombuffer(parts).reshape(2, -1))
        for hazards, parts in question.models
    ]
    problem = problem_for(question)
    return solve_zones(
        problem,
        models,
        begins_s=question.begins_s,
        ask_every_s=question.ask_every_s,
        gamma=question.gamma,
        tick_s=zones_tick_s(problem),
    )
