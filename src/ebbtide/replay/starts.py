"""Start times of backtests, drawn so that runs can end inside the history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ebbtide.base.utc import HOUR_S, Time, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory

# Room for a run beyond its work alone: waiting, moving, running again what was lost.
_ALLOWANCE = 1.5


def work_s(job: Job, prices: PriceHistory, catalogue: Catalogue) -> dict[str, float]:
    """Seconds of pure work that the job is on each instance type of the history that can run it.

    Raises:
        InputError: None can.
    """
    seconds: dict[str, float] = {}
    for market in prices:
        rate = job.steps_per_s(market, catalogue)
        if rate > 0:
            seconds[market.instance_type] = job.steps / (rate * job.speedup_of(job.most_machines))
    if not seconds:
        here = ", ".join(sorted({market.instance_type for market in prices}))
        raise InputError(
            f"job {job.name} can never finish: it has no rate for any instance type of these prices ({here}); "
            "name one in steps_per_hour, or give other_steps_per_hour_per_vcpu"
        )
    return seconds


def check_can_finish(job: Job, prices: PriceHistory, max_lifetime_s: float, catalogue: Catalogue) -> None:
    """Raise `InputError` for a job that no machine here could ever finish.

    Either its work is longer than the record, or it cannot be checkpointed and is longer than the provider
    lets any machine live.
    """
    seconds = work_s(job, prices, catalogue)
    fastest = min(seconds, key=seconds.__getitem__)
    span_s = prices.end_s - prices.start_s
    if seconds[fastest] > span_s:
        raise InputError(
            f"job {job.name} can never finish: {job.steps} steps take {seconds[fastest] / HOUR_S:.1f} h on "
            f"{fastest}, the fastest here, and the history covers {span_s / HOUR_S:.1f} h"
        )
    if job.checkpoint is None and seconds[fastest] > max_lifetime_s:
        raise InputError(
            f"job {job.name} can never finish: it cannot be checkpointed, takes {seconds[fastest] / HOUR_S:.1f} h "
            f"on {fastest}, the fastest here, and no machine lives longer than {max_lifetime_s / HOUR_S:.1f} h"
        )


def draw_starts(job: Job, prices: PriceHistory, number: int, seed: int, catalogue: Catalogue) -> tuple[float, ...]:
    """Start times in whole seconds, uniform over the part of the history that leaves room for the job.

    That part begins when half of the usable markets have a price. Room is one and a half times the job's work on
    the slowest usable type; where that would use up more than half of the history, on the fastest. Runs that find
    too little room all the same count as unfinished.

    Raises:
        InputError: `number` is not positive.
    """
    if number < 1:
        raise InputError(f"starts is {number}; at least 1 is needed")
    seconds = work_s(job, prices, catalogue)
    begun = sorted(float(prices[m].times_s[0]) for m in prices if m.instance_type in seconds)
    earliest_s = begun[(len(begun) - 1) // 2]
    span_s = prices.end_s - earliest_s
    room_s = _ALLOWANCE * max(seconds.values())
    if room_s > span_s / 2:
        room_s = _ALLOWANCE * min(seconds.values())
    latest_s = max(prices.end_s - room_s, earliest_s)
    random = np.random.default_rng([seed, number])
    drawn = np.floor(random.uniform(earliest_s, latest_s, number))
    return tuple(np.maximum(drawn, earliest_s).tolist())


def given_starts(prices: PriceHistory, times: Sequence[Time]) -> tuple[float, ...]:
    """Start times named by the user.

    Raises:
        InputError: One is outside the history.
    """
    starts = tuple(to_epoch_s(time) for time in times)
    for start_s in starts:
        prices.check_inside(start_s)
    return starts
