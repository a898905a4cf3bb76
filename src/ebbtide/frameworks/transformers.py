"""Hugging Face's Trainer on spot machines: three lines in a program.

    from ebbtide.frameworks.transformers import SpotCallback, newest_checkpoint

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[SpotCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint())

After a notice, the Trainer writes its checkpoint at the end of the current optimizer step, and the program exits.
On the next machine the Trainer continues with the next batch and the saved random states. Tools built on the
Trainer (TRL, axolotl, the example scripts) take the callback, too.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ebbtide import trial as trials
from ebbtide.frameworks.metrics import reportable
from ebbtide.trial import Trial
from ebbtide.trial_processes import Agreement
from ebbtide.trial_torch import TorchState

_FOLDER = "transformers"


def newest_checkpoint() -> str | None:
    """Return the newest checkpoint's path, for `Trainer.train(resume_from_checkpoint=...)`; None: none exists."""
    folder = trials.newest_checkpoint()
    return None if folder is None else str(folder / _FOLDER)


class SpotCallback(TrainerCallback):
    """Reports steps and metrics, and has the Trainer save on request.

    A step is a step of the optimizer. Checkpoints that the Trainer writes anyway (`save_strategy`) are kept, too.
    After a notice at an epoch's last step, the save follows the epoch's evaluation.
    """

    def __init__(self) -> None:
        self._trial = Trial.of_program()
        self._written: Path | None = None
        self._is_wanted = False

    # Methods of a keeper.

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Copy the checkpoint that the Trainer has just written, by hard links where possible."""
        assert self._written is not None
        if self._trial.is_first:
            shutil.copytree(self._written, folder / _FOLDER, copy_function=_linked)

    def restore(self, folder: Path) -> None:
        """Do nothing: the Trainer restores its own state."""

    @property
    def ends_at(self) -> int | None:
        """The state is complete between steps only."""
        return None

    def agreement(self) -> Agreement | None:
        """Return how processes that train as one agree on the step to save at; None: there is one process."""
        return TorchState().agreement()

    # Methods of a callback.

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Begin, or resume from the newest checkpoint.

        Raises:
            ValueError: The Trainer resumes from another step, or is told to write checkpoints or read them so that
                training cannot be resumed exactly.
        """
        if args.save_only_model:
            raise ValueError("save_only_model=True: checkpoints without the optimizer cannot be resumed from")
        if args.ignore_data_skip:
            raise ValueError("ignore_data_skip=True would train on some batches twice after each resumption")
        if self._trial.keep(self) != state.global_step:
            raise ValueError(
                f"the Trainer begins at step {state.global_step}, the newest checkpoint is of step "
                f"{self._trial.step}: pass resume_from_checkpoint=newest_checkpoint() to Trainer.train, from "
                "ebbtide.frameworks.transformers"
            )
        self._trial.loop_began()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Count a step, and request a save if one is wanted."""
        self._is_wanted = self._trial.step_ended() or self._is_wanted
        if self._trial.max_steps is not None and self._trial.step >= self._trial.max_steps:
            control.should_training_stop = True
        # The Trainer saves the last step only on request.
        self._is_wanted = self._is_wanted or state.global_step >= state.max_steps
        ends_epoch = state.epoch is not None and abs(state.epoch - round(state.epoch)) < 1e-9
        if self._is_wanted and not ends_epoch:
            control.should_save = True
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Request a save wanted at the epoch's last step; the Trainer makes it after the epoch's evaluation."""
        if self._is_wanted:
            control.should_save = True
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Keep the checkpoint that the Trainer has written."""
        self._written = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        self._is_wanted = False
        self._trial.save_wanted()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **_: Any,
    ) -> TrainerControl:
        """Report evaluation metrics, and request a save if the training stops here."""
        control.should_save = control.should_save or control.should_training_stop
        evaluated = {name: value for name, value in metrics.items() if name.startswith("eval_")}
        self._trial.report(**reportable(evaluated))
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **_: Any,
    ) -> None:
        """Report the loss in training."""
        if "loss" in logs:
            self._trial.report(loss=logs["loss"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Mark the training as done."""
        written = self._written is not None and self._written.name == f"checkpoint-{state.global_step}"
        self._trial.loop_ended(saves=written)


def _linked(source: str, target: str) -> None:
    """Make a hard link, or a copy where links are not possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
