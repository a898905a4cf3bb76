"""The time of a step on a machine: SpotTune's M[instance][setting], before and after it is measured there.

A step has a parallel part, which more cores speed up, and a serial part (Amdahl). On a machine of c cores

    seconds = one_core_s * (1 - parallel + parallel / c) * reference_clock / clock

where a vCPU that is one of two threads of a core counts as `THREAD_YIELD` of a core (two threads of one core do
some 1.25 times its work; a machine of one vCPU has one such thread, too), and `clock` is what the provider states
for the family (data/core_speeds.csv). The price is not used: of two machines, the more expensive need not be the
faster (SpotTune Fig. 6). Policies correct the estimate by their measurements (`policies/spottune/policy.py`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise

from ebbtide.errors import InputError
from ebbtide.market.catalogue import InstanceType

# Work of each of the two threads of a core, as a share of a core's.
THREAD_YIELD = 0.625

# The clock of families that are not in the table.
_USUAL_CLOCK_GHZ = 2.5


@dataclass(frozen=True)
class StepTimes:
    """Measured seconds per step, over blocks of steps.

    Attributes:
        steps: Number of steps measured.
        mean_s: Mean seconds per step; NaN without measurements.
        deviation_s: Standard deviation over blocks, weighted by their steps, seconds.
    """

    steps: float = 0.0
    mean_s: float = math.nan
    deviation_s: float = 0.0

    @property
    def coefficient_of_variation(self) -> float:
        """Deviation over mean: below 0.1 in the paper (IV-A5)."""
        return self.deviation_s / self.mean_s if self.steps else math.nan

    def observed(self, steps: float, seconds: float) -> StepTimes:
        """These step times with one more block of steps (West's update of mean and variance).

        Args:
            steps: Number of steps in the block.
            seconds: Time that the block took, seconds.

        Raises:
            InputError: Steps or seconds are not positive.
        """
        if not steps > 0 or not seconds > 0:
            raise InputError(f"{steps:g} steps in {seconds:g} s; both must be positive")
        if not self.steps:
            return StepTimes(steps, seconds / steps)
        total = self.steps + steps
        off = seconds / steps - self.mean_s
        mean = self.mean_s + off * steps / total
        squares = self.deviation_s**2 * self.steps + steps * off * (seconds / steps - mean)
        return StepTimes(total, mean, math.sqrt(max(squares / total, 0.0)))


def step_times_of(steps: Sequence[float], train_seconds: Sequence[float]) -> StepTimes:
    """Step times from a training's log, one block between each two entries.

    Args:
        steps: Steps done at each entry, rising, shape (n,).
        train_seconds: Seconds of training until each entry, shape (n,).
    """
    times = StepTimes()
    for (before, spent_before), (after, spent_after) in pairwise(zip(steps, train_seconds, strict=True)):
        times = times.observed(after - before, spent_after - spent_before)
    return times


@dataclass(frozen=True)
class ThroughputModel:
    """Estimate of the seconds per step on machines without a measurement.

    Attributes:
        one_core_s: Time of a step on one core of the reference machine, seconds.
        parallel: Share of a step that runs in parallel on all cores.
        clock_ghz: Clock of the reference machine, GHz.
    """

    one_core_s: float
    parallel: float = 1.0
    clock_ghz: float = _USUAL_CLOCK_GHZ

    @classmethod
    def fitted(cls, seconds_by_cores: Mapping[int, float], clock_ghz: float = _USUAL_CLOCK_GHZ) -> ThroughputModel:
        """Amdahl's law fitted to measurements by least squares; with one number of cores, all is parallel.

        Args:
            seconds_by_cores: Measured seconds per step, by number of cores.
            clock_ghz: Clock of the machine measured, GHz.

        Raises:
            InputError: There is no measurement, or a number is not positive.
        """
        if not seconds_by_cores:
            raise InputError("seconds per step have to be measured on some number of cores")
        for cores, seconds in seconds_by_cores.items():
            if cores < 1 or not seconds > 0:
                raise InputError(f"{seconds:g} s per step on {cores} cores; both must be positive")
        if len(seconds_by_cores) == 1:
            ((cores, seconds),) = seconds_by_cores.items()
            return cls(seconds * cores, 1.0, clock_ghz)
        # seconds = serial + shared / cores, a line in 1 / cores.
        at = [1.0 / cores for cores in seconds_by_cores]
        values = list(seconds_by_cores.values())
        middle, mean = sum(at) / len(at), sum(values) / len(values)
        shared = sum((x - middle) * (y - mean) for x, y in zip(at, values, strict=True))
        shared = max(shared / sum((x - middle) ** 2 for x in at), 0.0)
        serial = mean - shared * middle
        if serial < 0.0:
            # A speedup above the perfect one is noise.
            serial, shared = 0.0, sum(x * y for x, y in zip(at, values, strict=True)) / sum(x * x for x in at)
        return cls(serial + shared, shared / (serial + shared), clock_ghz)

    @classmethod
    def from_cores_alone(cls, constant_s: float = 1.0) -> ThroughputModel:
        """SpotTune's start: `C0 / CPUs` (Algorithm 1 prints a product; seconds fall as CPUs rise)."""
        return cls(constant_s * THREAD_YIELD, 1.0)

    def seconds_per_step(self, machine: InstanceType) -> float:
        """Estimated seconds per step on a machine of this type."""
        clock_ghz, threads = _core(machine.name)
        cores = machine.vcpus * (THREAD_YIELD if threads == 2 else 1.0)
        return self.one_core_s * (1.0 - self.parallel + self.parallel / cores) * self.clock_ghz / clock_ghz


@cache
def _core_speeds() -> dict[str, tuple[float, int]]:
    source = resources.files("ebbtide.jobs") / "data" / "core_speeds.csv"
    with source.open(encoding="utf-8") as file:
        return {
            row["family"]: (float(row["clock_ghz"]), int(row["threads_per_core"])) for row in csv.DictReader(file)
        }


def _core(instance_type: str) -> tuple[float, int]:
    """Clock in GHz and threads per core; usual values where the family is not in the table."""
    return _core_speeds().get(instance_type.split(".")[0], (_USUAL_CLOCK_GHZ, 2))
