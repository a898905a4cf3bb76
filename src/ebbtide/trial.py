"""For training programs: steps and epochs that can be interrupted, metrics, checkpoints; needs nothing of Ebbtide.

    from ebbtide.trial import Trial
    from ebbtide.trial_torch import TorchState

    trial = Trial.current()
    trial.keep(TorchState(model=model, optimizer=optimizer))      # resumes from the newest checkpoint
    for epoch, batches in trial.epochs(loader, 10):               # or: for step in trial.steps(1000)
        for inputs, labels in batches:
            ...                                                    # one step of training
        trial.report(validation_loss=validate(model))

Run by an agent, the program is asked to save when its machine is about to be taken; run alone it trains the same.
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

# Set by the agent.
TRIAL_ID = "EBBTIDE_TRIAL_ID"
CHECKPOINT_DIR = "EBBTIDE_CHECKPOINT_DIR"
MAX_STEPS = "EBBTIDE_MAX_STEPS"
AGENT = "EBBTIDE_AGENT"

# Steps without a metric are told no more often than this.
_TOLD_EVERY_S = 0.2
_KEPT_ALONE = 2
_PREFIX = "step-"
_DIGITS = 12
_POSITION = "position.json"
# Names that the agent reads something else from.
_RESERVED = frozenset(
    ["api", "trial", "step", "step_s", "started", "saved", "save_s", "folder", "left", "finished", "not_finite"]
)

Batch = TypeVar("Batch")


class Keeper(Protocol):
    """Saves and restores what training depends on."""

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Write it into an empty folder; `within_step`: not between steps, but nothing that is kept has changed
        since the last step ended, or the one under way is done but for what changes nothing."""
        ...

    def restore(self, folder: Path) -> None:
        """Read it from a folder that `save` wrote."""
        ...

    @property
    def ends_at(self) -> int | None:
        """Steps that are done and wholly in what `save` would write at this very moment, counted since this
        process began; None: that is only known between steps."""
        ...


@runtime_checkable
class EpochKeeper(Protocol):
    """What a keeper has besides, to resume within an epoch bit for bit; `TorchState` does."""

    def step_ended(self) -> None:
        """A step is over, and with it all that belongs to it."""
        ...

    def mark(self) -> None:
        """Remember the state: training can be resumed from here."""
        ...

    def is_unchanged(self) -> bool:
        """Whether all that is kept is as it was at the mark; random states, which are remembered, aside."""
        ...

    def epoch_began(self, loader: object) -> None:
        """Remember the random states that the loader's order follows from."""
        ...

    def rewind(self, loader: object = None, *, to_epoch: bool = False) -> None:
        """Set random states as the restored checkpoint has them: where it was made, or where its epoch began."""
        ...

    def slowest_wait_s(self) -> float | None:
        """Seconds for which training could not be saved, at most, since this was last asked; None: not known."""
        ...


