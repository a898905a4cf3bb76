"""Sweeps of Table II as jobs: each setting a trial with the curve that was measured, in the sizes of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Checkpointing, Job
from ebbtide.jobs.throughput import ThroughputModel
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.prices import PriceHistory

# The mean trial takes so long on four cores of the usual clock, as in a real sweep; on the stand-in data it is
# trained in a minute.
TRIAL_HOURS = 4.0

# Fig. 7(a) has the fastest machine 4.2 times as dear for the same work as the cheapest, Table III six times as
# dear by the hour: it is 1.43 times as fast with eight times the cores, and by Amdahl's law this share of a step
# is parallel.
PARALLEL = 0.4

# Of a trial's checkpoint; the paper's take less than a tenth of the time of training.
CHECKPOINT_BYTES = 200_000_000


@dataclass(frozen=True)
class Sweep:
    """Trials that are compared.

    Attributes:
        name: Of the workload.
        jobs: A trial each.
        curves: What each one's metric will be.
    """

    name: str
    jobs: tuple[Job, ...]
    curves: tuple[Curve, ...]


def sweeps_of(curves: Sequence[Curve], prices: PriceHistory, catalogue: Catalogue) -> list[Sweep]:
    """A sweep of each workload, with rates for the instance types of the prices.

    How long trials are beside each other is as measured; all are lengthened alike so that the mean takes
    `TRIAL_HOURS` on four cores.
    """
    machines = {
        market.instance_type: catalogue.instance_type(market.cloud, market.instance_type) for market in prices
    }
    four_cores = 1.0 - PARALLEL + PARALLEL / 4.0
    found = []
    for name in dict.fromkeys(curve.workload for curve in curves):
        own = tuple(curve for curve in curves if curve.workload == name)
        spent = [1.0 if curve.train_seconds is None else float(curve.train_seconds[-1]) for curve in own]
        scale = TRIAL_HOURS * HOUR_S / four_cores / float(np.mean(spent))
        jobs = []
        for curve, seconds in zip(own, spent, strict=True):
            model = ThroughputModel(scale * seconds / curve.max_steps, PARALLEL)
            rates = {kind: HOUR_S / model.seconds_per_step(machine) for kind, machine in machines.items()}
            checkpoint = Checkpointing(save_s=2.0, restore_s=15.0, size_bytes=CHECKPOINT_BYTES, by_machine=True)
            jobs.append(
                Job(
                    name=f"{name}-{curve.name}",
                    steps=int(curve.max_steps),
                    steps_per_hour=rates,
                    checkpoint=checkpoint,
                )
            )
        found.append(Sweep(name, tuple(jobs), own))
    return found
