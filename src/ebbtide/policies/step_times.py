"""M[instance][trial] of SpotTune: seconds per step, from cores alone at first, then as observed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.view import View
from ebbtide.workloads.progress import JobProgress


@dataclass(frozen=True)
class ObservedStepTimes:
    """Seconds per step by instance type and trial, kept in a policy's memory.

    Before anything is seen, a machine is as fast as its cores make it by Amdahl's law; with all of a step parallel
    that is `C0 / CPUs` (Algorithm 1, line 12, which prints a product, by which more cores would be slower). A type
    on which a trial has trained has the time seen there. Trials of a sweep differ in size and hardly in which
    machines suit them: what some have shown of two types holds for the others.

    Attributes:
        seen: By trial and instance type.
        parallel: Share of a step that cores do together, before more is known.
    """

    seen: dict[str, dict[str, float]]
    parallel: float = 1.0

    @classmethod
    def in_memory(cls, memory: dict[str, Any], parallel: float) -> ObservedStepTimes:
        """Those kept in a policy's memory, so that a restarted policy still knows them."""
        return cls(memory.setdefault("seconds_per_step", {}), parallel)

    def observe(self, view: View, job: JobProgress) -> None:
        """Note how fast a trial trains where it is."""
        for lease in job.leases:
            if lease.state is LeaseState.RUNNING and job.steps_run > 0:
                rate = view.steps_per_s(job.job, lease.market)
                self.seen.setdefault(str(job.job_id), {})[lease.market.instance_type] = 1.0 / rate

    def of_all(self, view: View, job: JobProgress, markets: list[Market]) -> list[float]:
        """Seconds per step of a trial in each market."""
        prior = {market.instance_type: self._prior(view.machine(market).vcpus) for market in view.markets}
        own = self.seen.get(str(job.job_id), {})
        slowness = self._slowness(prior)
        sizes = [math.log(seconds) - slowness[name] for name, seconds in own.items()]
        size = sum(sizes) / len(sizes) if sizes else 0.0
        return [
            own.get(market.instance_type) or math.exp(size + slowness[market.instance_type]) for market in markets
        ]

    def _prior(self, vcpus: int) -> float:
        return 1.0 - self.parallel + self.parallel / vcpus

    def _slowness(self, prior: dict[str, float]) -> dict[str, float]:
        """Logarithm of each type's slowness: the prior, corrected by trials that have seen several types."""
        slowness = {name: math.log(value) for name, value in prior.items()}
        several = [own for own in self.seen.values() if len(own) > 1]
        if not several:
            return slowness
        found = dict(slowness)
        # Sizes of trials and slowness of types, in turns: it settles at once for as few as there are.
        for _ in range(3):
            off: dict[str, list[float]] = {}
            for own in several:
                size = sum(math.log(seconds) - found[name] for name, seconds in own.items()) / len(own)
                for name, seconds in own.items():
                    off.setdefault(name, []).append(math.log(seconds) - size)
            found |= {name: sum(values) / len(values) for name, values in off.items()}
        return found
