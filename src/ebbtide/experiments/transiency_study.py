"""What the loss of a market costs an application, by how it is spread and how it saves (ExoSphere 6.2, 6.4).

Runs on the engine: a cluster of machines of one type in so many markets, one of which (or all) is lost at a moment
drawn at random. Time is over that of a run in which nothing is lost or saved.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ebbtide.execution.start_delay import StartDelay
from ebbtide.experiments.scenario import Scenario
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.exosphere.cluster import HoldPortfolio
from ebbtide.utc import HOUR_S, to_epoch_s
from ebbtide.workloads.job import Job

# 6.2: low aversion to risk is one market, medium five, high some ten to fifteen.
DIVERSITY = {"low": 1, "medium": 5, "high": 15}

MACHINES = 30
LENGTH_H = 1.0

# Writing a checkpoint of the cluster's memory, reading it, and the portfolio's time to revocation: from the first
# and the last follows how often it is written (4.1).
SAVE_S = 30.0
RESTORE_S = 30.0
MTTR_H = 20.0

# A new machine comes after some five minutes (5).
_DELAY = StartDelay(20.0, 280.0)

_TASK_S = 600.0
_TYPE = "c3.xlarge"
_LOW_USD, _SPIKE_USD = 0.03, 2.1
_START_S = to_epoch_s("2015-06-01T00:00:00Z")
_STEPS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Loss:
    """What is lost.

    Attributes:
        markets: How many the cluster is spread over.
        lost: How many of them go, together.
        back_h: After so long they are there again; infinity: not within the run.
    """

    markets: int
    lost: int = 1
    back_h: float = math.inf


def interval_s(save_s: float = SAVE_S, mttr_s: float = MTTR_H * HOUR_S) -> float:
    """How often to save: the square root of twice the time to save times the time to revocation (4.1)."""
    return math.sqrt(2.0 * save_s * mttr_s)


def spark(*, checkpoints: bool) -> Job:
    """An iterative job whose data are in memory: saved every so often, or computed again from the beginning."""
    saving = {"save_s": SAVE_S, "restore_s": RESTORE_S, "interval_s": interval_s()} if checkpoints else None
    return _job("spark", saving)


def bag_of_tasks(*, lazy: bool) -> Job:
    """Tasks of ten minutes, kept when complete; the one under way is saved on a warning, or begun again."""
    # Telling of a complete task takes next to no time, but more than no warning gives.
    saving = {"save_s": 2.0, "restore_s": 2.0} if lazy else {"save_s": 0.001, "restore_s": 0.0}
    return _job("bag", saving | {"interval_s": _TASK_S})


def overhead(
    job: Job, loss: Loss, *, notice_s: float = 0.0, replenish: bool = True, draws: int = 20, seed: int = 0
) -> float:
    """Mean time over that of a run that loses and saves nothing, less one.

    Args:
        job: What runs.
        loss: What it loses.
        notice_s: Warning that its machines get and the job uses; 0: none, or none that it uses.
        replenish: Rent other machines for those that are lost.
        draws: Moments of the loss.
        seed: Of the moments.
    """
    bare = job.model_copy(update={"checkpoint": None})
    unharmed_s = _run(bare, Loss(loss.markets, lost=0), math.inf, notice_s, replenish)
    moments = np.random.default_rng(seed).uniform(0.1, 1.0, draws) * LENGTH_H
    harmed_s = [_run(job, loss, float(moment), notice_s, replenish) for moment in moments]
    return float(np.mean(harmed_s)) / unharmed_s - 1.0


def transiency_study(*, draws: int = 20, seed: int = 0) -> dict[str, Any]:
    """Figures 9 and 12, Table 1, and the bag of tasks of Figure 10."""
    given: Mapping[str, Any] = {"draws": draws, "seed": seed}
    high, medium = DIVERSITY["high"], DIVERSITY["medium"]
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
                spark(checkpoints=saved), Loss(medium), replenish=again, **given
            )
            for saved in (True, False)
            for again in (True, False)
        },
        "bag": {
            "lazy": overhead(bag_of_tasks(lazy=True), Loss(high), notice_s=120.0, **given),
            "restart": overhead(bag_of_tasks(lazy=False), Loss(high), **given),
        },
    }
    all_lost = overhead(spark(checkpoints=True), Loss(high, lost=high, back_h=0.25), **given)
    found["black_swan"] = {
        "one_market": 1.0 + found["spark"]["high"]["checkpoints"],
        "all_markets": 1.0 + all_lost,
    }
    return found


def _job(name: str, checkpoint: Mapping[str, float] | None) -> Job:
    return Job.parse(
        {
            "name": name,
            "steps": round(MACHINES * LENGTH_H * _STEPS_PER_HOUR),
            "steps_per_hour": {_TYPE: _STEPS_PER_HOUR},
            "coupling": "independent",
            "checkpoint": checkpoint,
        }
    )


def _run(job: Job, loss: Loss, lost_h: float, notice_s: float, replenish: bool) -> float:
    """Seconds that one run takes."""
    # One market more than the cluster is in: where to go when all of its own are lost.
    zones = string.ascii_lowercase[: loss.markets + 1]
    markets = [Market("aws", "us-east-1", f"us-east-1{zone}", _TYPE) for zone in zones]
    end_s = _START_S + 100 * HOUR_S
    series = {}
    for place, market in enumerate(markets):
        times_s, usd = [_START_S], [_LOW_USD]
        everywhere = loss.lost == loss.markets > 1 and place == loss.markets
        if (place < loss.lost or everywhere) and lost_h < math.inf:
            times_s.append(_START_S + (_DELAY.request_s + _DELAY.boot_s) + lost_h * HOUR_S)
            usd.append(_SPIKE_USD)
            if loss.back_h < math.inf:
                times_s.append(times_s[-1] + loss.back_h * HOUR_S)
                usd.append(_LOW_USD)
        series[market] = PriceSeries(np.array(times_s), np.array(usd))
    prices = PriceHistory(series, start_s=_START_S, end_s=end_s)
    machines = dict.fromkeys(markets[: loss.markets], MACHINES // loss.markets) | {markets[-1]: 0}
    billing = replace(billing_preset("ec2-hourly"), notice_s=notice_s)
    scenario = Scenario((job,), prices, billing, delay=_DELAY, catalogue=default_catalogue())
    return scenario.run(HoldPortfolio(machines, replenish=replenish), _START_S).makespan_s
