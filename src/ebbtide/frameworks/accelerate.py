"""Hugging Face Accelerate on machines that may be taken: three lines in a program.

    from ebbtide.frameworks.accelerate import epochs

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch, batches in epochs(accelerator, loader, 10):      # was: for epoch in range(10)
        for inputs, labels in batches:                          # was: in loader
            ...
            accelerator.log({"loss": loss.item()})

All that `prepare` and `register_for_checkpointing` were given is kept: models, optimizers, schedules, the scaler
of mixed precision. A notice is answered after the current batch, and on the next machine training goes on with the
next one, in the same order and with the same random numbers. What `accelerator.log` is given is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from accelerate import Accelerator, DistributedType
from accelerate.tracking import GeneralTracker

from ebbtide.frameworks.metrics import reportable
from ebbtide.trial import Batches, Trial
from ebbtide.trial_torch import TorchState

Batch = TypeVar("Batch")

# Each process holds a part of the model, in a form of its own.
_DIVIDED = (
    DistributedType.FSDP,
    DistributedType.DEEPSPEED,
    DistributedType.MEGATRON_LM,
    DistributedType.XLA,
)


def epochs(
    accelerator: Accelerator, loader: Iterable[Batch], count: int | None = None
) -> Iterator[tuple[int, Batches[Batch]]]:
    """Numbers of the epochs that are left, counted from 1, each with its batches that are left.

    As `Trial.epochs`, with the state of an accelerator kept: call it once in a program, when everything is
    prepared. Batches of another loader that the body reads are not passed over when training resumes.

    Args:
        accelerator: The accelerator that has prepared what is trained.
        loader: The loader that it has prepared.
        count: Number of epochs in all; None: as many as the sweep's `max_trial_steps` batches need.

    Raises:
        ValueError: Nothing was prepared, or the model is divided among processes; or the loader does not fit, as
            `Trial.epochs` tells.
        RuntimeError: The program has trained before.
    """
    trial = Trial.of_program()
    trial.keep(_keeper(accelerator))
    # `accelerator.log` gives to each of these what it is given.
    accelerator.trackers.append(_Reports(trial))
    return _counted(accelerator, trial.epochs(loader, count))


def _counted(
    accelerator: Accelerator, left: Iterator[tuple[int, Batches[Batch]]]
) -> Iterator[tuple[int, Batches[Batch]]]:
    for epoch, batches in left:
        # By this number `accumulate` knows after which batch the optimizer steps; a new process begins at 0.
        accelerator.step = batches.done
        yield epoch, batches


def _keeper(accelerator: Accelerator) -> TorchState:
    """Keeps all that an accelerator would save."""
    kind = accelerator.distributed_type
    if kind in _DIVIDED:
        raise ValueError(
            f"{kind.value} divides the model, which cannot be kept here; keep a model that fully_shard has "
            "divided as ebbtide.trial_sharded.ShardedState, in a loop over trial.epochs"
        )
    models = list(accelerator._models)
    if not models:
        raise ValueError("nothing is trained yet: call accelerator.prepare before epochs")
    rest = {
        **_named("optimizer", accelerator._optimizers),
        **_named("schedule", accelerator._schedulers),
        **_named("own", accelerator._custom_objects),
    }
    if accelerator.scaler is not None:
        rest["scaler"] = accelerator.scaler
    return TorchState(**_named("model", models), **rest)


def _named(name: str, parts: Iterable[Any]) -> dict[str, Any]:
    return {f"{name}_{number}" if number else name: part for number, part in enumerate(parts)}


class _Reports(GeneralTracker):
    """Reports the numbers among what is logged."""

    name = "ebbtide"
    requires_logging_directory = False

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial = trial

    @property
    def tracker(self) -> Trial:
        """The trial that it reports to."""
        return self._trial

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Report what is logged, a `/` in a name as `_`, as of the present step, whatever the program counts."""
        found = reportable(values)
        if found:
            self._trial.report(**found)
