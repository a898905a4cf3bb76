"""Speeds of trainings on real machines, measured from their reports and used instead of declared rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import TypedDict

from ebbtide.engine.snapshot import Items

# A measured speed is used after so many seconds of the market's clock, or so many steps.
ENOUGH_S = 60.0
ENOUGH_STEPS = 100


class SpeedRecord(TypedDict):
    """A `Seen` as plain values, by the names of its fields."""

    steps: int
    duration_s: float
    told: bool


# Measurements by job id, as text, and instance type.
SpeedRecords = dict[str, dict[str, SpeedRecord]]


@dataclass
class Seen:
    """Measurements of one training on one instance type, without its first step on each machine.

    Attributes:
        steps: Number of steps that were measured.
        duration_s: Seconds that they took between reports, by the market's clock, or would have on one machine.
        told: Whether the measured speed was logged for its user.
    """

    steps: int = 0
    duration_s: float = 0.0
    told: bool = False

    @property
    def steps_per_s(self) -> float | None:
        """Measured steps a second; None: too little was measured."""
        enough = self.duration_s >= ENOUGH_S or self.steps >= ENOUGH_STEPS
        return self.steps / self.duration_s if enough and self.steps and self.duration_s > 0 else None

    def encode(self) -> SpeedRecord:
        """The measurements as plain values."""
        return {"steps": self.steps, "duration_s": self.duration_s, "told": self.told}


@dataclass(frozen=True)
class _Report:
    """The last report of a training on its present machines; `time_s` is NaN before the first step has ended."""

    attempt: int
    instance_type: str
    step: int
    time_s: float
    speedup: float


@dataclass
class MeasuredSpeeds:
    """Measured speeds of all trainings of a run.

    Attributes:
        seen: Measurements by job id and instance type.
        programs: The number of the program of each job, by id: what is measured of one says nothing of another.
            Those that are not named have the same.
    """

    seen: dict[int, dict[str, Seen]] = field(default_factory=dict)
    programs: Mapping[int, int] = field(default_factory=dict)
    _last: dict[int, _Report] = field(default_factory=dict)
    # Declared steps a second by job id and instance type, as far as they were asked for.
    _declared: dict[int, dict[str, float]] = field(default_factory=dict)
    # Mean of measured over declared rates of all trainings of a program, by its number and instance type; an empty
    # type: of all types. Those that are to be calculated anew are missing.
    _of_all: dict[int, dict[str, float]] = field(default_factory=dict)

    def begin(self, job_id: int, attempt: int, instance_type: str, step: int, speedup: float = 1.0) -> None:
        """A training starts on a machine of an instance type, at its resume step.

        Args:
            job_id: Id of the training's job.
            attempt: Number of its assignment.
            instance_type: Type of all machines that train it as one.
            step: Its resume step.
            speedup: How many times as fast they all are as one of them.
        """
        self._last[job_id] = _Report(attempt, instance_type, step, math.nan, speedup)

    def reported(self, job_id: int, attempt: int, step: int, time_s: float) -> str:
        """A training has done `step` steps at `time_s` of the market's clock.

        Returns:
            A sentence for its user, once for each instance type; else empty.
        """
        last = self._last.get(job_id)
        if last is None or last.attempt != attempt or step <= last.step:
            return ""
        self._last[job_id] = replace(last, step=step, time_s=time_s)
        # Until its first step ends, a program also starts, reads data and compiles.
        if math.isnan(last.time_s) or time_s <= last.time_s:
            return ""
        duration_s = (time_s - last.time_s) * last.speedup
        return self.add(job_id, last.instance_type, step - last.step, duration_s)

    def add(self, job_id: int, instance_type: str, steps: int, duration_s: float) -> str:
        """Steps were done on a machine of an instance type in so many seconds of the market's clock.

        Returns:
            A sentence for its user, once for each instance type; else empty.
        """
        seen = self.seen.setdefault(job_id, {}).setdefault(instance_type, Seen())
        seen.steps += steps
        seen.duration_s += duration_s
        self._of_all.pop(self._program(job_id), None)
        rate = seen.steps_per_s
        if rate is None or seen.told:
            return ""
        seen.told = True
        return f"measured {speed_text(rate)} on {instance_type}"

    def measured(self, job_id: int, instance_type: str) -> float | None:
        """Measured steps a second; None: too little was measured."""
        seen = self.seen.get(job_id, {}).get(instance_type)
        return None if seen is None else seen.steps_per_s

    def steps_per_s(self, job_id: int, instance_type: str, declared: float) -> float:
        """The measured rate, else the declared one corrected by measured over declared rates elsewhere.

        Trials of a sweep differ in size but suit the same machines, so measurements of one correct the rates of
        others: an unmeasured rate is off by what the type is, as other trials tell, times what the trial is.

        Args:
            job_id: Id of the training's job.
            instance_type: Type of the machine, such as c3.xlarge.
            declared: Steps a second that its user gave; 0: it cannot run there.

        Returns:
            Steps a second; 0: it cannot run there.
        """
        if declared <= 0.0:
            return 0.0
        known = self._declared.setdefault(job_id, {})
        if known.get(instance_type) != declared:
            known[instance_type] = declared
            if job_id in self.seen:
                self._of_all.pop(self._program(job_id), None)
        if not self.seen:
            return declared
        return self.measured(job_id, instance_type) or declared * self._off(job_id, instance_type)

    @property
    def items(self) -> Items:
        """The measurements of each job, by its id."""
        return Items("speeds", self.seen.items, _stamp, _values)

    def snapshot(self) -> SpeedRecords:
        """The measurements as plain values."""
        return {str(job): _values(of) for job, of in self.seen.items()}

    def restore(self, kept: SpeedRecords) -> None:
        """Continue from what `snapshot` gave."""
        self.seen = {int(job): {name: Seen(**seen) for name, seen in of.items()} for job, of in kept.items()}
        self._of_all = {}

    def _off(self, job_id: int, instance_type: str) -> float:
        """Correction factor for the declared rate of a training on an instance type where it was not measured."""
        of_all, own = self._of_program(self._program(job_id)), self._ratios(job_id)
        of_type = of_all.get(instance_type)
        if of_type is None:
            return _geometric_mean(list(own.values())) if own else of_all[""]
        # How much faster it is than others of its program, on the types on which it was measured.
        return of_type * _geometric_mean([ratio / of_all[kind] for kind, ratio in own.items()])

    def _of_program(self, program: int) -> dict[str, float]:
        if program not in self._of_all:
            # Asked for each training and market, and changed by reports alone.
            by_type: dict[str, list[float]] = {}
            for job_id in self.seen:
                for kind, ratio in self._ratios(job_id).items() if self._program(job_id) == program else ():
                    by_type.setdefault(kind, []).append(ratio)
            every = [ratio for ratios in by_type.values() for ratio in ratios]
            self._of_all[program] = {kind: _geometric_mean(ratios) for kind, ratios in by_type.items()}
            self._of_all[program][""] = _geometric_mean(every)
        return self._of_all[program]

    def _program(self, job_id: int) -> int:
        return self.programs.get(job_id, 0)

    def _ratios(self, job_id: int) -> dict[str, float]:
        """Measured over declared rates of a training, by instance type."""
        declared = self._declared.get(job_id, {})
        pairs = ((name, self.measured(job_id, name), declared.get(name)) for name in self.seen.get(job_id, {}))
        return {name: rate / given for name, rate, given in pairs if rate and given}


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _stamp(of: Mapping[str, Seen]) -> tuple[Any, ...]:
    return tuple((name, seen.steps, seen.duration_s, seen.told) for name, seen in of.items())


def _values(of: Mapping[str, Seen]) -> dict[str, SpeedRecord]:
    return {name: seen.encode() for name, seen in of.items()}


def speed_text(steps_per_s: float) -> str:
    """A speed as text, in steps a second, minute or hour, whichever is easy to read."""
    for unit, factor in (("s", 1.0), ("min", 60.0)):
        if steps_per_s * factor >= 1.0:
            return f"{steps_per_s * factor:.3g} steps/{unit}"
    return f"{steps_per_s * 3600.0:.3g} steps/h"
