"""The kinds of work of `ebbtide benchmark`, sized by a record's machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide.backtesting.benchmark_records import BenchmarkRecord
from ebbtide.base.utc import DAY_S
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.common_fields import Decides
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import JobList, ListedJob, Runnable
from ebbtide.jobs.sweep import Sweep

ONE_JOB, ONE_JOB_DEADLINE, SWEEP, JOBS_WITH_SLOS, CLUSTER = KINDS = (
    "one job",
    "one job with a deadline and a budget",
    "sweep",
    "jobs with SLOs",
    "cluster",
)

# Hours of work on the machine whose work is cheapest, and the deadline.
_JOB_H, _DEADLINE_H = 24.0, 36.0
# The budget of a job, as a multiple of its cost on that machine on demand.
_BUDGET = 1.25
# Trials of a sweep, hours of each, and how many are trained to their end.
_TRIALS, _TRIAL_H, _CHOSEN = 8, 4.0, 3
# Hours of work and of time for each job of a list.
_SLOS_H = ((3.0, 8.0), (6.0, 12.0), (8.0, 24.0), (12.0, 20.0))
# Machines of a cluster, and hours of work of each.
_MACHINES, _CLUSTER_H = 4, 12.0

# Steps of an hour on the machine whose work is cheapest.
_STEPS_PER_H = 3_600

# In an auction a start's cost is luck: whether a spike comes in an hour that is free until then. It has so many
# times as many first starts.
AUCTION_STARTS = 2

# What runs may take beyond the longest of these, so that they can end within a record: days.
_ROOM_D = 7.0


@dataclass(frozen=True)
class BenchmarkWork:
    """Work of one kind on one record.

    Attributes:
        kind: One of `KINDS`.
        asked: The work as a user asks for it.
        jobs: Its jobs.
        due_h: When each should be done, hours from the start; infinity: whenever it is.
        curves: What each job's metric will be; empty: jobs tell none.
        starts_s: When runs begin, seconds since 1970.
    """

    kind: str
    asked: Runnable
    jobs: tuple[Job, ...]
    due_h: tuple[float, ...]
    curves: tuple[Curve, ...]
    starts_s: tuple[float, ...]

    @property
    def promises(self) -> bool:
        """True if the work has a budget, or a deadline for any job."""
        return self.asked.budget_usd is not None or any(map(math.isfinite, self.due_h))


def works_of(record: BenchmarkRecord, kinds: Sequence[str], starts: int, seed: int) -> tuple[BenchmarkWork, ...]:
    """The works of some kinds on a record; without those that need more machines at once than there ever are.

    Args:
        record: The record.
        kinds: Kinds of work.
        starts: Number of starts, the same for each kind; fewer are the first of more.
        seed: Seed of the starts, and of the sweep's metrics.
    """
    rates, list_usd_per_hour = _rates(record)
    room_s = min(_ROOM_D * DAY_S, (record.prices.end_s - record.begins_s) * 0.5)
    drawn = np.random.default_rng(seed).uniform(record.begins_s, record.prices.end_s - room_s, starts)
    starts_s = tuple(np.floor(drawn).tolist())
    common: dict[str, object] = {
        "decides": Decides.PRICE,
        "billing": record.billing.name,
        "steps_per_hour": rates,
        "checkpoint": {"save_s": 20.0, "restore_s": 45.0, "size_bytes": 1_000_000_000},
    }
    found = []
    for kind in kinds:
        if kind == CLUSTER and record.most_machines < _MACHINES:
            continue
        asked = _asked(kind, common, list_usd_per_hour, with_capacity=record.availability is not None)
        jobs = asked.jobs()
        due_h = _due_h(asked)
        curves = _curves(jobs, seed) if kind == SWEEP else ()
        found.append(BenchmarkWork(kind, asked, jobs, due_h, curves, starts_s))
    return tuple(found)


def _rates(record: BenchmarkRecord) -> tuple[dict[str, float], float]:
    """Steps an hour by instance type, and the list price of the one whose work is cheapest at the start."""
    usd: dict[str, float] = {}
    for market, series in record.prices.items():
        at_s = max(record.begins_s, float(series.times_s[0]))
        each = series.at(at_s) / record.steps_per_hour[market.instance_type]
        usd[market.instance_type] = min(each, usd.get(market.instance_type, math.inf))
    cheapest = min(usd, key=lambda name: (usd[name], name))
    listed = [
        price
        for market in record.prices
        if market.instance_type == cheapest
        and (price := record.catalogue.on_demand_usd_per_hour(market, record.begins_s)) is not None
    ]
    one = record.steps_per_hour[cheapest]
    rates = {name: _STEPS_PER_H * speed / one for name, speed in record.steps_per_hour.items()}
    return rates, min(listed)


def _asked(kind: str, common: dict[str, object], list_usd_per_hour: float, *, with_capacity: bool) -> Runnable:
    if kind == ONE_JOB:
        return _single("job", _JOB_H, common)
    if kind == ONE_JOB_DEADLINE:
        decides = Decides.CAPACITY if with_capacity else Decides.PRICE
        terms = {
            "deadline_h": _DEADLINE_H,
            "budget_usd": _BUDGET * _JOB_H * list_usd_per_hour,
            "decides": decides,
        }
        return _single("job", _JOB_H, common | terms)
    if kind == SWEEP:
        return Sweep.model_validate(
            common
            | {
                "name": "sweep",
                "command": "train --setting {setting}",
                "grid": {"setting": list(range(_TRIALS))},
                "metric": "loss",
                "mcnt": _CHOSEN,
                "max_trial_steps": round(_TRIAL_H * _STEPS_PER_H),
            }
        )
    if kind == CLUSTER:
        return _single("cluster", _MACHINES * _CLUSTER_H, common | {"machines": _MACHINES})
    listed = [
        ListedJob(work=_single(f"job-{number}", work_h, common | {"deadline_h": due_h}))
        for number, (work_h, due_h) in enumerate(_SLOS_H)
    ]
    return JobList(name="jobs", listed=tuple(listed), billing=str(common["billing"]))


def _single(name: str, work_h: float, terms: dict[str, object]) -> Sweep:
    steps = round(work_h * _STEPS_PER_H)
    return Sweep.model_validate(terms | {"name": name, "command": "train", "max_trial_steps": steps})


def _due_h(asked: Runnable) -> tuple[float, ...]:
    due = [math.inf if part.deadline_h is None else part.deadline_h for part in asked.parts]
    return tuple(hours for part, hours in zip(asked.parts, due, strict=True) for _ in part.trials())


def _curves(jobs: Sequence[Job], seed: int) -> tuple[Curve, ...]:
    """Losses that fall by a power of the steps to ends that differ, with some noise."""
    random = np.random.default_rng([seed, len(jobs)])
    curves = []
    for job in jobs:
        at = np.linspace(0.01, 1.0, 100)
        end, fall, power = random.uniform(0.2, 0.6), random.uniform(0.5, 1.5), random.uniform(0.4, 1.0)
        loss = end + fall * ((at + 0.02) ** -power - 1.02**-power) / 20.0 + random.normal(0.0, 0.003, len(at))
        curves.append(Curve("benchmark", job.name, at * job.steps, loss, float(job.steps)))
    return tuple(curves)
