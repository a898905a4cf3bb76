"""PyTorch Lightning on spot machines: three lines in a program.

    from ebbtide.frameworks.lightning import SpotCallback, newest_checkpoint

    trainer = Trainer(max_epochs=10, callbacks=[SpotCallback()])
    trainer.fit(model, loader, ckpt_path=newest_checkpoint())

After a notice, Lightning writes its checkpoint at the end of the current optimizer step, and the program exits. On
the next machine training continues with the next batch, in the same order and with the same random numbers, as if
uninterrupted; Lightning alone would restart the epoch's data (its "dataloader is not resumable").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments import MPIEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer

from ebbtide import trial as trials
from ebbtide.frameworks.metrics import reportable
from ebbtide.trial import Trial
from ebbtide.trial_processes import Agreement
from ebbtide.trial_torch import TorchState

_FILE = "lightning.ckpt"
_ASK = "pass ckpt_path=newest_checkpoint() to Trainer.fit, from ebbtide.frameworks.lightning"


# Variables that launchers of MPI set for each process: Open MPI, MPICH and others, Slurm with either.
_MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")

_detects_mpi = MPIEnvironment.detect


def _is_mpi() -> bool:
    """Ask Lightning whether MPI has started this process, but only if a launcher's variable is set.

    Lightning 2.6 initialises MPI to find out, wherever mpi4py is installed. Without a working MPI library, mpi4py
    raises `RuntimeError` instead of the `ImportError` that Lightning expects, or MPI aborts the process. Slurm
    sets such a variable even without any MPI library.
    """
    if not any(name in os.environ for name in _MPI_VARIABLES):
        return False
    try:
        return bool(_detects_mpi())
    except RuntimeError:
        return False


MPIEnvironment.detect = staticmethod(_is_mpi)


def newest_checkpoint() -> str | None:
    """Return the path of the newest checkpoint, for `Trainer.fit(ckpt_path=...)`; None: there is none."""
    folder = trials.newest_checkpoint()
    return None if folder is None else str(folder / _FILE)


class SpotCallback(Callback):
    """Reports steps and metrics, saves on request, and resumes within an epoch, no batch skipped or repeated.

    A step is a step of the optimizer: training is saved only between two steps, even if gradients are accumulated
    over batches. After a notice during a batch that a validation follows, it is saved after the validation and the
    next step. Metrics that the module logs are reported after each validation, or each epoch if there is none.
    """

    def __init__(self) -> None:
        self._trial = Trial.of_program()
        # Holds the current random states, and those at the epoch's start.
        self._randoms = TorchState()
        self._trainer: Trainer | None = None
        self._epoch_is_known = False
        self._is_wanted = False
        self._has_begun = False

    # Methods of a keeper.

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Have Lightning write its checkpoint into a folder, and write the random states beside it."""
        assert self._trainer is not None
        self._trainer.save_checkpoint(folder / _FILE)
        self._randoms.save(folder, within_step=within_step)

    def restore(self, folder: Path) -> None:
        """Read the random states; Lightning reads the rest."""
        self._randoms.restore(folder)

    @property
    def ends_at(self) -> int | None:
        """The state is complete between steps only."""
        return None

    def agreement(self) -> Agreement | None:
        """Return how processes that train as one agree on the step to save at; None: there is one process."""
        return self._randoms.agreement()

    # Methods of a callback.

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the random states from the newest checkpoint, if any, before the loader begins.

        Raises:
            ValueError: There is a checkpoint, and `ckpt_path` is not set.
        """
        self._trainer = trainer
        if self._trial.keep(self) and trainer.ckpt_path is None:
            raise ValueError(f"there is a checkpoint to resume from: {_ASK}")
        self._randoms.watch(trainer.fit_loop._data_source.instance)
        if not self._trial.step:
            self._epoch_begins()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set random states, and skip the batches that are done.

        Raises:
            ValueError: Lightning has resumed from another step than the newest checkpoint's, or the module makes a
                loader with a generator of its own, whose state at the start is not known.
        """
        # Lightning has replaced the signal handler by one that saves nothing.
        self._trial.listen()
        if trainer.global_step != self._trial.step:
            raise ValueError(
                f"Lightning begins at step {trainer.global_step}, the newest checkpoint is of step "
                f"{self._trial.step}: {_ASK}"
            )
        if self._randoms.watch(*_loaders(trainer)):
            raise ValueError(
                "a loader has a generator of its own, whose state is known only if the loader is given to "
                "Trainer.fit(model, loader): give it there, or leave the generator out"
            )
        self._trial.loop_began()
        self._has_begun = True
        if self._trial.step:
            self._pass_over(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the random states that determine the epoch's data order."""
        if not self._epoch_is_known:
            self._epoch_begins(*_loaders(trainer))
        self._epoch_is_known = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step, unless the batch only accumulated gradients."""
        if trainer.global_step == self._trial.step:
            return
        self._is_wanted = self._trial.step_ended() or self._is_wanted
        if self._trial.max_steps is not None and self._trial.step >= self._trial.max_steps:
            trainer.should_stop = True
        ends_epoch = batch_idx + 1 >= trainer.num_training_batches
        validates = bool(trainer.val_check_batch) and (batch_idx + 1) % trainer.val_check_batch == 0
        if self._is_wanted and not ends_epoch and not validates:
            self._is_wanted = False
            self._trial.save_wanted()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the metrics that the module has logged."""
        if not trainer.sanity_checking:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report metrics if there is no validation, and make a save requested at the epoch's last batch."""
        if not trainer.enable_validation:
            self._report(trainer)
        # With `max_steps` Lightning's checkpoint does not know that the epoch has ended: save after the next step.
        if self._is_wanted and trainer.max_steps == -1:
            self._is_wanted = False
            self._trial.save_wanted()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, and mark the training as done."""
        if not self._has_begun:
            # The checkpoint is of the last step, so Lightning had nothing left to train.
            self._trial.loop_began()
        self._trial.loop_ended()

    def _report(self, trainer: Trainer) -> None:
        self._trial.report(**reportable(trainer.callback_metrics))

    def _epoch_begins(self, *loaders: object) -> None:
        self._randoms.watch(*loaders)
        self._randoms.epoch_began(None)
        self._epoch_is_known = True

    def _pass_over(self, trainer: Trainer) -> None:
        """Start the loader with the random states of its epoch's start, and skip the batches that are done."""
        loop = trainer.fit_loop
        fetcher, done = loop._data_fetcher, loop.epoch_loop.batch_progress.current.ready
        assert fetcher is not None
        if done >= trainer.num_training_batches:
            # The checkpoint was saved between two epochs.
            self._randoms.rewind()
            self._epoch_begins()
            iter(fetcher)
            return
        for loader in _loaders(trainer):
            for name in ("sampler", "batch_sampler"):
                set_epoch = getattr(getattr(loader, name, None), "set_epoch", None)
                if set_epoch is not None:
                    set_epoch(trainer.current_epoch)
        self._randoms.rewind(to_epoch=True)
        batches = iter(fetcher)
        for _ in range(done):
            next(batches)
        # Lightning adds the skipped batches itself.
        fetcher.fetched -= done
        self._randoms.rewind()


def _loaders(trainer: Trainer) -> Iterator[object]:
    loader = trainer.fit_loop._combined_loader
    return iter(() if loader is None else loader.flattened)
