"""One assignment on this machine: restored, trained, saved, ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.log_lines import LogLines
from ebbtide.live.agent.mirror import Mirror
from ebbtide.live.agent.private_folder import PrivateFolder
from ebbtide.live.agent.timing import SavingTimes
from ebbtide.live.agent.training import TrainingProcess
from ebbtide.live.agent.uploads import Uploads


class Ending(str, Enum):  # noqa: UP042 (machines may have Python 3.10, which has no StrEnum)
    """How an assignment ended here."""

    FINISHED = "finished"  # all steps, saved
    LEFT = "left"  # asked to, saved as far as it could be
    FAILED = "failed"  # of itself
    SUPERSEDED = "superseded"  # another machine has the trial

    def __str__(self) -> str:
        return self.value


@dataclass(eq=False)
class Work:
    """An assignment under way.

    Attributes:
        assignment: What is to be trained.
        folder: Where its checkpoints are written here.
        began_s: When it was taken on; monotonic, as all times here.
        times: How long saving takes.
        process: None: it is not started yet, or never will be.
        uploads: None: nothing is restored yet.
        restored: Number of the checkpoint that it went on from; 0: from the beginning.
        began: The step that was gone on from.
        step: Done, as told.
        written: Step of the newest checkpoint on this machine.
        stored: Step of the newest checkpoint in storage.
        has_api: The program uses `ebbtide.trial`, and saves when asked to.
        asked_to_leave_s: When it was; None: it was not.
        saved_s: When it was last asked to save, or began.
        finished: It said that it has done all.
        superseded: Another has the trial.
        tail: The last lines that it printed.
        mirror: Stores what a program that knows nothing of us writes; None: it does, or has not begun.
        log_lines: Reads what it prints for people; None: nothing of that tells how far it is.
        output_read: It has ended, and all that it printed is known.
        exited_s: When it was seen to have ended; None: it was not.
        private: The folder that its program runs in; None: it has no code of the user's.
        keeps_outputs: What it left there is being stored.
        fields: Names of numbers that it reported.
    """

    assignment: Assignment
    folder: Path
    began_s: float
    times: SavingTimes
    process: TrainingProcess | None = None
    uploads: Uploads | None = None
    restored: int = 0
    began: int = 0
    step: int = 0
    written: int = 0
    stored: int = 0
    has_api: bool = False
    asked_to_leave_s: float | None = None
    saved_s: float = field(default_factory=time.monotonic)
    finished: bool = False
    superseded: bool = False
    over: bool = False
    tail: list[str] = field(default_factory=list)
    mirror: Mirror | None = None
    log_lines: LogLines | None = None
    output_read: bool = False
    exited_s: float | None = None
    private: PrivateFolder | None = None
    keeps_outputs: bool = False
    fields: set[str] = field(default_factory=set)

    @property
    def is_running(self) -> bool:
        """Whether the program runs."""
        return self.process is not None and self.process.exit_code is None

    def ask_to_leave(self) -> None:
        """Once."""
        if self.asked_to_leave_s is None:
            self.asked_to_leave_s = time.monotonic()
            if self.process is not None:
                (self.mirror or self.process).ask_to_leave()

    def ask_to_save(self) -> None:
        """If it can."""
        self.saved_s = time.monotonic()
        # At its end a program hears no signal any more, and would die of it.
        if self.has_api and not self.finished and self.is_running and self.process is not None:
            self.process.ask_to_save()

    def ending(self) -> Ending:
        """How it ended, now that it has."""
        code = self.process.exit_code if self.process is not None else 0
        if self.superseded:
            return Ending.SUPERSEDED
        if self.finished:
            return Ending.FINISHED
        if self.asked_to_leave_s is not None:
            return Ending.LEFT
        # A program that knows nothing of us has done all it had to when it ends without an error.
        return Ending.FINISHED if code == 0 and not self.has_api else Ending.FAILED
