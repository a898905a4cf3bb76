"""Timing runs of Dynamic Pricing: each program is tried on each type for a while, so that rates are measured."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ebbtide.market.markets import Market
from ebbtide.policies.api.view import View
from ebbtide.policies.dynamic_pricing.rounds import rented_by_others

# How the names of a sweep's trials end.
_TRIAL = re.compile(r"-\d+$")


def timed_types(
    view: View, cheapest: Mapping[str, Market], quotas: Mapping[str, int], start_s: float, timing_s: float
) -> dict[int, str]:
    """The type on which each job is timed now: until it was seen there, or its time is over.

    A type on which nothing was seen in all that time is not tried again.
    """
    if timing_s == 0.0:
        return {}
    going: dict[str, list[Any]] = view.memory.setdefault("timing", {})
    tried: dict[str, list[str]] = view.memory.setdefault("timed", {})
    of = programs(view)
    for job_id, (kind, until_s) in list(going.items()):
        job = view.jobs[int(job_id)]
        market = cheapest.get(kind)
        seen = market is not None and view.seen_steps_per_s(job.job, market) is not None
        if job.is_finished or seen or view.now_s >= until_s - 1e-6:
            del going[job_id]
            if not job.is_finished:
                tried.setdefault(of[int(job_id)], []).append(kind)
    used = rented_by_others(view) + Counter(kind for kind, _ in going.values())
    asked = {(of[int(job_id)], kind) for job_id, (kind, _) in going.items()}
    for job in (job for job in view.jobs if not job.is_finished):
        program = of[job.job_id]
        alike = [other for other in view.jobs if of[other.job_id] == program]
        for kind, market in sorted(cheapest.items()) if str(job.job_id) not in going else ():
            is_known = any(view.seen_steps_per_s(other.job, market) is not None for other in alike)
            if is_known or view.steps_per_s(job.job, market) <= 0.0 or kind in tried.get(program, ()):
                continue
            if (program, kind) not in asked and used[kind] < quotas.get(kind, math.inf):
                used[kind] += 1
                asked.add((program, kind))
                going[str(job.job_id)] = [kind, view.now_s + start_s + timing_s]
                break
    return {int(job_id): kind for job_id, (kind, _) in going.items()}


def timing_ends_s(view: View) -> float:
    """End of the first timing run under way, seconds since 1970; infinity: there is none."""
    return min((float(until_s) for _, until_s in view.memory["timing"].values()), default=math.inf)


def programs(view: View) -> list[str]:
    """Program name of each job: trials of a sweep, which are numbered from 0, are of one program."""
    names = [job.job.name for job in view.jobs]
    numbers: dict[str, set[str]] = {}
    for name in names:
        if _TRIAL.search(name):
            numbers.setdefault(_TRIAL.sub("", name), set()).add(name.rpartition("-")[2])
    sweeps = {stem for stem, of_it in numbers.items() if of_it == {str(n) for n in range(len(of_it))}}
    return [stem if (stem := _TRIAL.sub("", name)) in sweeps else name for name in names]
