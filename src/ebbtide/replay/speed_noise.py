"""Machines of one type that differ in speed, as those of a cloud do: training on them, and what is seen of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from ebbtide.engine.provider import MeasuresSpeed
from ebbtide.errors import InputError
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.replay.replay import ReplayProvider


@dataclass(frozen=True)
class SpeedNoise:
    """Random variation of machines' speeds around that of their type.

    Attributes:
        deviation: Standard deviation of the logarithm of a machine's speed; 0.1 is about 10 %.
        seed: Seed of the speeds.
        start_s: Start of the run, seconds since 1970: each run has machines of its own.

    Raises:
        InputError: The deviation is negative, or no number.
    """

    deviation: float
    seed: int = 0
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.deviation, Real) or not 0.0 <= self.deviation < math.inf:
            raise InputError(f"is {self.deviation}; it must be a number of 0 or more", field="speed_noise")

    def factor(self, lease: Lease) -> float:
        """The speed of a lease's machines over that of their type; 1 in the mean of its logarithm."""
        drawn = np.random.default_rng([self.seed, int(self.start_s), lease.lease_id]).standard_normal()
        return math.exp(self.deviation * float(drawn))


class NoisyReplay(ReplayProvider, MeasuresSpeed):
    """Replays in which speeds are what is seen, and no longer what a job declares.

    It is made as a `ReplayProvider` with noise.
    """

    def measured_steps_per_s(self, job_id: int, market: Market) -> float | None:
        """Steps a second of a job on machines of a market's type, over all that it has trained there."""
        steps, seconds = 0.0, 0.0
        progress = self._training[job_id].progress
        for lease_id, done in progress.steps_on.items():
            lease = self._leases[lease_id]
            if done > 0.0 and lease.market.instance_type == market.instance_type:
                steps += done
                seconds += done / self.rate_of(progress, lease)
        return steps / seconds if seconds > 0.0 else None

    def steps_per_s(self, job_id: int, market: Market, declared: float) -> float:
        """Measured, or the declared rate."""
        return self.measured_steps_per_s(job_id, market) or declared
