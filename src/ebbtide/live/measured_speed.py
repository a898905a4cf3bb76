"""How fast training is on real machines, from what it reports: used instead of declared rates once it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# So long, by the market's clock, or so many steps: then a speed is believed.
ENOUGH_S = 60.0
ENOUGH_STEPS = 100


@dataclass
class Seen:
    """What was seen of one training on one type of machine, its first step on each machine left out.

    Attributes:
        steps: Steps done.
        duration_s: The time that they took, between reports.
        told: Its user has been told.
    """

    steps: int = 0
    duration_s: float = 0.0
    told: bool = False

    @property
    def steps_per_s(self) -> float | None:
        """None: not enough was seen."""
        enough = self.duration_s >= ENOUGH_S or self.steps >= ENOUGH_STEPS
        return self.steps / self.duration_s if enough and self.steps and self.duration_s > 0 else None


@dataclass(frozen=True)
class _Report:
    """The last report of a training on the machine where it is; `time_s` is NaN before the end of a first step."""

    attempt: int
    instance_type: str
    step: int
    time_s: float


@dataclass
class MeasuredSpeeds:
    """Of all trainings of a run.

    Attributes:
        seen: By training and instance type.
    """

    seen: dict[int, dict[str, Seen]] = field(default_factory=dict)
    _last: dict[int, _Report] = field(default_factory=dict)
    # Rates that users gave, or that stand for them, as asked for so far.
    _declared: dict[int, dict[str, float]] = field(default_factory=dict)

    def begin(self, job_id: int, attempt: int, instance_type: str, step: int) -> None:
        """A training begins on a machine, at its resume step."""
        self._last[job_id] = _Report(attempt, instance_type, step, math.nan)

    def reported(self, job_id: int, attempt: int, step: int, time_s: float) -> str:
        """A training has done so many steps by a time of the market's clock.

        Returns:
            What its user should be told, once for each type of machine; else empty.
        """
        last = self._last.get(job_id)
        if last is None or last.attempt != attempt or step <= last.step:
            return ""
        self._last[job_id] = _Report(attempt, last.instance_type, step, time_s)
        # Up to the end of its first step a program starts, reads data, compiles.
        if math.isnan(last.time_s) or time_s <= last.time_s:
            return ""
        seen = self.seen.setdefault(job_id, {}).setdefault(last.instance_type, Seen())
        seen.steps += step - last.step
        seen.duration_s += time_s - last.time_s
        rate = seen.steps_per_s
        if rate is None or seen.told:
            return ""
        seen.told = True
        return f"measured {speed_text(rate)} on {last.instance_type}"

    def measured(self, job_id: int, instance_type: str) -> float | None:
        """Steps a second as seen; None: not seen for long enough."""
        seen = self.seen.get(job_id, {}).get(instance_type)
        return None if seen is None else seen.steps_per_s

    def steps_per_s(self, job_id: int, instance_type: str, declared: float) -> float:
        """Measured, or declared and corrected by how far declared rates are off where both are known.

        Trials of a sweep differ in size and hardly in which machines suit them, so what was seen of one corrects
        another of which nothing was.

        Args:
            job_id: The training.
            instance_type: The machine.
            declared: Steps a second that its user gave; 0: it cannot run there.
        """
        if declared <= 0.0:
            return 0.0
        self._declared.setdefault(job_id, {})[instance_type] = declared
        return self.measured(job_id, instance_type) or declared * self._off(job_id)

    def snapshot(self) -> dict[str, Any]:
        """As plain values, for the journal."""
        return {str(job): {name: asdict(seen) for name, seen in of.items()} for job, of in self.seen.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """From what `snapshot` gave."""
        self.seen = {int(job): {name: Seen(**seen) for name, seen in of.items()} for job, of in kept.items()}

    def _off(self, job_id: int) -> float:
        """Measured rates over declared ones: the geometric mean, of this training if it was seen, else of all."""
        own = self._ratios(job_id)
        ratios = own or [ratio for job in self.seen for ratio in self._ratios(job)]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0

    def _ratios(self, job_id: int) -> list[float]:
        declared = self._declared.get(job_id, {})
        pairs = ((self.measured(job_id, name), declared.get(name)) for name in self.seen.get(job_id, {}))
        return [rate / given for rate, given in pairs if rate and given]


def speed_text(steps_per_s: float) -> str:
    """In the unit that gives a number one can read."""
    for unit, factor in (("s", 1.0), ("min", 60.0)):
        if steps_per_s * factor >= 1.0:
            return f"{steps_per_s * factor:.3g} steps/{unit}"
    return f"{steps_per_s * 3600.0:.3g} steps/h"


def steps_per_hour(kept: Mapping[str, Any]) -> dict[str, float]:
    """What to write into a file as `steps_per_hour`: by instance type, all trainings of a run together.

    Args:
        kept: A snapshot.
    """
    together: dict[str, Seen] = {}
    for of in kept.values():
        for name, values in of.items():
            seen, total = Seen(**values), together.setdefault(name, Seen())
            total.steps += seen.steps
            total.duration_s += seen.duration_s
    rates = {name: seen.steps_per_s for name, seen in sorted(together.items())}
    return {name: float(f"{rate * 3600.0:.4g}") for name, rate in rates.items() if rate is not None}
