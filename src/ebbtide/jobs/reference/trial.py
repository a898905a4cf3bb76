"""The protocol of a training: one step at a time, with a state that can be saved and restored between steps."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ebbtide.base.files import replacing
from ebbtide.errors import InputError

State = dict[str, Any]


class ReferenceTrial(Protocol):
    """Training of one setting.

    A step depends on the state alone, so that a trial restored from a checkpoint continues bit for bit as if it
    had never stopped.

    Attributes:
        step: Number of steps done.
        max_steps: Number of steps to do (SpotTune's max_trial_steps).
        validate_every: Number of steps between validations.
    """

    step: int
    max_steps: int
    validate_every: int

    def train_step(self) -> None:
        """Do one training step."""
        ...

    def validate(self) -> float:
        """The metric on validation data, lower is better; changes nothing."""
        ...

    def state(self) -> State:
        """Everything that the next steps depend on: weights, optimiser, schedule, random state, step.

        It holds tensors and plain values only.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state of the same setting."""
        ...


def save(trial: ReferenceTrial, path: str | Path, *, setting: Mapping[str, Any]) -> None:
    """Write a trial's state and setting, atomically."""
    with replacing(path) as temporary:
        torch.save({"setting": dict(setting), "state": trial.state()}, temporary)


def load(trial: ReferenceTrial, path: str | Path, *, setting: Mapping[str, Any]) -> None:
    """Restore a trial from what `save` wrote. Only tensors and plain values are unpickled.

    Raises:
        InputError: The file is missing, is not a checkpoint, is damaged, or is of another setting.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        written_for, state = content["setting"], content["state"]
    except FileNotFoundError:
        raise InputError("there is no such checkpoint", file=path) from None
    except (RuntimeError, ValueError, KeyError, TypeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise InputError(f"is no checkpoint that can be read: {error}", file=path) from None
    if written_for != dict(setting):
        raise InputError(f"is of another setting, {written_for}; this training has {dict(setting)}", file=path)
    trial.restore(state)
