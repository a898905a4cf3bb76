"""For training programs: steps and epochs that can be interrupted, metrics, and checkpoints.

    from ebbtide.trial import Trial
    from ebbtide.trial_torch import TorchState

    trial = Trial.current()
    trial.keep(TorchState(model=model, optimizer=optimizer))      # resumes from the newest checkpoint
    for epoch, batches in trial.epochs(loader, 10):               # or: for step in trial.steps(1000)
        for inputs, labels in batches:
            ...                                                    # one step of training
        trial.report(validation_loss=validate(model))

Run by an agent, the program is asked to save before its machine is revoked; run alone, it trains the same way.
Several processes that train as one (torchrun, MPI) each make a trial; they save and leave at the same step.
Of Ebbtide, this module imports `trial_processes` alone, which imports nothing else of it.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from ebbtide.trial_processes import (
    LEAVE,
    NOTHING,
    SAVE,
    Agreement,
    Agrees,
    CalledAgreement,
    ProcessPlace,
    first_part,
)

# Environment variables that the agent sets.
TRIAL_ID = "EBBTIDE_TRIAL_ID"
CHECKPOINT_DIR = "EBBTIDE_CHECKPOINT_DIR"
MAX_STEPS = "EBBTIDE_MAX_STEPS"
AGENT = "EBBTIDE_AGENT"
# Where several machines train as one: their addresses by rank, with commas between them, and this machine's rank.
MACHINES = "EBBTIDE_MACHINES"
RANK = "EBBTIDE_RANK"
# What those machines alone know, as hexadecimal digits; and a named pipe for reports, where the agent of this
# machine does not read what the program prints.
SECRET = "EBBTIDE_SECRET"
REPORTS = "EBBTIDE_REPORTS"
# Where the run keeps its objects: of programs on a cluster, which may keep there what they compute.
STORE = "EBBTIDE_STORE"
# Of a job that needs others: the folder with what they have stored, in a folder for each by its name.
INPUTS = "EBBTIDE_INPUTS"
# Of a task of an array: its value, its number, and the folder whose files are its result.
TASK = "EBBTIDE_TASK"
TASK_NUMBER = "EBBTIDE_TASK_NUMBER"
RESULT_DIR = "EBBTIDE_RESULT_DIR"

# Steps without a metric are reported no more often than this.
_REPORT_EVERY_S = 0.2
# Checkpoints that a program keeps when it runs without an agent.
_KEPT_ALONE = 2
_PREFIX = "step-"
_DIGITS = 12
_POSITION = "position.json"
# Names that the agent reads as something else than a metric.
RESERVED = frozenset(
    ["api", "trial", "step", "step_s", "started", "saved", "save_s", "folder", "left", "finished", "not_finite"]
)

Batch = TypeVar("Batch")


class Keeper(Protocol):
    """Saves and restores everything that training depends on."""

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Write the state into a folder.

        Args:
            folder: An empty folder for the files.
            within_step: Whether this is called within a step. Then the state is that of a complete step: nothing
                has changed since the last step ended, or the rest of the present step changes nothing.
        """
        ...

    def restore(self, folder: Path) -> None:
        """Read the state from a folder that `save` wrote."""
        ...

    @property
    def ends_at(self) -> int | None:
        """Number of complete steps that `save` would write at this moment, counted since this process started;
        None: the state is complete only between steps."""
        ...


@runtime_checkable
class EpochKeeper(Protocol):
    """Further methods of a keeper, to resume within an epoch bit for bit; `TorchState` has them."""

    def step_ended(self) -> None:
        """A step has ended, with everything that belongs to it."""
        ...

    def mark(self) -> None:
        """Remember the state: training can be resumed from here."""
        ...

    def is_unchanged(self) -> bool:
        """Return whether the state is the same as at the mark, random states aside, which are remembered."""
        ...

    def epoch_began(self, loader: object) -> None:
        """Remember the random states that determine the loader's order."""
        ...

    def rewind(self, loader: object = None, *, to_epoch: bool = False) -> None:
        """Set random states to those of the restored checkpoint.

        Args:
            loader: Loader whose own generators are set, too; None: there is none.
            to_epoch: Whether to set those at the start of the checkpoint's epoch instead of at the checkpoint.
        """
        ...

    def slowest_wait_s(self) -> float | None:
        """Longest time in seconds for which training could not be saved, since the last call; None: not known."""
        ...


