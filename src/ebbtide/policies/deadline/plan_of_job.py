"""Fixed data of a job with a deadline: the machines that it is planned for, their prices, and its times."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.deadline.gangs import sizes_of

# Where no deadline is given: starts of machines, first or later ones, for which short jobs are left time.
_DEFAULT_STARTS = 4

# Zones of a table, the cheapest: what it takes to solve grows with their square, and so many are hardly ever all
# without a machine.
_MOST_ZONES = 16


def begun(
    view: View,
    job: JobView,
    memory: dict[str, Any],
    *,
    name: str,
    deadline_s: float,
    times_work: float,
    start_s: float,
    only_best: bool,
) -> dict[str, Any]:
    """Fixed data of a job that begins, as plain values for the policy's memory.

    Args:
        view: What the policy sees.
        job: The job.
        memory: What the policy remembers of all jobs.
        name: The policy's name.
        deadline_s: Seconds from the start of the run to the deadline; infinity: `times_work` decides.
        times_work: Deadline as a multiple of the longest job's work, where none is given.
        start_s: Seconds kept in reserve for the start of a machine.
        only_best: Whether only the market that is cheapest at the start is asked.

    Raises:
        InputError: The deadline cannot be kept, or no market with a known on-demand price can run the job.
    """
    known = [market for market in view.markets if view.on_demand_price(market) is not None]
    able = [market for market in known if view.steps_per_s(job.job, market) > 0]
    if not able:
        raise InputError(
            f"no market with a known on-demand price can run job {job.job.name}; policy {name} needs one as the "
            "way out"
        )
    sizes = sizes_of(job.job)
    mean = {market: _mean_prices(view, market) for market in able}
    hours = {market: hours_of(view, job.job, market, job.steps_left) for market in able}
    vcpus = view.machine(able[0]).vcpus
    restart_s = start_s + job.job.restore_s(vcpus)
    if math.isinf(deadline_s):
        longest_s = memory.setdefault("longest_h", _longest_h(view)) * HOUR_S
        deadline_s = max(times_work * longest_s, longest_s + _DEFAULT_STARTS * restart_s)
    left_s = deadline_s - (view.now_s - memory["began_s"])
    in_time = [market for market in able if hours[market] * HOUR_S + 2.0 * restart_s <= left_s]
    if not in_time:
        raise InputError(
            f"job {job.job.name} cannot be done in {_in_words(left_s)}: on the fastest machine it takes "
            f"{_in_words(min(hours.values()) * HOUR_S)}, and a start {restart_s / 60:.0f} min"
        )
    best = min(in_time, key=lambda market: (mean[market].paid_usd * hours[market], market))
    alike = [market for market in in_time if math.isclose(hours[market], hours[best], rel_tol=1e-6)]
    if only_best:
        alike = [best]
    # In the order of the view, so that ties are broken as without a limit.
    most = _MOST_ZONES // len(sizes)
    cheapest = {best, *sorted(alike, key=lambda market: (mean[market].paid_usd, market))[:most]}
    alike = [market for market in alike if market in cheapest]
    gangs = [(market, size) for market in alike for size in sizes]
    fastest = job.job.speedup_of(sizes[0])
    listed = [view.on_demand_price(market) or math.inf for market in alike]
    return {
        "zones": [[getattr(market, field) for field in MARKET_FIELDS] for market, _ in gangs],
        "machines": [size for _, size in gangs],
        "speed": [job.job.speedup_of(size) / fastest for _, size in gangs],
        "spot_usd": [mean[market].held_usd * size for market, size in gangs],
        "on_demand_usd": min(listed) * sizes[0],
        "work_h": hours[best],
        "deadline_h": left_s / HOUR_S,
        "ends_s": memory["began_s"] + deadline_s,
        "restart_s": restart_s,
        "begins_s": view.now_s,
        "can_save": job.job.checkpoint is not None,
        "checkpoint_bytes": job.checkpoint_bytes,
        "bucket": list(job.job.bucket.place) if job.job.bucket else None,
        "zone": gangs.index((best, sizes[0])),
        "fell_s": view.now_s,
    }


def hours_of(view: View, job: Job, market: Market, steps: float) -> float:
    """Hours of work of some steps on as many machines of a market as the job is planned for at most."""
    return steps / (view.steps_per_s(job, market) * job.speedup_of(sizes_of(job)[0])) / HOUR_S


class _MeanPrices(NamedTuple):
    """Mean prices of a market over the last day, USD per hour: no spot machine is held above the list price.

    Attributes:
        held_usd: That of a spot machine while it costs no more than the list price, which it is at most.
        paid_usd: That of a spot machine, or of one on demand while the spot machine costs more.
    """

    held_usd: float
    paid_usd: float


def _mean_prices(view: View, market: Market) -> _MeanPrices:
    listed_usd = view.on_demand_price(market) or math.inf
    times_s, prices = view.past_prices(market, DAY_S)
    if not (prices > listed_usd).any():
        mean = view.mean_price(market, DAY_S)
        return _MeanPrices(mean, mean)
    held_s = np.diff(times_s, append=view.now_s)
    within = prices <= listed_usd
    paid_usd = np.minimum(prices, listed_usd)
    if not held_s[within].sum() > 0.0:
        return _MeanPrices(listed_usd, listed_usd)
    return _MeanPrices(
        float(np.average(prices[within], weights=held_s[within])), float(np.average(paid_usd, weights=held_s))
    )


def _longest_h(view: View) -> float:
    """Hours of work of the longest job, each on the machines with the least cost of a step at list prices."""
    found = []
    for job in view.jobs:
        prices = [
            (price / rate, hours_of(view, job.job, market, job.job.steps))
            for market in view.markets
            if (rate := view.steps_per_s(job.job, market)) > 0
            and (price := view.on_demand_price(market)) is not None
        ]
        found.append(min(prices, default=(0.0, 0.0))[1])
    return max(found)


def _in_words(duration_s: float) -> str:
    return f"{duration_s / HOUR_S:.1f} h" if duration_s >= HOUR_S else f"{duration_s / 60:.0f} min"
