"""The cost of losing a market for an application, by its diversity and its checkpoints (ExoSphere 6.2, 6.4).

Applications run under ExoSphere on the engine: a cluster of machines of one type in several markets, one of which
(or all) is lost at a random moment. Times are relative to a run without losses and saves.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.jobs.job import Job
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.allocation import CoresAndMemory
from ebbtide.policies.exosphere.applications import Application, BagOfTasks, Spark
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay

# 6.2: number of markets: one for low risk aversion, five for medium, ten to fifteen for high.
DIVERSITY = {"low": 1, "medium": 5, "high": 15}
MACHINES = 30
LENGTH_H = 1.0

# Time to write a checkpoint of the cluster's memory, and to read it, seconds.
SAVE_S = 30.0
RESTORE_S = 30.0

# Mean time to revocation in the past: it determines expected lifetimes and the checkpoint interval (4.1).
MTTR_H = 20.0

# A new machine starts within about five minutes (5).
DELAY = StartDelay(20.0, 280.0)

# Durations of an interactive query, seconds; the third is in the claims.
QUERY_S = (60.0, 120.0, 300.0, 600.0, 1800.0)
SHOWN_QUERY_S = 300.0

_TASK_S = 600.0
_TYPE, _VCPUS = "c3.xlarge", 4
_LOW_USD, _SPIKE_USD = 0.03, 2.1
_SPIKE_S = 300.0
_START_S = to_epoch_s("2015-06-01T00:00:00Z")
_PAST_S = 20 * DAY_S
_STEPS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Loss:
    """The loss of markets during a run.

    Attributes:
        markets: Number of markets that the cluster is spread over.
        lost: Number of markets lost together.
        back_h: Hours until they are available again; infinity: not within the run.
    """

    markets: int
    lost: int = 1
    back_h: float = math.inf


@dataclass(frozen=True)
class Workload:
    """A job, and the application that manages it.

    Attributes:
        job: The job that runs.
        spread: Gives the application for a risk aversion.
        notice_s: Revocation notice that the job uses, seconds; 0: none.
        delay: Model of the time until a machine works.
    """

    job: Job
    spread: Callable[..., Application]
    notice_s: float = 0.0
    delay: StartDelay = DELAY


def spark(*, checkpoints: bool, replenish: bool = True) -> Workload:
    """An iterative job with data in memory: saved periodically, or computed again from the beginning."""
    saving = {"save_s": SAVE_S, "restore_s": RESTORE_S} if checkpoints else None
    manager = partial(
        Spark, _cluster(), save_s=SAVE_S if checkpoints else 0.0, replenish_until=1.0 if replenish else 0.0
    )
    return Workload(_job("spark", LENGTH_H * HOUR_S, saving), manager)


def query(length_s: float) -> Workload:
    """A query on data in memory; new machines must first read theirs from the checkpoint."""
    manager = partial(Spark, _cluster(), save_s=0.0, replenish_until=1.0)
    delay = StartDelay(DELAY.request_s, DELAY.boot_s + RESTORE_S)
    return Workload(_job("query", length_s, None), manager, delay=delay)


def bag_of_tasks(*, lazy: bool) -> Workload:
    """Tasks of ten minutes, kept when complete; the current one is saved on a warning, or restarted."""
    # Reporting a complete task takes almost no time, but more than there is without a warning.
    saving = {"save_s": 2.0, "restore_s": 2.0} if lazy else {"save_s": 0.001, "restore_s": 0.0}
    job = _job("bag", LENGTH_H * HOUR_S, saving | {"interval_s": _TASK_S})
    return Workload(job, partial(BagOfTasks, _cluster(), lazy=lazy), notice_s=120.0 if lazy else 0.0)


def overhead(workload: Workload, loss: Loss, *, draws: int = 20, seed: int = 0, started: bool = False) -> float:
    """Mean relative extra time over a run without losses and saves.

    Args:
        workload: The workload that runs.
        loss: The loss of markets during the run.
        draws: Number of random moments of the loss.
        seed: Seed of the moments.
        started: Do not count the time until the first machines have started.
    """
    bare = replace(
        workload,
        job=workload.job.model_copy(update={"checkpoint": None}),
        spread=partial(Spark, _cluster(), save_s=0.0, replenish_until=1.0),
    )
    start_s = _working_after_s(workload) if started else 0.0
    unharmed_s = _run(bare, replace(loss, lost=0), math.inf) - start_s
    length_s = workload.job.steps / MACHINES
    moments_s = np.random.default_rng(seed).uniform(0.1, 1.0, draws) * length_s
    harmed_s = [_run(workload, loss, moment_s) - start_s for moment_s in moments_s.tolist()]
    return float(np.mean(harmed_s)) / unharmed_s - 1.0


def transiency_study(*, draws: int = 20, seed: int = 0) -> dict[str, Any]:
    """Figures 9 and 12, Table 1, and the bag of tasks of Figure 10."""
    given: Mapping[str, Any] = {"draws": draws, "seed": seed}
    high, medium = DIVERSITY["high"], DIVERSITY["medium"]
    all_lost = Loss(high, lost=high, back_h=0.25)
    found: dict[str, Any] = {
        "spark": {
            name: {
                "checkpoints": overhead(spark(checkpoints=True), Loss(count), **given),
                "none": overhead(spark(checkpoints=False), Loss(count), **given),
            }
            for name, count in DIVERSITY.items()
        },
        "table1": {
            f"{'checkpoints' if saved else 'restart'}, {'replenished' if again else 'not replenished'}": overhead(
                spark(checkpoints=saved, replenish=again), Loss(medium), **given
            )
            for saved in (True, False)
            for again in (True, False)
        },
        "bag": {
            "lazy": overhead(bag_of_tasks(lazy=True), Loss(high), **given),
            "restart": overhead(bag_of_tasks(lazy=False), Loss(high), **given),
        },
        "queries": {
            f"{length_s:g}": {
                "one_market": 1.0 + overhead(query(length_s), Loss(high), started=True, **given),
                "all_markets": 1.0 + overhead(query(length_s), all_lost, started=True, **given),
            }
            for length_s in QUERY_S
        },
    }
    found["black_swan"] = {
        "batch": {
            "one_market": 1.0 + found["spark"]["high"]["checkpoints"],
            "all_markets": 1.0 + overhead(spark(checkpoints=True), all_lost, **given),
        },
        "interactive": found["queries"][f"{SHOWN_QUERY_S:g}"],
    }
    return found


def _cluster() -> CoresAndMemory:
    return CoresAndMemory(MACHINES * _VCPUS, 0.0)


def _job(name: str, length_s: float, checkpoint: Mapping[str, float] | None) -> Job:
    return Job.parse(
        {
            "name": name,
            "steps": round(MACHINES * length_s / HOUR_S * _STEPS_PER_HOUR),
            "steps_per_hour": {_TYPE: _STEPS_PER_HOUR},
            "coupling": "independent",
            "checkpoint": checkpoint,
        }
    )


def _working_after_s(workload: Workload) -> float:
    return workload.delay.request_s + workload.delay.boot_s


def _run(workload: Workload, loss: Loss, lost_after_s: float) -> float:
    """Duration of one run, seconds, with the loss `lost_after_s` seconds after the first machines start."""
    # A cluster in one market has another to move to; a cluster that loses all its markets has none.
    zones = string.ascii_lowercase[: max(loss.markets, 2)]
    series = {}
    for place, zone in enumerate(zones):
        times_s, usd = _past(place / len(zones))
        if place < loss.lost and lost_after_s < math.inf:
            times_s.append(_START_S + _working_after_s(workload) + lost_after_s)
            usd.append(_SPIKE_USD)
            if loss.back_h < math.inf:
                times_s.append(times_s[-1] + loss.back_h * HOUR_S)
                usd.append(_LOW_USD)
        market = Market("aws", "us-east-1", f"us-east-1{zone}", _TYPE)
        series[market] = PriceSeries(np.array(times_s), np.array(usd))
    prices = PriceHistory(series, start_s=_START_S - _PAST_S, end_s=_START_S + 100 * HOUR_S)
    billing = replace(billing_preset("ec2-hourly"), notice_s=workload.notice_s)
    scenario = Scenario((workload.job,), prices, billing, delay=workload.delay, catalogue=default_catalogue())
    # Identical markets: without risk aversion the first gets everything, else all get the same.
    application = workload.spread(alpha=0.0 if loss.markets == 1 else 1.0)
    return scenario.run(ExoSphere((application,)), _START_S).makespan_s


def _past(offset: float) -> tuple[list[float], list[float]]:
    """Past prices of a market that was lost for minutes now and then, at its own times, until the start."""
    times_s, usd = [_START_S - _PAST_S], [_LOW_USD]
    spike_s = times_s[0] + (0.5 + offset / 2) * MTTR_H * HOUR_S
    while spike_s + _SPIKE_S < _START_S:
        times_s += [spike_s, spike_s + _SPIKE_S]
        usd += [_SPIKE_USD, _LOW_USD]
        spike_s += MTTR_H * HOUR_S
    return times_s, usd
