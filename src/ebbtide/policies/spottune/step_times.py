"""M[instance][trial] of SpotTune: seconds per step, from cores alone at first, then as observed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ebbtide.jobs.throughput import ThroughputModel
from ebbtide.market.catalogue import InstanceType
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View


@dataclass(frozen=True)
class ObservedStepTimes:
    """Seconds per step by instance type and trial, kept in a policy's memory.

    Before anything is seen, a machine is as fast as its cores make it (`ThroughputModel`); with all of a step
    parallel that is `C0 / CPUs` (Algorithm 1, line 12, which prints a product, by which more cores would be
    slower). A type on which a trial has trained has the time seen there. Trials of a sweep differ in size and
    hardly in which machines suit them: what some have shown of two types holds for the others.

    Attributes:
        seen: By trial and instance type.
        parallel: Share of a step that cores do together, before more is known.
    """

    seen: dict[str, dict[str, float]]
    parallel: float = 1.0
    _slowness: dict[str, float] = field(default_factory=dict, repr=False)

    @classmethod
    def in_memory(cls, memory: dict[str, Any], parallel: float) -> ObservedStepTimes:
        """Those kept in a policy's memory, so that a restarted policy still knows them."""
        return cls(memory.setdefault("seconds_per_step", {}), parallel)

    def observe(self, view: View, job: JobView) -> None:
        """Note how fast a trial trains where it is."""
        for lease in job.leases:
            if lease.state is LeaseState.RUNNING and job.steps_run > 0:
                rate = view.seen_steps_per_s(job.job, lease.market)
                own = self.seen.setdefault(str(job.job_id), {})
                if rate and own.get(lease.market.instance_type) != 1.0 / rate:
                    own[lease.market.instance_type] = 1.0 / rate
                    self._slowness.clear()

    def of_all(self, view: View, job: JobView, markets: Sequence[Market]) -> list[float]:
        """Seconds per step of a trial in each market."""
        own = self.seen.get(str(job.job_id), {})
        slowness = self._slowness_on(view)
        sizes = [math.log(seconds) - slowness[name] for name, seconds in own.items()]
        size = sum(sizes) / len(sizes) if sizes else 0.0
        return [
            own.get(market.instance_type) or math.exp(size + slowness[market.instance_type]) for market in markets
        ]

    def _slowness_on(self, view: View) -> dict[str, float]:
        """Logarithm of each type's slowness: the model's, corrected by trials that have seen several types."""
        if not self._slowness:
            for market in view.markets:
                if market.instance_type not in self._slowness:
                    seconds = _before_seen(self.parallel, view.machine(market))
                    self._slowness[market.instance_type] = math.log(seconds)
            self._slowness.update(self._corrected(self._slowness))
        return self._slowness

    def _corrected(self, slowness: Mapping[str, float]) -> dict[str, float]:
        several = [own for own in self.seen.values() if len(own) > 1]
        found = dict(slowness)
        # Sizes of trials and slowness of types, in turns: it settles at once for as few as there are.
        for _ in range(3 if several else 0):
            off: dict[str, list[float]] = {}
            for own in several:
                size = sum(math.log(seconds) - found[name] for name, seconds in own.items()) / len(own)
                for name, seconds in own.items():
                    off.setdefault(name, []).append(math.log(seconds) - size)
            found |= {name: sum(values) / len(values) for name, values in off.items()}
        return found


@cache
def _before_seen(parallel: float, machine: InstanceType) -> float:
    return ThroughputModel(1.0, parallel).seconds_per_step(machine)
