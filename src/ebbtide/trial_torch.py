"""Checkpoints of PyTorch training, for `ebbtide.trial`: bit for bit what the next step depends on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Protocol

import torch


class Stateful(Protocol):
    """A model, an optimiser, a schedule: whatever has a state."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take them on."""
        ...


class TorchState:
    """Keeps models, optimisers, schedules and random numbers.

    Training may be interrupted in the middle of an evaluation or of compiling, too: what is kept changes from a
    model's forward pass in training mode until its optimiser's step, and at no other time.

    Args:
        parts: By name, as `model=model, optimizer=optimizer`. One optimiser's step is a step of training.
    """

    def __init__(self, **parts: Stateful) -> None:
        self._parts = parts
        self._steps = 0
        self._whole = True
        self._randoms = _randoms()
        optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
        self._knows = len(optimizers) == 1 and not _has_schedule(parts)
        if self._knows:
            optimizers[0].register_step_post_hook(self._stepped)
            for part in parts.values():
                if isinstance(part, torch.nn.Module):
                    part.register_forward_pre_hook(self._entered)

    @property
    def ends_at(self) -> int | None:
        """Steps of the optimiser so far, where all that is kept is theirs."""
        return self._steps if self._knows and self._whole else None

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Write `state.pt`."""
        states = {name: part.state_dict() for name, part in self._parts.items()}
        # Training that goes on from here does not see what random numbers half an evaluation drew.
        randoms = self._randoms if within_step else _randoms()
        torch.save({"parts": states, "randoms": randoms}, folder / "state.pt")

    def restore(self, folder: Path) -> None:
        """Read `state.pt`; nothing but tensors and plain values."""
        content = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
        for name, part in self._parts.items():
            part.load_state_dict(content["parts"][name])
        randoms = content["randoms"]
        torch.set_rng_state(randoms["torch"])
        version, internal, gauss = randoms["python"]
        random.setstate((version, tuple(internal), gauss))
        self._randoms = randoms

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        self._whole = True
        self._randoms = _randoms()

    def _entered(self, module: torch.nn.Module, _: Any) -> None:
        if module.training:
            self._whole = False


def _randoms() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    return {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}


def _has_schedule(parts: dict[str, Stateful]) -> bool:
    """A schedule moves on after the optimiser: only between steps is it known that it has."""
    return any(isinstance(part, torch.optim.lr_scheduler.LRScheduler) for part in parts.values())
