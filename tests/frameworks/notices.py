"""Trainings that get a notice after a step, and are run again until they end; their weights must not tell."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ebbtide.trial import AGENT, CHECKPOINT_DIR, Trial

# For tests that need a GPU.
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and this machine has none")

# More resumptions than any test has notices.
_MOST = 20


def digest(model: torch.nn.Module) -> str:
    """Of all weights and buffers of a model."""
    values = [value.detach().cpu().flatten().double() for value in model.state_dict().values()]
    return hashlib.sha256(torch.cat(values).numpy().tobytes()).hexdigest()


@contextmanager
def signals_as_before() -> Iterator[None]:
    """As if it were a program of its own: handlers of signals are those of before at the end, and no trial is left."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        Trial._latest = None


def undisturbed(train: Callable[[], str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a training comes to that nobody interrupts."""
    monkeypatch.setenv(CHECKPOINT_DIR, str(folder / "undisturbed"))
    with signals_as_before():
        return train()


def after_notices(
    train: Callable[[], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: Iterable[int],
    number: int = signal.SIGTERM,
) -> tuple[str, list[int]]:
    """What a training comes to that gets a signal when each of these steps has ended.

    Returns:
        What it comes to, and the step from which each run began.
    """
    monkeypatch.setenv(CHECKPOINT_DIR, str(folder / "interrupted"))
    monkeypatch.setenv(AGENT, "1")
    left, began = set(steps), []
    whole, begins = Trial.step_ended, Trial.loop_began

    def step_ended(trial: Trial) -> bool:
        if trial.step + 1 in left:
            left.remove(trial.step + 1)
            signal.raise_signal(number)
        return whole(trial)

    def loop_began(trial: Trial) -> None:
        began.append(trial.step)
        begins(trial)

    monkeypatch.setattr(Trial, "step_ended", step_ended)
    monkeypatch.setattr(Trial, "loop_began", loop_began)
    for _ in range(_MOST):
        with signals_as_before():
            try:
                found = train()
            except SystemExit as left_early:
                if left_early.code:
                    raise
                continue
        assert not left
        monkeypatch.undo()
        return found, began
    raise AssertionError("it was never finished")
