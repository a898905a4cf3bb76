"""Cookbooks solved from prices that were seen: the same for the same prices, such as after a restart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.price_chain import PriceChain
from ebbtide.jobs.job import Amdahl, Job, Phases
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve

# A cookbook has so many levels of work left.
_LEVELS = 60
TICK_S = 300.0
# A chain of prices is fitted to no less; below a week it is that of all hours.
LEAST_HISTORY_S = DAY_S


@dataclass(frozen=True)
class Shortages:
    """Shortages of a market.

    Attributes:
        life_s: Mean time with machines, seconds.
        lasts_s: Mean time without machines, seconds.
    """

    life_s: float
    lasts_s: float


@dataclass(frozen=True)
class StepCharges:
    """Times of a cookbook's steps, and the charging of machines in them.

    Attributes:
        started_s: Start of the work, seconds since 1970.
        steps: Number of steps.
        step_s: Length of a step, seconds.
        count: Number of steps in a charge period.
        whole: Whether a machine is charged for a step or more at once, at the price at its beginning.
        ahead: Ticks between a decision and the charge that follows.
        listed: Price on demand, USD per hour; None: no machines are rented on demand.
        shortages: Shortages of the market, which come and go as in a Markov chain; None: it always has machines.
        short_usd_per_hour: What a machine is taken to cost in a shortage, USD per hour.
    """

    started_s: float
    steps: int
    step_s: float
    count: int
    whole: bool
    ahead: int
    listed: float | None
    shortages: Shortages | None
    short_usd_per_hour: float


@lru_cache(maxsize=64)
def solved_from_prices(
    seen: tuple[bytes, bytes], workflow_json: str, charged: StepCharges, most: int, risk_aversion: float
) -> Cookbook:
    """The cookbook for prices that were seen: the same whoever asks, such as a policy after a restart.

    Args:
        seen: Times of changes and prices, as bytes of floating numbers.
        workflow_json: The work, as JSON.
        charged: Steps and charges.
        most: Largest number of machines at once.
        risk_aversion: Weight of the standard deviation.

    Raises:
        InputError: The work cannot be done in time.
    """
    workflow = Workflow.model_validate_json(workflow_json)
    times_s, usd = (np.frombuffer(part) for part in seen)
    chain = PriceChain.fit(
        PriceSeries(times_s, usd), -math.inf, charged.started_s, tick_s=TICK_S, least_s=LEAST_HISTORY_S
    )
    begins_s = charged.started_s - charged.ahead * TICK_S
    at = charged.ahead if charged.whole else None
    charges = ChargeModel(chain.prices, *chain.steps(begins_s, charged.steps, charged.step_s, charged_at=at))
    if (short := charged.shortages) is not None:
        comes, goes = (-math.expm1(-charged.step_s / mean_s) for mean_s in (short.lasts_s, short.life_s))
        charges = charges.with_shortages(comes, goes, charged.short_usd_per_hour * charged.step_s / HOUR_S)
    count = charged.count
    if count > 1:
        charges = ChargeModel(
            charges.prices, charges.transition, charges.charge * count, charges.charge_variance * count**2
        )
    if charged.listed is not None:
        charges = charges.with_on_demand(charged.listed * charged.step_s * count / HOUR_S)
    return solve(
        CookbookProblem(
            workflow,
            charges,
            step_h=charged.step_s / HOUR_S,
            most=most,
            work_unit_h=workflow.work_h / _LEVELS,
            risk_aversion=risk_aversion,
            charge_steps=count,
        )
    )


def workflow_of(job: Job, steps_per_s: float, where: str) -> Workflow:
    """A job as a cookbook sees it: hours of work on one machine, phase by phase.

    Args:
        job: The job; what restoring takes is what a machine that is added needs to begin.
        steps_per_s: Speed of one machine.
        where: What the machine is, for errors.

    Raises:
        InputError: It is not known how long it takes.
    """
    work_h = job.steps / (steps_per_s * HOUR_S)
    # A measured speed is never quite the same: without the last digits one cookbook serves for longer.
    work_h = float(f"{work_h:.7g}")
    if not 0.0 < work_h < 1e6:
        raise InputError(
            f"how long job {job.name} takes on {where} is not known; a cookbook needs its steps and speed"
        )
    phases: list[tuple[float, Any]] = [(1.0, job.speedup)]
    if isinstance(job.speedup, Phases):
        total = sum(phase.share for phase in job.speedup.phases)
        phases = [(phase.share / total, phase.speedup) for phase in job.speedup.phases]
    jobs = tuple(
        WorkflowJob(name=f"phase {number}", work_h=share * work_h, speedup=speedup or Amdahl(parallel=1.0))
        for number, (share, speedup) in enumerate(phases)
    )
    restore_h = job.restore_s() / HOUR_S
    return Workflow(name=job.name, jobs=jobs, start_work_h=restore_h)
