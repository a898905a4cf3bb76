"""Measuring learning curves: train each setting to its end, and time it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import torch

from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.reference.benchmarks import benchmark
from ebbtide.jobs.reference.datasets import ReferenceDataset, load_dataset

OnCurve = Callable[[Curve], None]


def measure_curve(
    workload: str, number: int, *, seed: int = 0, data: Path | None = None, steps: int | None = None
) -> Curve:
    """Train one setting to its end, or to `steps`, with validations in between.

    Args:
        workload: Name of the workload, a key of `BENCHMARKS`.
        number: Number of the setting, from 0.
        seed: Random seed of weights and data order.
        data: Folder of the original dataset; None uses the stand-in.
        steps: Step at which to stop; None trains to the end.

    Raises:
        InputError: The workload or setting is unknown, or the data are malformed.
    """
    chosen = benchmark(workload)
    setting = chosen.setting(number)
    trial = chosen.build(setting, _data(chosen.dataset, data), seed)
    last = trial.max_steps if steps is None else min(steps, trial.max_steps)
    at, metric, seconds = [], [], []
    trained_s = 0.0
    while trial.step < last:
        began = time.perf_counter()
        for _ in range(min(trial.validate_every, last - trial.step)):
            trial.train_step()
        trained_s += time.perf_counter() - began
        at.append(float(trial.step))
        metric.append(trial.validate())
        seconds.append(trained_s)
    values = np.array(at), np.array(metric)
    return Curve(workload, f"{number:02d}", *values, float(last), setting, np.array(seconds))


def measure_curves(
    trials: Sequence[tuple[str, int]],
    *,
    seed: int = 0,
    data: Path | None = None,
    workers: int = 2,
    on_curve: OnCurve | None = None,
) -> list[Curve]:
    """Train several settings in parallel, one core each, and return their curves in the order given.

    An interrupt ends the trainings at once.

    Args:
        trials: Workload and number of each setting.
        seed: Random seed of weights and data order.
        data: Folder of the original datasets; None uses the stand-ins.
        workers: Number of processes that train.
        on_curve: Called with each curve, in order.
    """
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        # Ctrl-C reaches every process of a terminal. Processes started while it is blocked ignore it; they are
        # terminated below.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            running = [
                pool.submit(measure_curve, workload, number, seed=seed, data=data) for workload, number in trials
            ]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        curves = []
        for future in running:
            curves.append(future.result())
            if on_curve:
                on_curve(curves[-1])
    except BaseException:
        # Without this, the pool would wait for running trainings to end.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown()
    return curves


def _one_thread() -> None:
    # One thread per process, or trainings side by side slow each other down.
    torch.set_num_threads(1)


@lru_cache(maxsize=2)
def _data(name: str, folder: Path | None) -> ReferenceDataset:
    return load_dataset(name, folder)
