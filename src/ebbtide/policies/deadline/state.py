"""One job under a deadline as rules see it: time, what is held, and when each zone refused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.forecasts.spells.fitting import AGE_BINS_S, SpellModel
from ebbtide.market.egress import EgressPrices
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.deadline.zone_runs import GO_ON_DEMAND, WAIT, by_table, next_cheapest
from ebbtide.policies.deadline.zone_solving import ON_DEMAND, SPOT
from ebbtide.policies.deadline.zone_table import ZoneTable, solve_zones
from ebbtide.policies.deadline.zones import ZonesProblem, zones_problem


@dataclass(frozen=True)
class DeadlineState:
    """What a rule answers to.

    Attributes:
        problem: Zones, prices and places; its work is that at the start.
        left_s: To the deadline.
        slack_s: Of it, beyond the work left.
        until_next_s: Until the rule is asked again.
        spot_usd: An hour's now; shape (zones,).
        zone: Held, or held last.
        held: Nothing, on-demand or spot.
        age_s: Of that zone's spell.
        since_refused_s: Of each zone; 0: just now.
        may_ask: Whether others may be asked while a spot machine is held.
        fresh: Whether nothing was begun yet.
        fell_place: Where the last machine was taken; -1: none was.
        was_safety: Whether the safety net held before.
    """

    problem: ZonesProblem
    left_s: float
    slack_s: float
    until_next_s: float
    spot_usd: Floats
    zone: int
    held: int
    age_s: float
    since_refused_s: Floats
    may_ask: bool
    fresh: bool
    fell_place: int
    was_safety: bool


def greedy_answer(state: DeadlineState) -> int:
    """Spot while it can be had, the cheapest first; else nothing until the last safe moment, then on demand."""
    restart_s = state.problem.restart_h * HOUR_S
    if state.was_safety or (state.held == ON_DEMAND and state.slack_s < 2.0 * restart_s):
        return GO_ON_DEMAND
    if state.held == SPOT:
        return state.zone if state.slack_s >= restart_s else GO_ON_DEMAND
    for zone in np.argsort(state.spot_usd, kind="stable"):
        start_s = restart_s if state.fresh else _start_s(state, int(zone))
        if state.since_refused_s[zone] > 0.0 and state.slack_s - start_s >= restart_s:
            return int(zone)
    return WAIT if state.slack_s - state.until_next_s >= restart_s else GO_ON_DEMAND


def progress_answer(state: DeadlineState) -> int:
    """Uniform Progress; with several zones it fails over to the next-cheapest."""
    problem = state.problem
    return next_cheapest(
        state.spot_usd,
        np.array(problem.place_of),
        state.until_next_s,
        problem.work_h * HOUR_S,
        problem.deadline_h * HOUR_S,
        problem.restart_h * HOUR_S,
        problem.start_s,
        state.left_s,
        state.slack_s,
        state.zone,
        state.held,
        state.since_refused_s,
        state.fell_place,
        state.was_safety,
        state.fresh,
    )


def table_answer(table: ZoneTable, state: DeadlineState) -> int:
    """`deadline`: by what each choice costs in expectation."""
    problem = table.problem
    return by_table(
        table.usd,
        state.until_next_s,
        table.tick_s,
        table.step_s,
        AGE_BINS_S,
        problem.restart_h * HOUR_S,
        problem.start_s,
        problem.on_demand_usd_per_hour,
        state.spot_usd,
        np.array(problem.spot_usd_per_hour),
        table.lasts_s,
        np.array(problem.place_of),
        problem.egress_usd,
        table.ages,
        state.left_s,
        state.slack_s,
        state.zone,
        state.held,
        state.age_s,
        state.since_refused_s,
        state.may_ask,
        state.fresh,
    )


def _start_s(state: DeadlineState, zone: int) -> float:
    places = state.problem.place_of
    return float(state.problem.start_s[places[state.zone], places[zone]])


@dataclass(frozen=True)
class Question:
    """What a table is solved for, in values that can be compared: the same question is solved once.

    Attributes:
        markets: The zones.
        spot_usd, on_demand_usd: An hour's.
        work_h, deadline_h, restart_h: The job's.
        checkpoint_bytes: What a move takes along.
        models: Hazards and parts of the day of each zone, as bytes.
        begins_s: When it starts.
        ask_every_s, gamma: As in `solve_zones`.
    """

    markets: tuple[Market, ...]
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

    def problem(self) -> ZonesProblem:
        """Of all its zones."""
        return zones_problem(
            [(str(market), market.place) for market in self.markets],
            self.spot_usd,
            self.on_demand_usd,
            work_h=self.work_h,
            deadline_h=self.deadline_h,
            restart_h=self.restart_h,
            checkpoint_bytes=self.checkpoint_bytes,
            egress=EgressPrices(),
        )


@lru_cache(maxsize=16)
def table_for(question: Question) -> ZoneTable:
    """The table of a question."""
    models = [
        SpellModel(np.frombuffer(hazards).reshape(2, -1), np.frombuffer(parts).reshape(2, -1))
        for hazards, parts in question.models
    ]
    return solve_zones(
        question.problem(),
        models,
        begins_s=question.begins_s,
        ask_every_s=question.ask_every_s,
        gamma=question.gamma,
    )
