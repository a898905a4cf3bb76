"""For training programs: steps that can be interrupted, reports, checkpoints. Nothing else of Ebbtide is imported.

    from ebbtide.trial import Trial
    from ebbtide.trial_torch import TorchState

    trial = Trial.current()
    trial.keep(TorchState(model=model, optimizer=optimizer))      # goes on from the newest checkpoint
    for step in trial.steps(1000):
        ...                                                        # one step of training
        trial.report(loss=loss.item())

Run by an agent, the program is asked to save when its machine is about to be taken; run alone it trains the same.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

# Set by the agent.
TRIAL_ID = "EBBTIDE_TRIAL_ID"
CHECKPOINT_DIR = "EBBTIDE_CHECKPOINT_DIR"
MAX_STEPS = "EBBTIDE_MAX_STEPS"
AGENT = "EBBTIDE_AGENT"

# Steps without a metric are told of no more often than this.
_TOLD_EVERY_S = 0.2
_KEPT_ALONE = 2
_PREFIX = "step-"


class Keeper(Protocol):
    """Saves and restores what training depends on."""

    def save(self, folder: Path, *, within_step: bool) -> None:
        """Write it into an empty folder; `within_step`: all of a step is done but what changes nothing."""
        ...

    def restore(self, folder: Path) -> None:
        """Read it from a folder that `save` wrote."""
        ...

    @property
    def ends_at(self) -> int | None:
        """Steps that are done and wholly in what `save` would write at this very moment, counted since this
        process began; None: that is only known between steps."""
        ...


@dataclass(eq=False)
class Trial:
    """One training of one setting.

    Attributes:
        trial_id: Stable over all moves.
        folder: Where checkpoints are written; None: none are.
        has_agent: Whether an agent uploads and removes them.
        max_steps: As the sweep says; None: it does not.
        step: Steps done.
    """

    trial_id: str = "alone"
    folder: Path | None = None
    has_agent: bool = False
    max_steps: int | None = None
    step: int = 0
    _keeper: Keeper | None = None
    _began_at: int = 0
    _saved: int = 0
    _leaving: bool = False
    _wanted: bool = False
    _in_step: bool = False
    _saving: bool = False
    _told_s: float = field(default=0.0)

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

    def keep(self, keeper: Keeper) -> int:
        """Save and restore by this; go on from the newest checkpoint. Returns the step that is gone on from."""
        self._keeper = keeper
        newest = max(self._checkpoints(), default=None)
        if newest is not None:
            keeper.restore(newest)
            self.step = self._saved = int(newest.name.removeprefix(_PREFIX))
        self._began_at = self.step
        return self.step

    def steps(self, count: int | None = None) -> Iterator[int]:
        """Numbers of the steps that are left, up to `count`, or to what the sweep says; saves at the end.

        Raises:
            ValueError: Neither is known.
        """
        last = count if count is not None else self.max_steps
        if last is None:
            raise ValueError("how many steps? give a number, or run under a sweep with max_trial_steps")
        self._tell({"started": self.step})
        while self.step < last:
            self._answer()
            self._in_step = True
            yield self.step + 1
            self._in_step = False
            self.step += 1
            if time.monotonic() - self._told_s >= _TOLD_EVERY_S:
                self._tell({"step": self.step})
        self._answer()
        self.save()
        self._tell({"finished": self.step})

    def report(self, **metrics: float) -> None:
        """Tell metrics of the step under way, or of the last one."""
        self._tell({"step": self.step + self._in_step, **metrics})

    def save(self, *, within_step: bool = False) -> None:
        """Write a checkpoint now, unless the newest is of this very step; between steps, unless `within_step`."""
        if self.folder is None or self._keeper is None or self._saved == self.step or self._saving:
            return
        self._saving = True
        try:
            began = time.monotonic()
            name = f"{_PREFIX}{self.step:012d}"
            coming = self.folder / f".{name}.part"
            shutil.rmtree(coming, ignore_errors=True)
            coming.mkdir(parents=True)
            self._keeper.save(coming, within_step=within_step)
            _flush(coming)
            coming.rename(self.folder / name)
            self._saved = self.step
            self._tell({"saved": self.step, "folder": name, "save_s": time.monotonic() - began})
            if not self.has_agent:
                for old in sorted(self._checkpoints())[:-_KEPT_ALONE]:
                    shutil.rmtree(old, ignore_errors=True)
        finally:
            self._saving = False

    def _answer(self) -> None:
        """Between steps: do what was asked for."""
        if self._wanted or self._leaving:
            self._wanted = False
            self.save()
        if self._leaving:
            self._leave()

    def _leave(self) -> None:
        self._tell({"left": self.step})
        sys.exit(0)

    def _asked_to_save(self, _number: int, _frame: FrameType | None) -> None:
        self._wanted = True
        self._if_whole()

    def _asked_to_leave(self, _number: int, _frame: FrameType | None) -> None:
        self._leaving = True
        self._if_whole()

    def _if_whole(self) -> None:
        """Not only between steps: while data are loaded, code is compiled, or a model evaluated."""
        if self._saving:
            return
        if self._leaving and self._saved == self.step and not self._has_changed():
            # Nothing that is not in the newest checkpoint.
            self._leave()
        if self._in_step and self._ends_now() == self.step + 1:
            # The step is done but for what does not change the training: an evaluation, say.
            self.step += 1
            self._wanted = False
            self.save(within_step=True)
            if self._leaving:
                self._leave()
            self.step -= 1

    def _has_changed(self) -> bool:
        """Whether the step under way may have changed anything."""
        return self._in_step and self._ends_now() != self.step

    def _ends_now(self) -> int | None:
        ends_at = self._keeper.ends_at if self._keeper is not None else None
        return None if ends_at is None else self._began_at + ends_at

    def _checkpoints(self) -> list[Path]:
        if self.folder is None or not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.name.startswith(_PREFIX)]

    def _tell(self, message: Mapping[str, object]) -> None:
        self._told_s = time.monotonic()
        # One write: a signal between two would mix lines.
        os.write(1, (json.dumps(message) + "\n").encode())


def _flush(folder: Path) -> None:
    """To disk, files first."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
