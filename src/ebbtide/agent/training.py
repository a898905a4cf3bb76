"""Course of a training on one machine: restoring, starting, saving in time, uploading, leaving, ending.

All of it runs in the agent's loop; output of the program and ended uploads arrive from threads as events.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.agent.checkpoint_watch import Span
from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.core_shares import CoreShare
from ebbtide.agent.folders import keep_outputs, outputs_id
from ebbtide.agent.machine import Program, RentedMachine, checkpoints_of
from ebbtide.agent.patience import is_of_machine
from ebbtide.agent.program_lines import Heard, is_duration, metric_of, number_of, step_of
from ebbtide.agent.program_output import MOST_OF_TEXT, READING_S, DroppedLines, Printed, ProgramOutput
from ebbtide.agent.progress import LogLines, reported_names
from ebbtide.agent.protocol import Ended, Ending, Log, Named, Report, Restored, Saved, Stepped, Unsaved
from ebbtide.agent.restoring import Restoration, restored
from ebbtide.agent.starting import start_program
from ebbtide.agent.uploads import Uploaded, Uploads
from ebbtide.agent.work import AssignmentWork, SavingTimes
from ebbtide.errors import StorageError
from ebbtide.storage.checkpoints.store import is_better
from ebbtide.storage.checkpoints.tree import remove_tree

_LOGGER = logging.getLogger(__name__)

# Exit codes of a shell that cannot start a program.
_NOT_STARTED = (126, 127)

_TAIL_LINES = 30
# Without a notice, a program that does not leave is killed after this multiple of the time that saving needs.
_PATIENCE = 4.0
# After this time the user is told if no progress was recognised.
_FIRST_MINUTE_S = 60.0
# Longest time to read output after a program's end: a process that it left may hold the output open.
_LAST_OUTPUT_S = 10.0


@dataclass(frozen=True)
class Loop:
    """Functions of the agent's loop that a training calls.

    Attributes:
        put: Called from any thread, to have the loop handle an event of a training.
        tell: Sends a report, at once if it is urgent.
        over: Called once a training has ended here, with its outcome.
        is_waiting: Whether an event of a training is not handled yet.
        end_left: Ends the processes that a training's program has left running, and none of other trainings.
    """

    put: Callable[[TrainingRun, Callable[[], None]], None]
    tell: Callable[[Report, bool], None]
    over: Callable[[TrainingRun, Ended], None]
    is_waiting: Callable[[TrainingRun], bool]
    end_left: Callable[[TrainingRun], None]


class TrainingRun:
    """Training of an assignment on this machine, from its order to its end.

    Args:
        assignment: The assignment, as ordered.
        config: The configuration of the machine.
        machine: The machine.
        times: Durations of saving on this machine, as far as known.
        loop: The agent's loop.
        part: The part of the machine that the training has.

    Attributes:
        times: Durations of saving this training.
    """

    def __init__(
        self,
        assignment: Assignment,
        config: AgentConfig,
        machine: RentedMachine,
        times: SavingTimes,
        loop: Loop,
        part: CoreShare,
    ) -> None:
        self._config, self._machine, self._runtime, self._loop = config, machine, machine.runtime, loop
        self.times, self._part = times, part
        home = Path(config.folder).resolve()
        self._code_folder = home / "code"
        folder, now_s = home / f"{assignment.trial_id}-{assignment.attempt}", self._runtime.monotonic_s()
        self._work = AssignmentWork(assignment, folder / "checkpoints", now_s, saved_s=now_s)
        self._heard = Heard()
        self._told_by_s = math.inf
        self._said: set[str] = set()
        self._output = ProgramOutput(lambda: self._put(self._take_output))
        self._runtime.begin(self._restore)

    @property
    def assignment(self) -> Assignment:
        """Assignment that is trained, as ordered."""
        return self._work.assignment

    @property
    def program(self) -> Program | None:
        """Its program; None: it is not started yet, or never will be."""
        return self._work.process

    @property
    def folder(self) -> Path:
        """The folder for its checkpoints, named in the environment of its program and all that this starts."""
        return self._work.folder

    # What the agent asks for.

    def ask_to_save(self) -> None:
        """Ask the program to save, if it can."""
        self._work.ask_to_save(self._runtime.monotonic_s())

    def leave(self, *, alone: bool = False) -> None:
        """Have it save and end; later calls do nothing.

        Args:
            alone: Whether a machine of its gang is gone, so that its program may wait forever for that machine.
        """
        self._work.ask_to_leave(self._runtime.monotonic_s(), alone=alone)

    def keep(self, number: int, best: int) -> None:
        """Note that a checkpoint is whole: older ones may be deleted, except the one with the best metric."""
        if self._work.uploads is not None:
            self._work.uploads.oldest = max(self._work.uploads.oldest, number)
            self._work.best_part = best or self._work.best_part
            self._work.keep_in_storage()

    def noticed(self) -> None:
        """Prepare for the revocation of the machine, which has a notice."""
        if self.assignment.framework:
            # The sooner a worker leaves, the more of its data reaches others.
            self.leave()
        if not self.times.is_known:
            # The time that saving takes was not measured yet, and there is still time to do so.
            self.ask_to_save()

    def fail(self, problem: str) -> None:
        """End it, since the agent cannot go on with it."""
        if self._work.over:
            return
        if self._work.process is not None:
            self._work.process.kill()
        self._failed_to_start(problem, code=None)

    def tick(self, now_s: float, taken_at_s: float, gives_up_s: float, others: Sequence[SavingTimes] = ()) -> None:
        """Look at it, and do what is due.

        Args:
            now_s: The present time in monotonic seconds.
            taken_at_s: Time at which the machine is revoked; infinite: it has no notice.
            gives_up_s: Time at which everything that is not stored yet is given up.
            others: Durations of saving the trainings beside it, which are saved at the same time.
        """
        work = self._work
        self._take_output()
        if now_s >= self._told_by_s and work.is_running:
            self._say_silence()
        if work.is_running:
            work.save_best(now_s, self.times.save_s)
            self._save_in_time(now_s, taken_at_s, self.times.needed_beside_s(others))
        elif now_s >= gives_up_s:
            _LOGGER.warning("trial %s: what is not stored by now is given up", self.assignment.trial_id)
            self._conclude()
        elif work.process is not None or work.asked_to_leave_s is not None:
            until_s = min(taken_at_s - self.times.needed_s, self._longest_leaving_s())
            if self._is_quiet(now_s, until_s):
                self._conclude()

    # How it begins.

    def _put(self, happened: Callable[[], None]) -> None:
        self._loop.put(self, happened)

    def _restore(self) -> None:
        work = self._work
        found = restored(
            self._config,
            self._machine,
            work.assignment,
            work.folder,
            self._code_folder,
            is_over=lambda: work.over,
            say=lambda line: self._put(lambda: self._loop.tell(Log(self.assignment.trial_id, line), True)),
        )
        if found is not None:
            self._put(lambda: self._restored(found))

    def _restored(self, found: Restoration) -> None:
        work = self._work
        if work.over:
            return
        if found.writer is None:
            if work.asked_to_leave_s is None:
                self._failed_to_start(found.problem, code=None, of_machine=found.of_machine)
            return
        if found.manifest is not None:
            work.restored, work.step = found.manifest.number, found.manifest.step
            work.began = work.written = work.stored = found.manifest.step
        self._loop.tell(Restored(*work.about, work.step, work.restored, self._runtime.epoch_s()), True)
        if work.asked_to_leave_s is not None:
            return
        work.folder.mkdir(parents=True, exist_ok=True)
        work.uploads = Uploads(
            found.writer,
            work.folder,
            self.assignment.keep,
            lambda uploaded: self._put(lambda: self._uploaded(uploaded)),
            lambda step, why: self._put(lambda: self._refused(f"the checkpoint of step {step} is", step, why)),
            self._runtime,
        )
        work.proved = set(found.writer.kept)
        work.best_part = self.assignment.best
        if found.best is not None and found.best.metric is not None:
            work.best, work.seen = (found.best.number, found.best.metric), found.best.metric
        work.keep_in_storage()
        try:
            work.process = start_program(
                work,
                self._config,
                self._machine,
                self._code_folder,
                self._part,
                self._output.put,
            )
        except (OSError, ValueError) as error:
            # There is no such executable, no operating system accepts the command's text, or the disk is full.
            of_machine = is_of_machine(error)
            self._failed_to_start(str(error), code=None if of_machine else 127, of_machine=of_machine)
            return
        if self.assignment.reads_log:
            asked = self.assignment
            work.log_lines = LogLines(asked.metric, work.step, asked.max_steps, asked.progress)
            self._told_by_s = self._runtime.monotonic_s() + _FIRST_MINUTE_S
        work.mirror = self._machine.mirror(
            work.process,
            work.folder,
            lambda copy, written: self._put(lambda: self._copied(copy, written)),
            self._is_uploading,
            lambda line: self._put(lambda: self._say_once(line)),
            found.bad,
        )

    def _refused(self, what: str, step: int, why: str) -> None:
        """Tell that storage has refused a checkpoint or outputs for several tries, or not answered."""
        self._say_once(f"ebbtide: {what} not stored yet: {why}; tried again")
        self._loop.tell(Unsaved(*self._work.about, step, why[:MOST_OF_TEXT]), True)

    def _say_once(self, line: str) -> None:
        """Add a line to the training's log, unless it is there already."""
        if line not in self._said:
            self._said.add(line)
            self._loop.tell(Log(self.assignment.trial_id, line), True)

    # What its program prints and writes.

    def _copied(self, copy: Path, written: Span) -> None:
        """Store a checkpoint of a program that does not use `ebbtide.trial`."""
        work = self._work
        if work.uploads is not None and work.mirror is not None and not work.over:
            self._keep_copy(work.step_of(written), copy)

    def _keep_copy(self, step: int, copy: Path | None) -> None:
        self._note_written(step, math.nan)
        self._upload("", step, copy)
        self._work.written = step

    def _take_output(self) -> None:
        """Read some of what its program printed; the rest waits for the next look."""
        began_s = self._runtime.monotonic_s()
        for printed in self._output.take():
            self._read_output(printed)
            if self._runtime.monotonic_s() - began_s > READING_S:
                return

    def _read_output(self, line: Printed) -> None:
        work = self._work
        if work.over:
            return
        if isinstance(line, DroppedLines):
            self._loop.tell(Log(self.assignment.trial_id, "", line.lines), False)
        elif line is None:
            work.output_read = True
            self._say_silence()
            if not self._others_run():
                self._exited()
        elif isinstance(line, str):
            work.tail = [*work.tail, line][-_TAIL_LINES:]
            self._loop.tell(Log(self.assignment.trial_id, line), False)
            if work.log_lines is not None and not work.has_api:
                self._read_words(work.log_lines, line)
        elif work.log_lines is None or work.has_api or "api" in line:
            self._reported(line)
        else:
            self._reported(work.log_lines.checked(line))
            self._say(work.log_lines.news())

    def _read_words(self, log_lines: LogLines, line: str) -> None:
        """Read a line that is printed for people."""
        found, metric = log_lines.report_of(line), self.assignment.metric
        # If the metric is never found, the names that were printed explain it.
        is_missing = found and metric and metric not in {*found, *self._heard.names}
        if is_missing and (names := self._heard.new_names(reported_names(line))):
            self._loop.tell(Named(*self._work.about, names), False)
        self._reported(found)
        self._say(log_lines.news())

    def _say_silence(self) -> None:
        """Say once, after a minute or at the end, that no progress was recognised."""
        if self._told_by_s < math.inf and self._work.log_lines is not None and not self._work.has_api:
            self._say(self._work.log_lines.silence())
        self._told_by_s = math.inf

    def _say(self, news: Sequence[str]) -> None:
        for words in news:
            self._loop.tell(Log(self.assignment.trial_id, f"ebbtide: {words}"), True)

    def _reported(self, line: Mapping[str, Any]) -> None:
        """Handle a line of JSON from the program; unknown fields are ignored."""
        work = self._work
        if "api" in line:
            work.has_api = True
        if ("api" in line or "saved" in line) and work.mirror is not None:
            # The program itself says when a checkpoint is complete.
            work.mirror.close()
            work.mirror = None
        if names := self._heard.new_names(line):
            self._loop.tell(Named(*work.about, names), False)
        step = step_of(line.get("step", line.get("started")))
        if step is not None:
            work.step = max(work.step, step)
            work.steps.append((self._runtime.monotonic_s(), work.step))
            if work.mirror is not None:
                work.mirror.stepped()
            if step > work.began:
                work.prove()
            metric, told_s = metric_of(line, self.assignment.metric), self._runtime.epoch_s()
            if math.isfinite(metric):
                work.told(step, metric, self._runtime.monotonic_s(), self.times.save_s)
            self._loop.tell(Stepped(*work.about, work.step, told_s, step, metric, *work.origin), False)
        if is_duration(step_s := number_of(line.get("step_s"))):
            self.times.stepped(step_s)
        saved = step_of(line.get("saved"))
        if "left" in line:
            work.has_left = True
        if saved is not None:
            work.written, work.saved_s = saved, self._runtime.monotonic_s()
            work.step = max(work.step, work.written)
            if is_duration(save_s := number_of(line.get("save_s"))):
                self.times.saved(save_s)
            self._note_written(saved, save_s)
            if work.uploads is not None:
                folder = line.get("folder", "")
                self._upload(folder if isinstance(folder, str) else "", work.written)
        if "finished" in line:
            work.finished = True

    def _others_run(self) -> bool:
        """Return whether other processes of the program still run, as its first may end at the signal."""
        work = self._work
        return work.mirror is not None and work.asked_to_leave_s is not None and work.mirror.is_running()

    def _exited(self) -> None:
        """Handle the end of its program, once all that it printed is read."""
        self._work.exit_handled = True
        self._store_last()
        self._keep_outputs()

    def _store_last(self) -> None:
        work = self._work
        if work.has_api or work.uploads is None or work.superseded or not _has_files(work.folder):
            return
        # Without `ebbtide.trial`, the folder is complete now, unless the program failed, or was killed while it
        # was writing.
        code = work.process.exit_code if work.process is not None else None
        if work.ending() is Ending.FINISHED:
            work.step = max(work.step, self.assignment.max_steps)
        if work.mirror is not None:
            work.mirror.close()
        if work.ending() is not Ending.FAILED and (work.mirror is None or work.mirror.has_new(code or 0)):
            written = None if work.mirror is None or work.ending() is Ending.FINISHED else work.mirror.written
            self._keep_copy(work.step if written is None else work.step_of(written), None)

    def _upload(self, only: str, step: int, copy: Path | None = None) -> None:
        """Store a checkpoint, as `Uploads.add` takes it, with the metric that it was saved with."""
        work = self._work
        if work.uploads is not None:
            metric = work.metric_of(step)
            best = None if work.best is None else work.best[1]
            is_best = is_better(metric, best, self.assignment.direction)
            work.uploads.add(only, step, copy, metric=metric, is_best=is_best)

    def _note_written(self, step: int, save_s: float) -> None:
        """Note that a checkpoint is complete on this machine."""
        self._work.written_at[step] = self._runtime.epoch_s(), save_s if is_duration(save_s) else math.nan

    def _uploaded(self, found: Uploaded) -> None:
        work = self._work
        if found.manifest is None:
            work.superseded = True
            if work.process is not None:
                work.process.kill()
            return
        self.times.uploaded(found.seconds)
        work.stored = max(work.stored, found.step)
        stored = found.manifest
        work.stored_number = stored.number
        # For a gang, the controller decides which whole checkpoint is the best.
        is_alone = self.assignment.resume is None
        if is_alone and is_better(stored.metric, work.best[1] if work.best else None, self.assignment.direction):
            assert stored.metric is not None
            work.best = stored.number, stored.metric
        work.prove()
        for path, why in found.left_out:
            self._say_once(f"ebbtide: {path} is not stored with checkpoints: it {why}")
        written_s, save_s = work.written_at.get(found.step, (math.nan, math.nan))
        # Checkpoints of earlier steps that waited were dropped in favour of this one.
        work.written_at = {step: at for step, at in work.written_at.items() if step > found.step}
        times = written_s, self._runtime.epoch_s(), save_s
        sizes = stored.size_bytes, *work.origin
        metric = math.nan if stored.metric is None else stored.metric
        self._loop.tell(
            Saved(
                *work.about,
                found.step,
                stored.number,
                *sizes,
                *times,
                metric,
                stored.uploaded_bytes,
                lacks="".join(stored.unreadable[:1])[:MOST_OF_TEXT],
            ),
            True,
        )

    def _keep_outputs(self) -> None:
        """Store the files that a finished program wrote beside its code: they may be its results."""
        work, private = self._work, self._work.private
        if private is None or work.ending() is not Ending.FINISHED:
            return
        work.keeps_outputs = True

        def refused(why: str) -> None:
            self._put(partial(self._refused, "its outputs are", work.step, why))

        def keep() -> None:
            outputs = checkpoints_of(self._machine, outputs_id(self.assignment.trial_id))
            is_lost = False
            try:
                problem = keep_outputs(
                    outputs, private, self._config.machine, work.step, refused, lambda: work.over
                )
            except Exception as error:
                _LOGGER.exception("the outputs of trial %s are not kept", self.assignment.trial_id)
                problem, is_lost = str(error) or type(error).__name__, isinstance(error, StorageError)
            self._put(partial(self._kept_outputs, problem, is_lost=is_lost))

        self._runtime.begin(keep)

    def _kept_outputs(self, problem: str, *, is_lost: bool) -> None:
        self._work.keeps_outputs = False
        if is_lost:
            self._work.outputs_problem = problem
        elif problem:
            self._loop.tell(Log(self.assignment.trial_id, f"ebbtide: {problem}"), True)

    # How it ends.

    def _save_in_time(self, now_s: float, taken_at_s: float, needed_s: float) -> None:
        work = self._work
        # A program that does not say when it has saved gets as much time again.
        if now_s >= taken_at_s - needed_s * (1.0 if work.mirror is None else 2.0):
            self.leave()
        if work.asked_to_leave_s is not None:
            if work.mirror is not None and now_s >= taken_at_s - needed_s and work.process:
                # There is only time left to store what it has written by now.
                work.process.kill()
            waits_for_ever = work.alone_s is not None and now_s > work.alone_s + needed_s
            too_long = math.isinf(taken_at_s) and now_s > work.asked_to_leave_s + _PATIENCE * needed_s
            if (waits_for_ever or too_long) and work.process:
                _LOGGER.warning("trial %s does not leave; it is killed", self.assignment.trial_id)
                work.process.kill()
        elif now_s - work.saved_s >= self.times.interval_s(self.assignment.mttr_s / self.assignment.machines):
            self.ask_to_save()

    def _longest_leaving_s(self) -> float:
        """Time until which a program that was asked to leave may go on, unless its machine is revoked."""
        asked_s = self._work.asked_to_leave_s
        return math.inf if asked_s is None else asked_s + _PATIENCE * self.times.needed_s

    def _is_quiet(self, now_s: float, until_s: float) -> bool:
        """Return whether the program has ended, all output is read, and no upload runs.

        A program whose first process has ended is concluded here; processes that it left are ended in time.

        Args:
            now_s: The present time in monotonic seconds.
            until_s: Time until which processes that were asked to end may go on, in monotonic seconds.
        """
        work = self._work
        if work.process is not None and not work.exit_handled:
            if work.exited_s is None:
                work.exited_s = now_s
            if self._others_run():
                if now_s >= until_s and work.mirror is not None:
                    work.mirror.kill_rest()
                    self._loop.end_left(self)
            elif work.output_read:
                self._exited()
            elif now_s - work.exited_s > _LAST_OUTPUT_S:
                # A process that it started still runs, and holds its output open.
                self._loop.end_left(self)
            return False
        return not (work.keeps_outputs or self._loop.is_waiting(self) or self._is_uploading())

    def _is_uploading(self) -> bool:
        return self._work.uploads is not None and self._work.uploads.is_busy

    def _conclude(self) -> None:
        work = self._work
        ending = work.ending()
        if ending is Ending.FINISHED and (self._is_uploading() or work.keeps_outputs):
            # Its result is given up, so nobody has it.
            ending = Ending.LEFT
        elif ending is Ending.FINISHED and work.outputs_problem:
            ending = Ending.FAILED
            work.tail.append(work.outputs_problem)
        self._close()
        code = work.process.exit_code if work.process is not None else None
        # Shells exit with these codes if a program does not exist or may not be executed.
        said_nothing = not self._heard.names and not work.has_api
        never_ran = ending is Ending.FAILED and code in _NOT_STARTED and said_nothing
        ended = Ended(
            *work.about,
            ending,
            work.stored if ending is Ending.LEFT else work.step,
            came=max(work.step - work.began, 0),
            number=work.restored,
            began=work.began if work.uploads is not None else None,
            stored=work.stored_number or (work.restored if work.resumed_own else 0),
            code=code,
            tail=tuple(work.tail),
            cannot_start=never_ran and work.step == work.began,
            of_machine=bool(work.outputs_problem),
        )
        self._loop.over(self, ended)

    def _failed_to_start(self, problem: str, *, code: int | None = 127, of_machine: bool = False) -> None:
        work = self._work
        self._close()
        ended = Ended(
            *work.about,
            Ending.FAILED,
            work.step,
            number=work.restored,
            began=work.began if work.uploads is not None else None,
            code=code,
            tail=(problem,),
            cannot_start=code is not None,
            of_machine=of_machine,
        )
        self._loop.over(self, ended)

    def _close(self) -> None:
        work = self._work
        work.over = True
        self._output.close()
        if work.mirror is not None:
            work.mirror.close()
        if work.uploads is not None:
            work.uploads.close()
        # Processes that its program put into other sessions must not run beside the next program.
        self._loop.end_left(self)
        remove_tree(work.folder.parent)


def _has_files(folder: Path) -> bool:
    """Return whether a folder contains anything; False if the program has removed it."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False
