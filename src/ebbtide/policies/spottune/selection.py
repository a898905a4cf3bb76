"""Selection of a sweep's trials: all are predicted at theta, the best go on, converged ones end (SpotTune III-C).

Any policy can serve a sweep in this way, however it rents machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ebbtide.forecasts.learning_curves.calibration import default_calibration
from ebbtide.forecasts.learning_curves.curves import observed
from ebbtide.forecasts.learning_curves.early_curve import EarlyCurve
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import Action, Release, Stop, WakeAtStep
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.stopping import has_diverged

# How often, over a trial's steps, convergence is checked.
_CONVERGENCE_CHECKS = 10


@dataclass(frozen=True)
class TrialSelection:
    """Predicts every trial at theta, trains the best to their end and ends the others.

    Attributes:
        theta: Share of its steps after which a trial is predicted; 1: all are trained to the end.
        mcnt: Number of trials, the best by prediction, that are chosen.
        trains_on: Train the chosen trials to the end; else they end where they were predicted, too.
        predictor: Predicts final metrics; None: EarlyCurve as calibrated.
        maximise: Whether a higher metric is better.
    """

    theta: float
    mcnt: int
    trains_on: bool = True
    predictor: EarlyCurve | None = None
    maximise: bool = False

    def begin(self, view: View) -> Iterator[Action]:
        """At the start of a run: ask to be woken at theta, and whenever convergence is checked."""
        view.memory["paused"], view.memory["chosen"] = [], None
        for job in view.jobs:
            if self.compares(view):
                yield WakeAtStep(job.job_id, self._goal(job))
            for check in range(1, _CONVERGENCE_CHECKS):
                yield WakeAtStep(job.job_id, max(job.job.steps * check // _CONVERGENCE_CHECKS, 1))

    def compares(self, view: View) -> bool:
        """Return whether trials are compared at theta: there are more than will be chosen, and all can wait."""
        memory = view.memory
        if "compares" not in memory:
            can_wait = all(job.job.checkpoint is not None for job in view.jobs)
            memory["compares"] = self.theta < 1.0 and len(view.jobs) > self.mcnt and can_wait
        return bool(memory["compares"])

    def end(self, view: View, job: JobView) -> int:
        """Number of steps at which the trial, as things stand, leaves its machine by itself."""
        chosen = view.memory.get("chosen")
        return self._goal(job) if self.compares(view) and chosen is None else job.job.steps

    def waits(self, view: View, job: JobView) -> bool:
        """Return whether a trial is paused at theta, waiting for the selection or not selected."""
        memory = view.memory
        return job.job_id in memory.get("paused", ()) and job.job_id not in (memory.get("chosen") or ())

    def reached(self, view: View, job: JobView) -> Iterator[Action]:
        """A trial has reached theta or a convergence check: it pauses, ends, or trains on."""
        if job.is_finished:
            return
        steps, metric = self._measured(view, job)
        is_number = len(steps) > 0 and math.isfinite(metric[-1])
        if has_diverged(steps, metric, job.job.steps) or (is_number and self._predictor.has_converged(metric)):
            yield Stop(job.job_id, Reason("its metric no longer changes, or is no number"))
            return
        waits = view.memory["chosen"] is None and job.job_id not in view.memory["paused"]
        if self.compares(view) and waits and job.steps_done >= self._goal(job) - 1e-6:
            view.memory["paused"].append(job.job_id)
            for lease in view.leases_of(job.job_id):
                yield Release(
                    lease.lease_id, because=Reason("its trial has come to theta, and waits for the others")
                )

    def select(self, view: View) -> Iterator[Action]:
        """Once all trials wait: predict their final metrics, choose the best, end the others (lines 48 to 53)."""
        memory: dict[str, Any] = view.memory
        if memory["chosen"] is not None:
            return
        if not all(job.is_finished or job.job_id in memory["paused"] for job in view.jobs):
            return
        waiting = [view.jobs[job_id] for job_id in memory["paused"]]
        measured = [self._measured(view, job) for job in waiting]
        if not all(len(steps) for steps, _ in measured):
            # Nothing to compare: all continue.
            memory["chosen"] = [job.job_id for job in waiting]
            return
        pairs = zip(waiting, measured, strict=True)
        seen = [observed(steps, metric, job.job.steps, "sweep") for job, (steps, metric) in pairs]
        ends = [end.value for end in self._predictor.ends(seen)]
        ranked = sorted(zip(ends, (job.job_id for job in waiting), strict=True))
        chosen = [job_id for _, job_id in ranked[: self.mcnt]]
        memory["chosen"] = chosen
        trials = [
            Alternative(f"trial {job_id}", how=f"predicted final metric {-end if self.maximise else end:.6g}")
            for end, job_id in ranked
        ]
        for job in waiting:
            if job.job_id not in chosen or not self.trains_on:
                why = f"it is not among the {self.mcnt} best by predicted final metric"
                yield Stop(
                    job.job_id, Reason(why if job.job_id not in chosen else "it has been predicted", trials)
                )

    def _goal(self, job: JobView) -> int:
        """Number of steps after which the trial is predicted."""
        return max(math.ceil(self.theta * job.job.steps), 1)

    def _measured(self, view: View, job: JobView) -> tuple[Floats, Floats]:
        """Steps and metric so far; the metric's sign is changed where needed, so that lower is better."""
        steps, metric = view.measured(job.job_id)
        return steps, -metric if self.maximise else metric

    @property
    def _predictor(self) -> EarlyCurve:
        return self.predictor or default_calibration().everywhere
