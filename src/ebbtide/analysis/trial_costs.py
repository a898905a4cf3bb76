"""The cost of each trial of a live run: its share, by time, of every machine it trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ebbtide.engine.outcome import Outcome


def trial_costs(outcome: Outcome, kept: Sequence[Mapping[str, Any]]) -> list[float]:
    """The cost of each trial, USD; the sum is the cost of the run.

    A machine's cost is divided among the trials that trained on it, by time. The cost of unused machines and of
    data transfer is divided among all trials, by their training time.

    Args:
        outcome: Outcome of the run.
        kept: The controller's state of each trial: `stretches`, each with `lease_id` and `duration_s`; without
            any,
        steps are used in place of time.
    """
    times: list[dict[int, float]] = [{} for _ in kept]
    for time_s, trial in zip(times, kept, strict=True):
        for stretch in trial.get("stretches", ()):
            lease_id = int(stretch["lease_id"])
            time_s[lease_id] = time_s.get(lease_id, 0.0) + float(stretch["duration_s"])
    costs = [0.0] * len(times)
    for lease in outcome.leases:
        shares = _shares([time_s.get(lease.lease_id, 0.0) for time_s in times])
        if shares is not None:
            usd = outcome.ledger.usd_of(lease.lease_id)
            costs = [cost + share * usd for cost, share in zip(costs, shares, strict=True)]
    left = outcome.cost_usd - math.fsum(costs)
    of_all = (
        _shares([math.fsum(time_s.values()) for time_s in times])
        or _shares([job.steps_run for job in outcome.jobs])
        or [1.0 / len(times) for _ in times]
    )
    return [cost + share * left for cost, share in zip(costs, of_all, strict=True)]


def _shares(weights: Sequence[float]) -> list[float] | None:
    whole = math.fsum(weights)
    return [weight / whole for weight in weights] if whole > 0 else None