@dataclass(frozen=True)
class Position:
    """Where a training is.

    Attributes:
        step: Steps done.
        epoch: Epochs that are over.
        batch: Batches done of the epoch under way.
        ended: All batches of that epoch are done; what follows them in its body is to run, or to run again.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    ended: bool = False


@dataclass(eq=False)
class Trial:
    """One training of one setting.

    Attributes:
        trial_id: The same on every machine.
        folder: Where checkpoints are written; None: none are.
        has_agent: Whether an agent uploads and removes them.
        max_steps: As the sweep says; None: it does not.
    """

    trial_id: str = "alone"
    folder: Path | None = None
    has_agent: bool = False
    max_steps: int | None = None
    _position: Position = field(default_factory=Position)
    # Of the newest checkpoint; where there is none, of the beginning.
    _saved: Position = field(default_factory=Position)
    _keeper: Keeper | None = None
    _restored: Path | None = None
    _batches_an_epoch: int | None = None
    _resume_step: int = 0
    _looped: bool = False
    _in_epochs: bool = False
    _broken: bool = False
    _leaving: bool = False
    _wanted: bool = False
    _in_step: bool = False
    _saving: bool = False
    _saved_within: bool = False
    _marked: Position | None = None
    _told_s: float = 0.0
    _step_began_s: float | None = None
    _slowest_s: float = 0.0
    _process: int = field(default_factory=os.getpid)

    @classmethod
    def current(cls) -> Trial:
        """The one that this process was started for; alone, one without checkpoints.

        From here on SIGTERM asks to save and leave, and SIGUSR1 to save.
        """
        folder = os.environ.get(CHECKPOINT_DIR)
        steps = os.environ.get(MAX_STEPS)
        trial = cls(
            os.environ.get(TRIAL_ID, "alone"),
            Path(folder) if folder else None,
            AGENT in os.environ,
            int(steps) if steps else None,
        )
        signal.signal(signal.SIGTERM, trial._asked_to_leave)
        signal.signal(signal.SIGUSR1, trial._asked_to_save)
        trial._tell({"api": 1, "trial": trial.trial_id})
        return trial

    @property
    def step(self) -> int:
        """Steps done."""
        return self._position.step

    def keep(self, keeper: Keeper) -> int:
        """Save and restore by this; restores the newest checkpoint. Returns the resume step.

        Raises:
            RuntimeError: Called twice, or after the loop began.
        """
        if self._keeper is not None or self._looped:
            raise RuntimeError("trial.keep is called once, before the loop: give all parts to one TorchState")
        newest = max(self._checkpoints(), default=None)
        if newest is not None:
            keeper.restore(newest)
            self._position = self._saved = self._read_position(newest)
            self._restored = newest
        self._resume_step = self.step
        self._keeper = keeper
        return self.step

    def steps(self, count: int | None = None) -> Iterator[int]:
        """Numbers of the steps that are left, up to `count`, or to what the sweep says; saves at the end.

        All that one step of the loop does is one step: it is never saved half done.

        Raises:
            ValueError: Neither is known, or the checkpoint was made in `epochs`.
            RuntimeError: There was a loop of this trial's before.
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
        """Numbers of the epochs that are left, from 1, each with its batches that are left.

        A batch is a step. Resumed within an epoch, the loader's order is made again and the batches that are
        done are passed over; resumed after an epoch's last batch, there are none left and what follows them runs
        again. What the body does before its batches runs again, too, but kept parts are as they were saved.

        Args:
            loader: A DataLoader, or whatever else can be iterated once an epoch.
            count: Epochs in all; None: as many as have the sweep's `max_trial_steps` batches.

        Raises:
            ValueError: The number is not known; the loader is an iterator, has persistent workers, or is not the
                one that the checkpoint was made with.
            RuntimeError: There was a loop of this trial's before.
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
        """Tell metrics of the step under way, or of the last one.

        Args:
            metrics: Numbers, also tensors and arrays of one; None is left out, and what is not finite is told as
                such.

        Raises:
            ValueError: The name is one that the agent reads something else from.
            TypeError: Not a number.
        """
        found: dict[str, float | None] = {}
        for name, value in metrics.items():
            if name in _RESERVED:
                raise ValueError(f"a metric cannot be called {name}, nor any of {sorted(_RESERVED)}")
            if value is not None:
                found[name] = _number(name, value)
        # JSON knows no NaN and no infinity.
        strange = [name for name, value in found.items() if value is None]
        self._tell_step(self.step + self._in_step, found | ({"not_finite": strange} if strange else {}))

    def save(self) -> None:
        """Write a checkpoint, unless the newest has all; within a step that is not whole, as soon as it is."""
        if self._in_step:
            self._wanted = True
            self._if_whole()
        else:
            self._save(self._position, within_step=False)

    def finish(self) -> None:
        """Save and tell that all is done: after a loop that was left by `break`."""
        if self._in_step:
            self._step_done()
        self._broken = False
        self._save(self._position, within_step=False)
        self._tell({"finished": self.step})

    # The loops.

    def _refuse_another(self) -> None:
        if self._looped:
            raise RuntimeError("a program has one loop over trial.steps or trial.epochs: make the two one")

    def _begin_loop(self, loader: object = None) -> None:
        self._looped = True
        if self._restored is not None and isinstance(self._keeper, EpochKeeper):
            # Whatever the program drew since `keep`, it drew in its first life, too.
            self._keeper.rewind(loader)

    def _steps(self, last: int) -> Iterator[int]:
        self._tell({"started": self.step})
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
        self._tell({"started": self.step})
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
        """By `break`, which ends the training, or by an error, which does not: only the program knows."""
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
        """The loader's iterator, where this epoch is, with random states as they were there."""
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
        """Take back what the epoch's body did before its batches: it had been done before the checkpoint."""
        if self._restored is not None and self._keeper is not None and not keeper.is_unchanged():
            self._keeper.restore(self._restored)

    def _begin_step(self) -> None:
        self._step_began_s = self._step_began_s or time.monotonic()
        self._in_step = True

    def _step_done(self) -> None:
        here = self._position
        # In this order: at a signal in between, the step is done, and what is kept is what it ended with.
        self._position = replace(here, step=here.step + 1, batch=here.batch + self._in_epochs)
        if isinstance(self._keeper, EpochKeeper):
            self._keeper.step_ended()
            if self._saved_within and self._keeper.ends_at is None:
                # It was saved within the step, which then turned out to change something after that.
                self._saved = here
        self._saved_within = False
        self._in_step = False
        self._timed()
        if time.monotonic() - self._told_s >= _TOLD_EVERY_S:
            self._tell_step(self.step, {})

    def _timed(self) -> None:
        """How long a notice would have had to wait for this step's end."""
        now_s = time.monotonic()
        # The first step of a process compiles, starts workers and fills caches: it is no measure.
        if self._step_began_s is not None and self.step > self._resume_step + 1:
            self._slowest_s = max(self._slowest_s, now_s - self._step_began_s)
        self._step_began_s = now_s

    def _batches_done(self) -> None:
        """From here to the end of the epoch's body training is resumed at this point."""
        self._position = replace(self._position, ended=True)
        self._in_step = False
        self._mark()

    def _mark(self) -> None:
        if isinstance(self._keeper, EpochKeeper):
            self._keeper.mark()
            # Last: at a signal before, the keeper may have what is of another position.
            self._marked = self._position

    def _resume_after_batches(self) -> None:
        if isinstance(self._keeper, EpochKeeper):
            self._restore_again(self._keeper)
            self._keeper.rewind()
            self._mark()

    # What is asked for.

    def _answer(self) -> None:
        """Between steps: do what was asked for."""
        if self._wanted or self._leaving:
            self._wanted = False
            self._save(self._position, within_step=False)
        if self._leaving:
            self._leave()

    def _leave(self) -> None:
        self._tell({"left": self._saved.step})
        sys.exit(0)

    def _asked_to_save(self, _number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._process:
            self._wanted = True
            self._if_whole()

    def _asked_to_leave(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            # Of what the program forked, the one who asks wants its end.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._leaving = True
        self._if_whole()

    def _if_whole(self) -> None:
        """Not only between steps: while data are loaded, code is compiled, or a model evaluated."""
        if self._saving:
            return
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
        """What could be saved at this moment; None: nothing before the step or the epoch's body ends."""
        here = self._position
        if self._keeper is None or self.folder is None or self._broken:
            return self._saved  # nothing more can be saved, so nothing is waited for
        if self._in_step:
            ends_at = self._keeper.ends_at
            if ends_at is None:
                return None
            if self._resume_step + ends_at == here.step:
                return here
            # In an epoch a batch is over when the next is asked for: until then, the program may leave it.
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
            name = self._free_name(self.folder, position.step)
            coming = self.folder / f".{name}.part"
            shutil.rmtree(coming, ignore_errors=True)
            coming.mkdir(parents=True)
            self._keeper.save(coming, within_step=within_step)
            content = asdict(position) | {"batches_an_epoch": self._batches_an_epoch}
            (coming / _POSITION).write_text(json.dumps(content))
            _flush(coming)
            coming.rename(self.folder / name)
            self._saved = position
            self._tell({"saved": position.step, "folder": name, "save_s": time.monotonic() - began})
            if not self.has_agent:
                for old in sorted(self._checkpoints())[:-_KEPT_ALONE]:
                    shutil.rmtree(old, ignore_errors=True)
        finally:
            self._saving = False

    @staticmethod
    def _free_name(folder: Path, step: int) -> str:
        """Later ones of the same step sort after the earlier; an agent may be reading those."""
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

    def _tell_step(self, step: int, more: Mapping[str, object]) -> None:
        wait_s = self._keeper.slowest_wait_s() if isinstance(self._keeper, EpochKeeper) else None
        slowest_s = self._slowest_s if wait_s is None else wait_s
        self._slowest_s = 0.0
        self._tell({"step": step} | ({"step_s": round(slowest_s, 4)} if slowest_s else {}) | dict(more))

    def _tell(self, message: Mapping[str, object]) -> None:
        self._told_s = time.monotonic()
        # One write: a signal between two would mix lines.
        os.write(1, (json.dumps(message) + "\n").encode())


class Batches(Generic[Batch]):
    """One epoch's batches that are left; `enumerate(batches, batches.done)` numbers them.

    To leave an epoch early, `break`: the batch counts as done, and the epoch as over.

    Attributes:
        done: Batches of this epoch that were done before.
    """

    def __init__(self, trial: Trial, loader: Iterable[Batch], *, until_enough: bool) -> None:
        self._trial, self._loader, self._until_enough = trial, loader, until_enough
        self._running: Iterator[Batch] | None = None
        self._is_cut = False
        self.done = trial._position.batch

    def __len__(self) -> int:
        """Batches that are left.

        Raises:
            TypeError: The loader has no length.
        """
        return 0 if self._trial._position.ended else len(self._loader) - self.done  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        """Once an epoch.

        Raises:
            RuntimeError: Again.
        """
        if self._running is not None:
            raise RuntimeError("an epoch's batches are iterated once; iterate the loader itself for anything else")
        self._running = self._batches()
        return self._running

    def close(self) -> None:
        """The epoch's body is over, however many were taken."""
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
                # To fetch a batch belongs to its step. Before the first one the loader has drawn its order.
                trial._begin_step()
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                yield batch
                trial._step_done()
        except GeneratorExit:
            # By `break` or by an error. If the epoch's body comes to its end, it was no error.
            trial._in_step, self._is_cut = False, True
            raise
        trial._batches_done()
        trial._answer()


def _number(name: str, value: Any) -> float | None:
    """None: it is not finite."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"metric {name}: a number is needed, this is {value!r:.100}") from None
    return number if math.isfinite(number) else None


def _length(loader: object) -> int | None:
    """Batches an epoch; None: known at its end."""
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
    """To disk, files first."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
