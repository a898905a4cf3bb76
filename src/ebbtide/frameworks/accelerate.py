"""Hugging Face Accelerate on spot machines: three lines in a program.

    from ebbtide.frameworks.accelerate import epochs

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch, batches in epochs(accelerator, loader, 10):      # was: for epoch in range(10)
        for inputs, labels in batches:                          # was: in loader
            ...
            accelerator.log({"loss": loss.item()})

Checkpoints hold all that `prepare` and `register_for_checkpointing` got: models, optimizers, schedules, and the
scaler of mixed precision. After a notice, training saves at the end of the current batch; the next machine
continues with the next batch, in the same order and with the same random numbers. Values passed to
`accelerator.log` are reported.
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

# Each process holds only a part of the model, in a format of its own.
_DIVIDED = (
    DistributedType.FSDP,
    DistributedType.DEEPSPEED,
    DistributedType.MEGATRON_LM,
    DistributedType.XLA,
)


def epochs(
    accelerator: Accelerator, loader: Iterable[Batch], count: int | None = None
) -> Iterator[tuple[int, Batches[Batch]]]:
    """Iterate over the remaining epochs, counted from 1, each with its remaining batches.

    Like `Trial.epochs`, and also keeps the accelerator's state. Call it once in a program, after everything is
    prepared. If the body reads another loader, its batches are not skipped when training resumes.

    Args:
        accelerator: The accelerator that has prepared the model.
        loader: The loader that it has prepared.
        count: Total number of epochs; None: as many as the sweep's `max_trial_steps` batches need.

    Raises:
        ValueError: Nothing was prepared, the model is divided among processes, or the loader is unsuitable for
            `Trial.epochs`.
        RuntimeError: The program has trained before.
    """
    trial = Trial.of_program()
    trial.keep(_keeper(accelerator))
    # `accelerator.log` passes its values to each tracker.
    accelerator.trackers.append(_Reports(trial))
    return _counted(accelerator, trial.epochs(loader, count))


def _counted(
    accelerator: Accelerator, left: Iterator[tuple[int, Batches[Batch]]]
) -> Iterator[tuple[int, Batches[Batch]]]:
    for epoch, batches in left:
        # `accumulate` decides by this counter after which batch the optimizer steps; a new process starts at 0.
        accelerator.step = batches.done
        yield epoch, batches


def _keeper(accelerator: Accelerator) -> TorchState:
    """Make a keeper of everything that the accelerator would save."""
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
    """Reports the numbers among the logged values."""

    name = "ebbtide"
    requires_logging_directory = False

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial = trial

    @property
    def tracker(self) -> Trial:
        """The trial that gets the reports."""
        return self._trial

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Report logged numbers at the trial's current step, ignoring `step`; a `/` in a name becomes `_`."""
        found = reportable(values)
        if found:
            self._trial.report(**found)
