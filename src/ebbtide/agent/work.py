"""State of an assignment under way on a machine: restored, trained, saved, ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.agent.checkpoint_watch import Span
from ebbtide.agent.config import Assignment
from ebbtide.agent.folders import PrivateFolder
from ebbtide.agent.machine import Mirrors, Program
from ebbtide.agent.progress import LogLines
from ebbtide.agent.protocol import Ending
from ebbtide.agent.uploads import Uploads
from ebbtide.storage.checkpoints.store import is_better

# The slowest of the last few saves counts. More steps are remembered, since only some evaluate the model.
_REMEMBERED = 3
_STEPS_REMEMBERED = 300
_REPORTS_REMEMBERED = 2_000
# A program reports a step within this time of its save, and the folder is looked at about as often.
_TOLD_S = 0.25
# Saves of a new best take at most a tenth of the time, and are at least half a second apart.
_BEST_TIMES, _BEST_S = 10.0, 0.5


@dataclass
class SavingTimes:
    """Recent durations of saving, used to time saves after a notice, and where there may be no notice.

    Attributes:
        first_s: Seconds that saving is assumed to take before it is measured.
        factor: Factor by which the next save may take longer than the slowest measured one.
        margin_s: Seconds added to that.
    """

    first_s: float = 30.0
    factor: float = 1.5
    margin_s: float = 2.0
    _saves_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _uploads_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STEPS_REMEMBERED))

    def saved(self, seconds: float) -> None:
        """Note how many seconds the program took to write a checkpoint."""
        self._saves_s.append(seconds)

    def uploaded(self, seconds: float) -> None:
        """Note how many seconds it took to move a checkpoint to storage."""
        self._uploads_s.append(seconds)

    def stepped(self, seconds: float) -> None:
        """Note how many seconds a step took; the program may have to end one before it can save."""
        self._steps_s.append(seconds)

    @property
    def is_known(self) -> bool:
        """True if a checkpoint was uploaded, so that the time is measured."""
        return bool(self._uploads_s)

    @property
    def needed_s(self) -> float:
        """Seconds of a notice that must be left for saving."""
        step_s = max(self._steps_s, default=0.0)
        if not self.is_known:
            return self.first_s + self.factor * step_s + self.margin_s
        slowest = max(self._saves_s, default=0.0) + max(self._uploads_s) + step_s
        return self.factor * slowest + self.margin_s

    def needed_beside_s(self, others: Sequence[SavingTimes]) -> float:
        """Seconds of a notice that must be left for saving if others on the machine save at the same time: their
        uploads share its network, so the last one has to wait for all.

        Args:
            others: Durations of saving each of the others.
        """
        return self.needed_s + math.fsum(self.factor * other.upload_s for other in others)

    @property
    def save_s(self) -> float:
        """Seconds that writing a checkpoint takes on the machine; 0: not measured yet."""
        return max(self._saves_s, default=0.0)

    @property
    def upload_s(self) -> float:
        """Seconds that moving a checkpoint to storage takes; until measured, those assumed for saving."""
        return max(self._uploads_s, default=self.first_s)

    def interval_s(self, mttr_s: float) -> float:
        """Seconds between saves on machines that may be taken without notice.

        Young's interval, `sqrt(2 x save time x mttr_s)`; uploads do not count, since training continues meanwhile.
        Saves are never more frequent than uploads can follow.

        Args:
            mttr_s: Mean seconds until a machine is revoked.
        """
        if not self._saves_s:
            # The first save is early, to measure how long saving takes.
            return 4.0 * self.first_s
        save_s = max(self._saves_s)
        return max(math.sqrt(2.0 * save_s * mttr_s), 2.0 * max(self._uploads_s, default=0.0), 4.0 * save_s)


@dataclass(eq=False)
class AssignmentWork:
    """An assignment under way on this machine.

    Attributes:
        assignment: What is to be trained, as ordered.
        folder: Folder on this machine for its checkpoints.
        began_s: When it was accepted, in monotonic seconds, as all times here.
        process: The training process; None: it is not started yet, or never will be.
        uploads: Uploads of its checkpoints; None: the trial is not restored yet.
        restored: Number of the checkpoint that it resumed from; 0: it started from the beginning.
        began: The resume step; 0: from the beginning.
        step: Steps done, as the program reported.
        steps: The last reports of it, each with its time in monotonic seconds.
        written: Step of the newest checkpoint on this machine.
        written_at: When each checkpoint that is not stored yet was complete here, seconds since 1970, and the
            seconds for which the program wrote it (NaN: it does not say), by step.
        stored: Step of the newest checkpoint in storage.
        stored_number: Number of the newest checkpoint that was stored from here; 0: none was.
        has_api: Whether the program uses `ebbtide.trial`, and so saves when asked to.
        asked_to_leave_s: When it was asked to leave; None: it was not.
        alone_s: Time since which a machine of its gang is known to be gone; None: none is.
        has_left: Whether the program said that it has saved and ends, since others of its gang were asked to.
        saved_s: When it was last asked to save, or began.
        finished: Whether the program said that all steps are done.
        superseded: Whether another machine has taken the trial over.
        over: Whether the assignment has ended, so that late events are ignored.
        tail: The last lines that the program printed.
        mirror: Stores checkpoints of a program that does not use `ebbtide.trial`; None: it does, or has not begun.
        log_lines: Reads progress from lines printed for people; None: those lines are not read.
        output_read: Whether the program has ended and all that it printed was read.
        exited_s: When the program was seen to have ended; None: it was not.
        exit_handled: Whether what it left is being stored.
        proved: Numbers of checkpoints that stay in storage, since training made steps from them, or may have to.
        best: Number of the stored checkpoint with the best metric, and that value; None: there is none.
        seen: Best value of the metric that was reported or stored; None: there is none.
        measured: Steps and values of the metric as they were last reported.
        best_part: Number of its part of the gang's best checkpoint; 0: there is none.
        is_best_unsaved: Whether the last metric is the best so far, and the program was not asked to save since.
        private: The folder that the program runs in; None: there is no code of the user's.
        keeps_outputs: Whether files that it left in that folder are being stored.
        outputs_problem: Why they could not be stored; empty: they are, or are still being stored.
    """

    assignment: Assignment
    folder: Path
    began_s: float
    process: Program | None = None
    uploads: Uploads | None = None
    restored: int = 0
    began: int = 0
    step: int = 0
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_REPORTS_REMEMBERED))
    written: int = 0
    written_at: dict[int, tuple[float, float]] = field(default_factory=dict)
    stored: int = 0
    stored_number: int = 0
    has_api: bool = False
    asked_to_leave_s: float | None = None
    alone_s: float | None = None
    has_left: bool = False
    saved_s: float = 0.0
    finished: bool = False
    superseded: bool = False
    over: bool = False
    tail: list[str] = field(default_factory=list)
    mirror: Mirrors | None = None
    log_lines: LogLines | None = None
    output_read: bool = False
    exited_s: float | None = None
    exit_handled: bool = False
    proved: set[int] = field(default_factory=set)
    best: tuple[int, float] | None = None
    seen: float | None = None
    measured: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_REPORTS_REMEMBERED))
    is_best_unsaved: bool = False
    best_part: int = 0
    private: PrivateFolder | None = None
    keeps_outputs: bool = False
    outputs_problem: str = ""

    @property
    def about(self) -> tuple[str, int]:
        """Id of the trial and number of the assignment, as reports begin."""
        return self.assignment.trial_id, self.assignment.attempt

    @property
    def origin(self) -> tuple[int, int]:
        """The resume step of the assignment, and the number of its checkpoint."""
        return self.began, self.restored

    @property
    def is_running(self) -> bool:
        """True if the program was started and has not ended."""
        return self.process is not None and self.process.exit_code is None

    @property
    def resumed_own(self) -> bool:
        """True if the checkpoint to resume from is its own, not that of another machine of its gang."""
        resume = self.assignment.resume
        return resume is None or any(trial_id == self.assignment.trial_id for trial_id, _ in resume[:1])

    def ask_to_leave(self, now_s: float, *, alone: bool = False) -> None:
        """Ask the program to save and end; later calls do nothing.

        Args:
            now_s: The present time in monotonic seconds.
            alone: Whether a machine of its gang is gone, so that its program may wait forever for that machine.
        """
        if alone and self.alone_s is None:
            self.alone_s = now_s
        if self.asked_to_leave_s is None:
            self.asked_to_leave_s = now_s
            if self.process is not None:
                (self.mirror or self.process).ask_to_leave()

    def prove(self) -> None:
        """Note that training has gone on from the checkpoint that it resumed from, so that it stays in storage."""
        self.proved = {self.restored} if self.restored else set()
        self.keep_in_storage()

    def keep_in_storage(self) -> None:
        """Keep the checkpoints that are known to be good, and the best one, in storage."""
        if self.uploads is not None:
            best = {self.best_part, 0 if self.best is None else self.best[0]} - {0}
            self.uploads.kept = frozenset(self.proved | best)

    def told(self, step: int, value: float, now_s: float, save_s: float) -> None:
        """Note a metric that the program has reported; if it is the best so far, ask the program to save.

        Args:
            step: The step at which it was measured.
            value: Its value.
            now_s: The present time in monotonic seconds.
            save_s: Seconds that writing a checkpoint takes.
        """
        self.measured.append((step, value))
        is_best = is_better(value, self.seen, self.assignment.direction)
        if is_best:
            self.seen = value
        self.is_best_unsaved = is_best
        self.save_best(now_s, save_s)

    def save_best(self, now_s: float, save_s: float) -> None:
        """Ask the program to save, if the metric that it reported last is the best, once that is due."""
        is_due = now_s - self.saved_s >= max(_BEST_S, _BEST_TIMES * save_s)
        # A checkpoint that one machine of a gang saves alone is never whole.
        may_save = self.assignment.machines == 1 and self.asked_to_leave_s is None
        if self.is_best_unsaved and is_due and may_save:
            self.is_best_unsaved = False
            self.ask_to_save(now_s)

    def step_of(self, written: Span) -> int:
        """Estimate the step of a checkpoint whose program does not state it.

        A program normally does nothing else while it saves, and reports its step just before or after. If it
        reports steps meanwhile, it saves beside its training, and the checkpoint is of the step when it began.

        Args:
            written: When the first and the last change of the save were seen, in monotonic seconds.
        """
        began_s, ended_s = written
        at_first = self._step_at(began_s + _TOLD_S)
        return self._step_at(ended_s + _TOLD_S) if self._step_at(ended_s - _TOLD_S) <= at_first else at_first

    def _step_at(self, time_s: float) -> int:
        """Steps done at a time, according to the reports that are remembered."""
        told = [step for told_s, step in self.steps if told_s <= time_s]
        return told[-1] if told else self.began

    def metric_of(self, step: int) -> float | None:
        """Value of the metric that a checkpoint of a step is saved with; None: not known."""
        if not self.assignment.direction:
            return None
        known = (value for at, value in reversed(self.measured) if self.began <= at <= step)
        return next(known, None)

    def ask_to_save(self, now_s: float) -> None:
        """Ask the program to save, if it can."""
        self.saved_s = now_s
        # A program that is finishing handles no signals any more, and would be killed by one.
        if self.has_api and not self.finished and self.is_running and self.process is not None:
            self.process.ask_to_save()

    def ending(self) -> Ending:
        """Return the outcome of the assignment; call it once the program has ended."""
        code = self.process.exit_code if self.process is not None else 0
        if self.superseded:
            return Ending.SUPERSEDED
        if self.finished:
            return Ending.FINISHED
        # Even with a notice, a program may finish before it is asked to leave.
        is_done = code == 0 and not self.has_api and self.mirror is not None and not self.mirror.has_asked
        if is_done and self.assignment.machines == 1:
            return Ending.FINISHED
        if self.asked_to_leave_s is not None or (self.has_left and self.assignment.machines > 1):
            return Ending.LEFT
        # A program without `ebbtide.trial` has done everything when it ends without an error.
        return Ending.FINISHED if code == 0 and not self.has_api else Ending.FAILED
