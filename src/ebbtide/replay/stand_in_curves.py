"""Metrics of trials whose learning curves are not known, for replays of policies that compare trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job


def stand_in_curves(jobs: Sequence[Job], *, maximise: bool) -> list[Curve]:
    """Metrics that fall alike to different final values, so that trials are compared at theta.

    Which of them continue does not matter for the cost: they are equally long.

    Args:
        jobs: A job for each trial.
        maximise: Whether a higher metric is better; then they rise.
    """
    curves = []
    for number, job in enumerate(jobs):
        at = np.linspace(0.01, 1.0, 100)
        metric = 1.0 / (10.0 * at + 1.0) + 0.01 * number
        curves.append(Curve("plan", job.name, at * job.steps, -metric if maximise else metric, float(job.steps)))
    return curves
