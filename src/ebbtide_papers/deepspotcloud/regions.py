"""Moves at the scale of a region: every market that can run a job, billed by the second as today.

A GPU job runs on machines with K80, P100 or V100 (Dynamic Pricing, Table 1: ResNet-50) and uses all GPUs of a
machine; a CPU job runs on all others with enough memory, at a speed by their cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.market.catalogue import Catalogue, InstanceType
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.deepspotcloud.study import CHECKPOINT, MigrationStudy, OnProgress, migration_study
from ebbtide_papers.dynamic_pricing.study import TABLE_ONE

BILLING = "ec2-second"

_MODEL = "ResNet-50"
_STEPS_PER_HOUR = 3_600.0
_CPU_CORES = (4, 16)
_CPU_MEMORY_GIB = 8.0


@dataclass(frozen=True)
class MarketChoice:
    """The value of choosing a market: USD per step over the lowest at the same hour, means over time.

    NaN where no market has a price after the first day.

    Attributes:
        median_market: Ratio of the median market.
        median_zone: Ratio of the median zone of the cheapest market's type.
    """

    median_market: float
    median_zone: float


@dataclass(frozen=True)
class RegionFound:
    """The value of choosing a market and of moving, for one kind of job."""

    choice: MarketChoice
    study: MigrationStudy


def region_study(
    prices: PriceHistory,
    catalogue: Catalogue,
    *,
    starts: int,
    seed: int,
    workers: int = 2,
    on_progress: OnProgress | None = None,
) -> dict[str, RegionFound]:
    """Every rule for moving, for a GPU job and for a CPU job, over all markets that suit them.

    Args:
        prices: Price history of a region.
        catalogue: Instance types and their list prices.
        starts: Number of start times.
        seed: Seed of all random numbers.
        workers: Number of parallel threads.
        on_progress: Called with the current activity.

    Returns:
        Results by kind of job; a kind with fewer than two markets is left out.

    Raises:
        InputError: Neither kind has two markets.
    """
    types = {(market.cloud, market.instance_type) for market in prices}
    machines = [catalogue.instance_type(*key) for key in sorted(types)]
    kinds = {"gpu": _gpu_rates(machines), "cpu": _cpu_rates(machines)}
    found = {}
    for kind, rates in kinds.items():
        suitable = [market for market in prices if market.instance_type in rates]
        if len(suitable) < 2:
            continue
        if on_progress:
            on_progress(f"{kind} jobs, {len(suitable)} markets")
        chosen = prices.select(suitable)
        study = migration_study(
            chosen,
            partial(_job, kind, rates),
            billing=BILLING,
            starts=starts,
            seed=seed,
            workers=workers,
            catalogue=catalogue,
        )
        found[kind] = RegionFound(_choice(chosen, rates), study)
    if not found:
        raise InputError("these prices have no two markets that suit a GPU job or a CPU job")
    return found


def _choice(prices: PriceHistory, rates: dict[str, float]) -> MarketChoice:
    hours = np.arange(prices.start_s + DAY_S, prices.end_s, 6 * HOUR_S)
    types = np.array([market.instance_type for market in prices])
    usd = np.stack([prices[market].at_each(hours) / rates[market.instance_type] for market in prices])
    seen = ~np.isnan(usd).all(axis=0)
    if not seen.any():
        return MarketChoice(math.nan, math.nan)
    hours, usd = hours[seen], usd[:, seen]
    known = np.where(np.isnan(usd), np.inf, usd)
    cheapest = known.argmin(axis=0)
    least = known[cheapest, np.arange(len(hours))]
    zones = [np.nanmedian(usd[types == types[best], hour]) for hour, best in enumerate(cheapest)]
    return MarketChoice(float(np.mean(np.nanmedian(usd, axis=0) / least)), float(np.mean(np.array(zones) / least)))


def _gpu_rates(machines: list[InstanceType]) -> dict[str, float]:
    """Steps per hour by instance type, in units of one V100's."""
    speeds = TABLE_ONE[_MODEL]
    rates = {}
    for machine in machines:
        gpu = (machine.accelerator or "").removeprefix("NVIDIA ").lower()
        if gpu in speeds:
            rates[machine.name] = _STEPS_PER_HOUR * machine.accelerator_count * speeds[gpu] / speeds["v100"]
    return rates


def _cpu_rates(machines: list[InstanceType]) -> dict[str, float]:
    """Steps per hour by instance type, in units of sixteen cores'."""
    least, most = _CPU_CORES
    return {
        machine.name: _STEPS_PER_HOUR * machine.vcpus / most
        for machine in machines
        if not machine.accelerator_count
        and least <= machine.vcpus <= most
        and machine.memory_gib >= _CPU_MEMORY_GIB
    }


def _job(kind: str, rates: dict[str, float], hours: float) -> Job:
    return Job(name=kind, steps=round(hours * _STEPS_PER_HOUR), steps_per_hour=rates, checkpoint=CHECKPOINT)