@dataclass(frozen=True)
class Position:
    """The position of a training in its loop.

    Attributes:
        step: Number of steps done, over all epochs.
        epoch: Number of epochs that are over.
        batch: Number of batches done in the present epoch.
        ended: Whether all batches of that epoch are done, but what follows them in its body has not run yet, or
            has to run again.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    ended: bool = False


@dataclass(eq=False)
class Trial:
    """The training of one setting of hyperparameters.

    Attributes:
        trial_id: Id of the trial, the same on every machine.
        folder: Folder for checkpoints; None: none are written.
        has_agent: Whether an agent uploads and removes checkpoints.
        max_steps: Number of steps that the sweep sets; None: it sets none.
    """

    trial_id: str = "alone"
    folder: Path | None = None
    has_agent: bool = False
    max_steps: int | None = None
    _position: Position = field(default_factory=Position)
    # Position of the newest checkpoint; without one, the beginning.
    _saved: Position = field(default_factory=Position)
    _keeper: Keeper | None = None
    _restored: Path | None = None
    _batches_an_epoch: int | None = None
    _resume_step: int = 0
    _looped: bool = False
    _in_epochs: bool = False
    _broken: bool = False
    _leaving: bool = False
    _finished: bool = False
    _wanted: bool = False
    # Whether the loop belongs to a framework, and what is asked for in it and not done yet.
    _is_driven: bool = False
    _wish: int = NOTHING
    _in_step: bool = False
    _saving: bool = False
    _saved_within: bool = False
    _marked: Position | None = None
    _reported_s: float = 0.0
    _step_began_s: float | None = None
    _slowest_s: float = 0.0
    _pid: int = field(default_factory=os.getpid)
    _process: ProcessPlace = field(default_factory=ProcessPlace.current)
    # Set while a loop runs in which several processes train as one.
    _agreement: Agreement | None = None
    _agree: Callable[[int], int] | None = None
    # Whether a metric was reported, and the trial that `current` made last.
    _has_reported: bool = False
    _latest: ClassVar[Trial | None] = None

    @classmethod
    def latest(cls) -> Trial | None:
        """The trial that `current` made last in this process; None: it made none."""
        return cls._latest

    @classmethod
    def of_program(cls) -> Trial:
        """The trial of this process, for a training that is all that the program trains.

        Without checkpoints, as in a notebook, a second training only warns.

        Raises:
            RuntimeError: The process has trained before: a second training would resume from the first one's
                checkpoint.
        """
        if cls._latest is not None and cls._latest._looped:
            problem = "this program has had a training already; where it keeps checkpoints, it can train once only"
            if _folder() is not None:
                raise RuntimeError(f"{problem}: the second would go on from the first one's")
            warnings.warn(problem, stacklevel=3)
        return cls.current()

    @classmethod
    def current(cls, agree: Callable[[int], int] | None = None) -> Trial:
        """The trial that this process was started for; without an agent, a trial without checkpoints.

        From then on SIGTERM asks the program to save and exit, and SIGUSR1 to save.

        Args:
            agree: For several processes that train as one and do not use `torch.distributed`: a function that
                returns the highest of the numbers that they call it with, such as
                `lambda wish: comm.allreduce(wish, op=MPI.MAX)`. Each calls it once a step.
        """
        steps = os.environ.get(MAX_STEPS)
        trial = cls(
            os.environ.get(TRIAL_ID, "alone"),
            _folder(),
            AGENT in os.environ,
            int(steps) if steps else None,
            _agree=agree,
        )
        cls._latest = trial
        trial.listen()
        trial._emit({"api": 1, "trial": trial.trial_id, "pid": os.getpid()})
        return trial

    def listen(self) -> None:
        """From now on SIGTERM asks the program to save and exit, and SIGUSR1 to save."""
        signal.signal(signal.SIGTERM, self._asked_to_leave)
        signal.signal(signal.SIGUSR1, self._asked_to_save)

    @property
    def has_reported(self) -> bool:
        """True if the trial has reported a metric."""
        return self._has_reported

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self._position.step

    def keep(self, keeper: Keeper) -> int:
        """Use this keeper to save and restore, and restore the newest checkpoint if there is one.

        Args:
            keeper: Saves and restores the training's state, such as a `TorchState`.

        Returns:
            The resume step; 0: there is no checkpoint.

        Raises:
            RuntimeError: Called twice, or after the loop began.
            TypeError: The keeper lacks a method or property of `Keeper`.
        """
        if self._keeper is not None or self._looped:
            raise RuntimeError("trial.keep is called once, before the loop: give all parts to one TorchState")
        lacking = [each for each in ("save", "restore", "ends_at") if not hasattr(keeper, each)]
        if lacking:
            raise TypeError(
                f"{type(keeper).__name__} has no {' and no '.join(lacking)}: a keeper has save, restore and "
                "ends_at (None if its state is complete only between steps); TorchState is one"
            )
        newest = max(self._checkpoints(), default=None)
        if newest is not None:
            self._restored = self._part_of(newest)
            keeper.restore(self._restored)
            self._position = self._saved = self._read_position(newest)
        self._resume_step = self.step
        self._keeper = keeper
        return self.step

    def steps(self, count: int | None = None) -> Iterator[int]:
        """Numbers of the steps that are left, counted from 1; saves at the end.

        Everything in the loop's body is one step, and is never saved half done.

        Args:
            count: Number of steps in all; None: the sweep's `max_trial_steps`.

        Raises:
            ValueError: The number is not known, or the checkpoint was made in `epochs`.
            RuntimeError: This trial has had a loop before.
        """
        self._refuse_another()
        last = count if count is not None else self.max_steps
        if last is None:
            raise ValueError("how many steps? give a number, or run under a sweep with max_trial_steps")
        if self._position != Position(self.step):
            raise ValueError("the checkpoint was made in trial.epochs: begin with an empty checkpoint folder")
        self._begin_loop()
        return self._steps(last)

    def epochs(self, loader: Iterable[Batch], count: int | None = None) -> Iterator[tuple[int, Batches[Batch]]]:
        """Numbers of the epochs that are left, counted from 1, each with its batches that are left.

        A batch is a step. When training resumes within an epoch, the loader's order is reproduced and the batches
        that are done are skipped; when it resumes after an epoch's last batch, no batches are left and what
        follows them runs again. What the body does before its batches also runs again, but kept parts are as
        saved.

        Args:
            loader: A DataLoader, or anything else that can be iterated once an epoch.
            count: Number of epochs in all; None: as many as the sweep's `max_trial_steps` batches need.

        Raises:
            ValueError: The number is not known; the loader is an iterator, has persistent workers, or is not the
                one that the checkpoint was made with.
            RuntimeError: This trial has had a loop before.
        """
        self._refuse_another()
        if count is None and self.max_steps is None:
            raise ValueError("how many epochs? give a number, or run under a sweep with max_trial_steps")
        if hasattr(loader, "__next__"):
            raise ValueError("an iterator ends with its first epoch: give the loader, or a list")
        if getattr(loader, "persistent_workers", False):
            raise ValueError(
                "persistent_workers=True: workers that outlive an epoch have random states that no checkpoint "
                "has; set it to False"
            )
        length = _length(loader)
        if None not in (length, self._batches_an_epoch) and length != self._batches_an_epoch:
            raise ValueError(
                f"the loader has {length} batches an epoch, the checkpoint was made with "
                f"{self._batches_an_epoch}: use the same data and batch size, or an empty checkpoint folder"
            )
        if self.step and self._position == Position(self.step):
            raise ValueError("the checkpoint was made in trial.steps: begin with an empty checkpoint folder")
        self._batches_an_epoch = length
        self._begin_loop(loader)
        return self._epochs(loader, count)

    def report(self, **metrics: Any) -> None:
        """Report metrics of the present step, or of the last one.

        Args:
            metrics: Numbers by name, also tensors and arrays of one number; None is left out, and values that are
                not finite are reported as such.

        Raises:
            ValueError: The name is reserved for the agent.
            TypeError: A value is not a number.
        """
        found: dict[str, float | None] = {}
        for name, value in metrics.items():
            if name in RESERVED:
                raise ValueError(f"a metric cannot be called {name}, nor any of {sorted(RESERVED)}")
            if value is not None:
                found[name] = _number(name, value)
        self._has_reported |= bool(found)
        # JSON knows no NaN and no infinity.
        strange = [name for name, value in found.items() if value is None]
        self._report_step(
            self.step + (self._in_step and not self._is_driven),
            found | ({"not_finite": strange} if strange else {}),
        )

    def save(self) -> None:
        """Write a checkpoint, unless the newest is up to date; within a step, as soon as that is complete."""
        if self._in_step:
            self._wanted = True
            self._if_whole()
        else:
            self._save(self._position, within_step=False)

    def finish(self) -> None:
        """Save, and report that the training is done; to be called after a loop that was left by `break`.

        Run by an agent, the program is asked for nothing from then on: it ends by itself.
        """
        if self._in_step:
            self._step_done()
        self._broken = False
        self._save(self._position, within_step=False)
        if self._agreement is not None:
            self._agreement.end()
            self._agreement = None
        self._finished = True
        self._emit({"finished": self.step})

    def returned(self, metrics: Mapping[str, Any]) -> None:
        """The function that trains has returned, so the training is done.

        Args:
            metrics: What it returned, numbers by name; reported as those of its last step.
        """
        if self._in_step:
            self._step_done()
        if not self._looped:
            # Without a loop, all of it is one step.
            self._position = replace(self._position, step=max(self.step, self.max_steps or 1))
        if metrics:
            self.report(**metrics)
        self.finish()

    # For loops that belong to a framework, which calls back when something happens in them.

    def loop_began(self) -> None:
        """The framework's loop begins, after `keep`. Its state is complete only where it calls `step_ended`.

        Raises:
            RuntimeError: This trial has had a loop before.
        """
        self._refuse_another()
        self._is_driven = True
        self._begin_loop()
        self._emit({"started": self.step})
        self._begin_step()

    def step_ended(self) -> bool:
        """A step has ended. Returns whether a checkpoint is wanted: then `save_wanted` is to be called before the
        next step ends, at a moment from which training can be resumed."""
        self._step_done()
        self._wish = max(self._wish, self._agreed_wish())
        self._begin_step()
        return self._wish >= SAVE

    def save_wanted(self) -> None:
        """Write a checkpoint of the last step that has ended, and exit if that is asked for."""
        self._in_step = False
        self._save(self._position, within_step=False)
        if self._wish >= LEAVE:
            self._leave()
        self._wish = NOTHING
        self._begin_step()

    def loop_ended(self, *, saves: bool = True) -> None:
        """The framework's loop has ended: report that the training is done.

        Args:
            saves: Whether a checkpoint can be written of this moment, as it then is.
        """
        self._in_step = False
        if not saves:
            self._keeper = None
        self.finish()

    # The loops.

    def _refuse_another(self) -> None:
        if self._looped:
            raise RuntimeError("a program has one loop over trial.steps or trial.epochs: make the two one")

    def _begin_loop(self, loader: object = None) -> None:
        self._agreement = self._agreed_by()
        if self._agreement is not None:
            self._check_resumes_as_one(self._agreement)
        self._looped = True
        if self._restored is not None and isinstance(self._keeper, EpochKeeper):
            # Random numbers drawn since `keep` were also drawn before the checkpoint was made.
            self._keeper.rewind(loader)

    def _agreed_by(self) -> Agreement | None:
        if self._agree is not None:
            return CalledAgreement(self._agree)
        found = self._keeper.agreement() if isinstance(self._keeper, Agrees) else None
        if found is None and self._process.count > 1 and None not in (self.folder, self._keeper):
            raise RuntimeError(
                f"{self._process.count} processes train this as one, and have to save at the same step: call "
                "torch.distributed.init_process_group before the loop and keep a TorchState, or give "
                "Trial.current(agree=...) a function that returns the highest number of all processes"
            )
        return found

    def _check_resumes_as_one(self, agreement: Agreement) -> None:
        most, least = agreement.highest_now(self.step), -agreement.highest_now(-self.step)
        if most != least:
            raise RuntimeError(
                f"the processes of this training resume from different steps, {least} to {most}, this one from "
                f"{self.step}: each machine needs a checkpoint of the same step, or an empty checkpoint folder"
            )

    def _steps(self, last: int) -> Iterator[int]:
        self._emit({"started": self.step})
        try:
            while self.step < last:
                self._answer()
                self._begin_step()
                yield self.step + 1
                self._step_done()
        except GeneratorExit:
            self._was_broken()
            raise
        self._answer()
        self.finish()

    def _epochs(self, loader: Iterable[Batch], count: int | None) -> Iterator[tuple[int, Batches[Batch]]]:
        self._emit({"started": self.step})
        self._in_epochs = True
        try:
            while self._is_left(count):
                self._answer()
                self._mark()
                batches = Batches(self, loader, until_enough=count is None)
                yield self._position.epoch + 1, batches
                batches.close()
                self._position = Position(self.step, self._position.epoch + 1)
                if not isinstance(self._keeper, EpochKeeper):
                    self._timed()
        except GeneratorExit:
            self._was_broken()
            raise
        self._answer()
        self.finish()

    def _was_broken(self) -> None:
        """The loop was left by `break`, which ends the training, or by an error: only the program knows which."""
        self._broken = True
        if not self._leaving:
            atexit.register(self._complain)

    def _complain(self) -> None:
        if self._broken and getattr(sys, "last_value", None) is None:
            print(
                "ebbtide: the training loop was left before its end; if that is meant, call trial.finish() "
                "after it, else this training counts as failed",
                file=sys.stderr,
            )

    def _is_left(self, count: int | None) -> bool:
        if count is not None:
            return self._position.epoch < count
        return self._position.ended or not self._has_enough

    @property
    def _has_enough(self) -> bool:
        return self.max_steps is not None and self.step >= self.max_steps

    def _pass_over(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's iterator at the present batch of the epoch, with the random states of that moment."""
        keeper, done = self._keeper, self._position.batch
        if not isinstance(keeper, EpochKeeper):
            iterator = iter(loader)
            _skip(iterator, done)
            return iterator
        if not done:
            keeper.epoch_began(loader)
            return iter(loader)
        self._restore_again(keeper)
        keeper.rewind(loader, to_epoch=True)
        iterator = iter(loader)
        _skip(iterator, done)
        keeper.rewind(loader)
        return iterator

    def _restore_again(self, keeper: EpochKeeper) -> None:
        """Undo what the epoch's body did before its batches, since the checkpoint already has it."""
        if self._restored is not None and self._keeper is not None and not keeper.is_unchanged():
            self._keeper.restore(self._restored)

    def _begin_step(self) -> None:
        self._step_began_s = self._step_began_s or time.monotonic()
        self._in_step = True

    def _step_done(self) -> None:
        here = self._position
        # In this order: at a signal in between, the step counts as done, and the kept state is that of its end.
        self._position = replace(here, step=here.step + 1, batch=here.batch + self._in_epochs)
        if isinstance(self._keeper, EpochKeeper):
            self._keeper.step_ended()
            if self._saved_within and self._keeper.ends_at is None:
                # It was saved within the step, but the step changed something after that.
                self._saved = here
        self._saved_within = False
        self._in_step = False
        self._timed()
        if time.monotonic() - self._reported_s >= _REPORT_EVERY_S:
            self._report_step(self.step, {})

    def _timed(self) -> None:
        """Measure how long a notice would have had to wait for the end of this step."""
        now_s = time.monotonic()
        # The first step of a process also compiles, starts workers and fills caches, so it does not count.
        if self._step_began_s is not None and self.step > self._resume_step + 1:
            self._slowest_s = max(self._slowest_s, now_s - self._step_began_s)
        self._step_began_s = now_s

    def _batches_done(self) -> None:
        """All batches are done: until the epoch's body ends, training resumes at this point."""
        self._position = replace(self._position, ended=True)
        self._in_step = False
        self._mark()

    def _mark(self) -> None:
        if isinstance(self._keeper, EpochKeeper):
            self._keeper.mark()
            # Last: at a signal before this, the keeper's mark may be of another position.
            self._marked = self._position

    def _resume_after_batches(self) -> None:
        if isinstance(self._keeper, EpochKeeper):
            self._restore_again(self._keeper)
            self._keeper.rewind()
            self._mark()

    # Requests by signals.

    def _agreed_wish(self) -> int:
        """Return the request (`NOTHING`, `SAVE` or `LEAVE`) to this process or to any that trains with it."""
        wish = LEAVE if self._leaving else SAVE if self._wanted else NOTHING
        if wish == SAVE:
            self._wanted = False
        return wish if self._agreement is None else self._agreement.highest(wish)

    def _answer(self) -> None:
        """Between steps: do what was requested."""
        wish = self._agreed_wish()
        if wish >= SAVE:
            self._save(self._position, within_step=False)
        if wish >= LEAVE:
            self._leave()

    def _leave(self) -> None:
        if self._agreement is not None:
            self._agreement.end()
        self._emit({"left": self._saved.step})
        sys.exit(0)

    def _asked_to_save(self, _number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._wanted = True
            self._if_whole()

    def _asked_to_leave(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A process that the program forked: the signal is meant to end it.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if self._finished and self.has_agent:
            # The agent takes the training as done, so what follows the loop would never be run elsewhere.
            return
        self._leaving = True
        self._if_whole()

    def _if_whole(self) -> None:
        """Save now if the state is complete, which it also is while data are loaded or a model is evaluated."""
        if self._saving or self._agreement is not None:
            return  # others may be a step ahead: it is done at the next step that all agree on
        whole = self._whole_position()
        if whole is None:
            return
        self._wanted = False
        within, here = self._in_step and whole != self._position, self._saved
        self._save(whole, within_step=True)
        self._saved_within = within and self._saved != here
        if self._leaving:
            self._leave()

    def _whole_position(self) -> Position | None:
        """The position that could be saved at this moment; None: none before the step or the epoch's body ends."""
        here = self._position
        if self._keeper is None or self.folder is None or self._broken:
            return self._saved  # nothing more can be saved, so there is nothing to wait for
        if self._in_step:
            ends_at = self._keeper.ends_at
            if ends_at is None:
                return None
            if self._resume_step + ends_at == here.step:
                return here
            # In an epoch a batch is over when the next is requested: until then, the program may leave the loop.
            return None if self._in_epochs else replace(here, step=here.step + 1)
        if here == self._saved:
            return here
        if self._marked == here and isinstance(self._keeper, EpochKeeper) and self._keeper.is_unchanged():
            return here
        return None

    # Checkpoints.

    def _save(self, position: Position, *, within_step: bool) -> None:
        if self.folder is None or self._keeper is None or self._saved == position or self._saving:
            return
        self._saving = True
        try:
            began = time.monotonic()
            coming = self.folder / f".{_PREFIX}{position.step:0{_DIGITS}d}.part"
            if self.is_first:
                shutil.rmtree(coming, ignore_errors=True)
                coming.mkdir(parents=True)
            self._wait_for_others()
            part = coming / self._process.part
            part.mkdir(exist_ok=True)
            self._keeper.save(part, within_step=within_step)
            self._wait_for_others()
            if self.is_first:
                self._complete(coming, self.folder, position, began)
            self._saved = position
        finally:
            self._saving = False

    def _complete(self, coming: Path, folder: Path, position: Position, began: float) -> None:
        """Every process of this machine has written its part: from now on this is a checkpoint."""
        content = asdict(position) | {"batches_an_epoch": self._batches_an_epoch}
        (coming / _POSITION).write_text(json.dumps(content))
        _flush(coming)
        name = self._free_name(folder, position.step)
        coming.rename(folder / name)
        self._emit({"saved": position.step, "folder": name, "save_s": time.monotonic() - began})
        if not self.has_agent:
            for old in sorted(self._checkpoints())[:-_KEPT_ALONE]:
                shutil.rmtree(old, ignore_errors=True)

    @property
    def is_first(self) -> bool:
        """True if this process speaks for all processes on its machine."""
        return self._process.local_rank == 0

    def _wait_for_others(self) -> None:
        if self._agreement is not None:
            self._agreement.highest_now(NOTHING)

    def _part_of(self, checkpoint: Path) -> Path:
        """This process's part; with more processes than there were, the others begin as the first one."""
        own = checkpoint / self._process.part
        return own if own.is_dir() else checkpoint / first_part([path.name for path in checkpoint.iterdir()])

    @staticmethod
    def _free_name(folder: Path, step: int) -> str:
        """A name that sorts after earlier checkpoints of the same step, which an agent may be reading."""
        name = plain = f"{_PREFIX}{step:0{_DIGITS}d}"
        again = 1
        while (folder / name).exists():
            again += 1
            name = f"{plain}-{again:02d}"
        return name

    def _read_position(self, folder: Path) -> Position:
        step = int(folder.name.removeprefix(_PREFIX)[:_DIGITS])
        if not (folder / _POSITION).exists():
            return Position(step)
        content = json.loads((folder / _POSITION).read_text())
        self._batches_an_epoch = content.pop("batches_an_epoch")
        return Position(**content)

    def _checkpoints(self) -> list[Path]:
        if self.folder is None or not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.name.startswith(_PREFIX)]

    # Messages.

    def _report_step(self, step: int, more: Mapping[str, object]) -> None:
        wait_s = self._keeper.slowest_wait_s() if isinstance(self._keeper, EpochKeeper) else None
        slowest_s = self._slowest_s if wait_s is None else wait_s
        self._slowest_s = 0.0
        self._emit({"step": step} | ({"step_s": round(slowest_s, 4)} if slowest_s else {}) | dict(more))

    def _emit(self, message: Mapping[str, object]) -> None:
        if not self.is_first:
            return
        self._reported_s = time.monotonic()
        # One write, since a signal between two writes would mix lines.
        line = (json.dumps(message) + "\n").encode()
        if not _passed_on(os.environ.get(REPORTS, ""), line):
            os.write(1, line)


def newest_checkpoint() -> Path | None:
    """Folder of the newest complete checkpoint of the trial that this process was started for, with what its first
    process has kept; None: there is none."""
    newest = max(Trial(folder=_folder())._checkpoints(), default=None)
    return None if newest is None else newest / first_part([path.name for path in newest.iterdir()])


def _folder() -> Path | None:
    folder = os.environ.get(CHECKPOINT_DIR)
    return Path(folder) if folder else None


def _passed_on(pipe: str, line: bytes) -> bool:
    """Write a line into a named pipe; returns whether there is one that is read."""
    if not pipe:
        return False
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.set_blocking(descriptor, True)
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    return True


class Batches(Generic[Batch]):
    """The batches that are left of one epoch; `enumerate(batches, batches.done)` numbers them.

    To leave an epoch early, use `break`: the batch counts as done, and the epoch as over.

    Attributes:
        done: Number of batches of this epoch that were done before.
    """

    def __init__(self, trial: Trial, loader: Iterable[Batch], *, until_enough: bool) -> None:
        self._trial, self._loader, self._until_enough = trial, loader, until_enough
        self._running: Iterator[Batch] | None = None
        self._is_cut = False
        self.done = trial._position.batch

    def __len__(self) -> int:
        """Number of batches that are left.

        Raises:
            TypeError: The loader has no length.
        """
        return 0 if self._trial._position.ended else len(self._loader) - self.done  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches, which is possible once an epoch.

        Raises:
            RuntimeError: The batches are iterated a second time.
        """
        if self._running is not None:
            raise RuntimeError("an epoch's batches are iterated once; iterate the loader itself for anything else")
        self._running = self._batches()
        return self._running

    def close(self) -> None:
        """The epoch's body has ended, however many batches it used."""
        if self._running is not None:
            self._running.close()  # type: ignore[attr-defined]
        if self._is_cut:
            self._trial._step_done()

    def _batches(self) -> Iterator[Batch]:
        trial = self._trial
        if trial._position.ended:
            trial._resume_after_batches()
            return
        iterator = trial._pass_over(self._loader)
        try:
            while not (self._until_enough and trial._has_enough):
                if trial._position.batch:
                    trial._answer()
                # Fetching a batch belongs to its step. The loader has drawn its order before the first one.
                trial._begin_step()
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                yield batch
                trial._step_done()
        except GeneratorExit:
            # Left by `break` or by an error. If the epoch's body reaches its end, it was no error.
            trial._in_step, self._is_cut = False, True
            raise
        trial._batches_done()
        trial._answer()


def _number(name: str, value: Any) -> float | None:
    """A metric's value as a number; None: it is not finite."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"metric {name}: a number is needed, this is {value!r:.100}") from None
    return number if math.isfinite(number) else None


def _length(loader: object) -> int | None:
    """Number of batches in an epoch; None: known only at its end."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def _skip(iterator: Iterator[object], count: int) -> None:
    for done in range(count):
        try:
            next(iterator)
        except StopIteration:
            raise ValueError(
                f"the checkpoint was made after {count} batches of an epoch, the loader has {done}: "
                "use the same data and batch size, or begin with an empty checkpoint folder"
            ) from None


def _flush(folder: Path) -> None:
    """Flush a folder to disk, files first."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
