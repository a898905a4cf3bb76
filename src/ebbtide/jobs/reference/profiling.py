"""Timing of a training's steps on this machine, on one core and on more."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ebbtide.jobs.reference.benchmarks import benchmark
from ebbtide.jobs.reference.datasets import load_dataset
from ebbtide.jobs.reference.trial import ReferenceTrial
from ebbtide.jobs.throughput import StepTimes, ThroughputModel

# The least length of a timed block, so that the clock and the scheduler matter little.
_BLOCK_S = 0.05


def time_steps(trial: ReferenceTrial, *, seconds: float, warm_up: int = 3) -> StepTimes:
    """Time a trial's steps for about `seconds`, after `warm_up` steps that are not counted."""
    for _ in range(warm_up):
        trial.train_step()
    began = time.perf_counter()
    trial.train_step()
    block = max(round(_BLOCK_S / max(time.perf_counter() - began, 1e-9)), 1)
    times = StepTimes()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not times.steps:
        began = time.perf_counter()
        for _ in range(block):
            trial.train_step()
        times = times.observed(block, time.perf_counter() - began)
    return times


def profile(
    workload: str, number: int, *, cores: Sequence[int] = (1, 2), seconds: float = 1.0
) -> tuple[ThroughputModel, dict[int, StepTimes]]:
    """Time one setting of Table II on several numbers of cores, and fit the throughput model.

    Args:
        workload: Name of the workload, a key of `BENCHMARKS`.
        number: Number of the setting, from 0.
        cores: Numbers of threads to train with.
        seconds: Time to train for with each number of threads, seconds.

    Returns:
        The fitted model, and the measured step times by number of cores.

    Raises:
        InputError: The workload or setting is unknown.
    """
    chosen = benchmark(workload)
    setting = chosen.setting(number)
    data = load_dataset(chosen.dataset)
    before = torch.get_num_threads()
    found: dict[int, StepTimes] = {}
    try:
        for threads in cores:
            torch.set_num_threads(threads)
            found[threads] = time_steps(chosen.build(setting, data, 0), seconds=seconds)
    finally:
        torch.set_num_threads(before)
    return ThroughputModel.fitted({threads: times.mean_s for threads, times in found.items()}), found
