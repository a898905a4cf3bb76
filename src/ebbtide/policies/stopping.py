"""Stoppers: which trials of a sweep end early, whatever machines they are trained on; and ASHA as one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import Action, Stop, WakeAtStep
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.field_checks import check_fields

# A trial is ended once it has had no finite value for so many times its longest gap between two, as ending is for
# good and must not follow from one failed evaluation; with fewer than so many values before, for this share of its
# steps at least.
_GAPS, _KNOWN, _SHARE = 3.0, 3, 0.2


class StopperName(StrEnum):
    """The stoppers by name."""

    EARLYCURVE = "earlycurve"  # all trials are predicted at theta, the best go on (SpotTune III-C)
    ASHA = "asha"  # asynchronous successive halving


class Stopper(Protocol):
    """Decides which trials of a sweep are trained on; a policy asks it, and rents machines for the others."""

    def begin(self, view: View) -> Iterator[Action]:
        """At the start of a run: ask to be woken at the steps at which trials are judged."""
        ...

    def reached(self, view: View, job: JobView) -> Iterator[Action]:
        """A trial has reached such a step."""
        ...

    def select(self, view: View) -> Iterator[Action]:
        """At each decision: end trials, if it is time for all together."""
        ...

    def waits(self, view: View, job: JobView) -> bool:
        """Return whether a trial is to have no machine now."""
        ...

    def end(self, view: View, job: JobView) -> int:
        """Number of steps at which the trial, as things stand, leaves its machine by itself."""
        ...


def has_diverged(steps: Floats, metric: Floats, of_steps: float) -> bool:
    """Return whether a trial is to be ended, as its metric is no number any more.

    Args:
        steps: Steps at which its metric was measured, rising, shape (n,).
        metric: Values; the last is NaN if the metric has stopped being finite, shape (n,).
        of_steps: Steps of the whole trial.
    """
    finite = steps[np.isfinite(metric)]
    if not len(finite) or math.isfinite(metric[-1]):
        return False
    least = max(
        _GAPS * float(np.diff(finite, prepend=0.0).max()), 0.0 if len(finite) >= _KNOWN else _SHARE * of_steps
    )
    return bool(steps[-1] - finite[-1] >= least)


@dataclass(frozen=True)
class SuccessiveHalving:
    """ASHA in its stopping form: at each rung a trial goes on if it is among the best that have been there.

    Rungs are at `grace`, `reduction` x `grace`, `reduction`^2 x `grace`... of its steps. A trial that reaches one
    ends there unless its metric is within the best 1 / `reduction` of all that have reached it so far; nobody
    waits for anybody. (Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020,
    algorithm 2, in the variant of Syne Tune and Ray Tune that stops instead of pausing.)

    Attributes:
        reduction: Of the trials that come to a rung, one in so many goes on.
        grace: Share of its steps that each trial is trained for in any case.
        maximise: Whether a higher metric is better.
    """

    reduction: float = 3.0
    grace: float = 0.1
    maximise: bool = False

    def __post_init__(self) -> None:
        check_fields(self, shares=("grace",), between={"reduction": (1.0 + 1e-6, 1e6)})

    def begin(self, view: View) -> Iterator[Action]:
        view.memory["rungs"] = {}
        for job in view.jobs:
            for step in self.rungs(job.job.steps):
                yield WakeAtStep(job.job_id, step)

    def rungs(self, steps: int) -> list[int]:
        """The steps at which a trial of so many steps is judged, rising."""
        found: list[int] = []
        at = max(self.grace * steps, 1.0)
        while math.ceil(at) < steps:
            if not found or math.ceil(at) > found[-1]:
                found.append(math.ceil(at))
            at *= self.reduction
        return found

    def reached(self, view: View, job: JobView) -> Iterator[Action]:
        if job.is_finished:
            return
        _, metric = view.measured(job.job_id)
        passed = [place for place, step in enumerate(self.rungs(job.job.steps)) if step <= job.steps_done + 1e-6]
        if not passed or not len(metric):
            return
        value = -float(metric[-1]) if self.maximise else float(metric[-1])
        rungs: dict[str, dict[str, float]] = view.memory["rungs"]
        rung = rungs.setdefault(str(passed[-1]), {})
        if str(job.job_id) in rung:
            return
        # A trial without a number ranks last, whatever it had before.
        value = value if math.isfinite(value) else math.inf
        rung[str(job.job_id)] = value
        if has_diverged(*view.measured(job.job_id), job.job.steps):
            yield Stop(job.job_id, Reason("its metric is no number"))
            return
        kept = max(int(len(rung) / self.reduction), 1)
        if value > sorted(rung.values())[kept - 1]:
            yield Stop(job.job_id, self._reason(rung, kept, passed[-1]))

    def select(self, view: View) -> Iterator[Action]:  # noqa: ARG002
        return iter(())

    def waits(self, view: View, job: JobView) -> bool:  # noqa: ARG002
        return False

    def end(self, view: View, job: JobView) -> int:  # noqa: ARG002
        return job.job.steps

    def _reason(self, rung: dict[str, float], kept: int, place: int) -> Reason:
        sign = -1.0 if self.maximise else 1.0
        best: list[Any] = sorted((value, int(job_id)) for job_id, value in rung.items())
        trials = [
            Alternative(f"trial {job_id}", how=f"metric {sign * value:.6g} at this rung", is_chosen=number < kept)
            for number, (value, job_id) in enumerate(best)
        ]
        of = f"of the {len(rung)} trials that have come to rung {place + 1}"
        return Reason(f"{of}, it is not among the best {kept} (ASHA)", trials)
