"""Keras with the PyTorch backend on spot machines: two lines in a program.

    from ebbtide.frameworks.keras import SpotCallback

    model.fit(inputs, labels, epochs=10, callbacks=[SpotCallback()])

After a notice, the callback saves weights, optimizer, metrics and random states at the end of the current batch,
and the program exits. On the next machine `fit` continues with the next batch, in the same order and with the same
random numbers; Keras's own `BackupAndRestore` would restart the epoch's data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import torch
from keras.src.random.seed_generator import global_seed_generator

from ebbtide.frameworks.metrics import reportable
from ebbtide.trial import Trial
from ebbtide.trial_processes import Agreement
from ebbtide.trial_torch import TorchState

_FILE = "keras.pt"


class SpotCallback(keras.callbacks.Callback):
    """Reports steps and metrics, saves on request, and resumes within an epoch, no batch skipped or repeated.

    A step is a batch. To resume, the epoch's finished batches are read again and skipped, so each epoch has to go
    over all data, in an order that depends on random states alone: arrays, or a `DataLoader`. The state of a
    generator, of a `PyDataset` that shuffles in `on_epoch_end`, or of another callback such as `EarlyStopping` is
    not kept, and an epoch that `steps_per_epoch` cuts short cannot be resumed.

    Args:
        loader: The `DataLoader` passed to `fit`, if it has a generator of its own; None: it has none.

    Raises:
        ValueError: Keras runs on another backend than PyTorch.
        RuntimeError: The program has trained before.
    """

    def __init__(self, loader: object = None) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise ValueError(
                f"Keras runs on {keras.backend.backend()}, and this callback needs PyTorch beneath it: set "
                "KERAS_BACKEND=torch, or let the program keep checkpoints of its own in $EBBTIDE_CHECKPOINT_DIR"
            )
        self._trial = Trial.of_program()
        # Holds the current random states, and those at the epoch's start.
        self._randoms, self._loader = TorchState(), loader
        self._epoch = self._done = 0
        # Number of finished batches to skip, and the state after them.
        self._passing, self._restored = 0, dict[str, list[torch.Tensor]]()
        self._train: Callable[[Any], Any] | None = None

    # Methods of a keeper.

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Write all variables, the position in the epoch and the random states into a folder."""
        parts = {name: _values(variables) for name, variables in self._variables().items()}
        torch.save({"epoch": self._epoch, "done": self._done, **parts}, folder / _FILE)
        self._randoms.save(folder, within_step=within_step)

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            ValueError: The checkpoint is of another model or optimizer.
        """
        content = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
        self._epoch, self._done = content.pop("epoch"), content.pop("done")
        for name, variables in self._variables().items():
            ours, theirs = ([tuple(each.shape) for each in several] for several in (variables, content[name]))
            if ours != theirs:
                raise ValueError(
                    f"{folder}: the checkpoint's {name} has variables of shapes {theirs}, the program's {ours}: "
                    "use the same model and optimizer, or begin with an empty checkpoint folder"
                )
        self._restored = content
        self._assign()
        self._randoms.restore(folder)

    @property
    def ends_at(self) -> int | None:
        """The state is complete between steps only."""
        return None

    def agreement(self) -> Agreement | None:
        """Return how processes that train as one agree on the step to save at; None: there is one process."""
        return self._randoms.agreement()

    # Methods of a callback.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begin, or resume from the newest checkpoint.

        Raises:
            ValueError: There are optimizers that cannot be kept, or the checkpoint is of another model.
        """
        self._check_optimizers()
        self._trial.keep(self)
        self._passing = self._done
        # Keras's own `BackupAndRestore` sets the first epoch in the same way.
        self.model._initial_epoch = self._epoch
        self._trial.loop_began()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Record the random states that determine the epoch's data order, or restore them when resuming."""
        self._epoch, self._done = epoch, 0
        if not self._passing:
            self._randoms.epoch_began(self._loader)
            return
        self._randoms.rewind(self._loader, to_epoch=True)
        self._train = self.model.train_function
        self.model.train_function = self._pass_over

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a step, unless its batch was skipped."""
        self._done += 1
        if self._train is not None:
            if self._done >= self._passing:
                self._go_on()
            return
        is_wanted = self._trial.step_ended()
        self._stop_if_enough()
        if is_wanted:
            self._trial.save_wanted()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report Keras's metrics of training and validation.

        Raises:
            ValueError: The epoch has fewer batches than were done before the restart.
        """
        if self._train is not None:
            self.model.train_function = self._train
            raise ValueError(
                f"an epoch has {self._done} batches now, and {self._passing} of it were done: use the same data "
                "and batch size, or an empty checkpoint folder"
            )
        self._trial.report(**reportable(logs or {}))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Save, and mark the training as done."""
        self.model._initial_epoch = None
        self._trial.loop_ended()

    def _pass_over(self, _batches: Any) -> Any:
        """Skip a batch, in place of a training step."""
        return self.model.get_metrics_result()

    def _go_on(self) -> None:
        """Restore the saved state after all finished batches were skipped, and resume training.

        Meanwhile other callbacks, such as learning rate schedules, were called as in the first pass.
        """
        self.model.train_function, self._train, self._passing = self._train, None, 0
        self._assign()
        self._randoms.rewind(self._loader)
        self._stop_if_enough()

    def _stop_if_enough(self) -> None:
        if self._trial.max_steps is not None and self._trial.step >= self._trial.max_steps:
            self.model.stop_training = True

    def _variables(self) -> dict[str, Sequence[Any]]:
        """Return all variables of Keras's own state."""
        return {
            "model": self.model.variables,
            "optimizer": self.model.optimizer.variables,
            "metrics": self.model.metrics_variables,
            "seed": [global_seed_generator().state],
        }

    def _assign(self) -> None:
        for name, variables in self._variables().items():
            for variable, value in zip(variables, self._restored[name], strict=True):
                variable.assign(value)

    def _check_optimizers(self) -> None:
        kind = keras.optimizers.Optimizer
        if not isinstance(self.model.optimizer, kind):
            raise ValueError("the model was compiled without an optimizer, whose state could be kept")
        other = [
            name
            for name, one in vars(self.model).items()
            if isinstance(one, kind) and one is not self.model.optimizer
        ]
        if other:
            raise ValueError(
                f"the model has optimizers beside the compiled one ({', '.join(other)}), whose state is not "
                "kept: let the program keep checkpoints of its own in $EBBTIDE_CHECKPOINT_DIR"
            )


def _values(variables: Sequence[Any]) -> list[torch.Tensor]:
    return [keras.ops.convert_to_tensor(each).detach().cpu().clone() for each in variables]
