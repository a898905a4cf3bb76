"""The agent's loop: events from other threads go to one queue, and are handled one after the other."""

from __future__ import annotations

import logging
import math
import shutil
import tarfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.errors import DamagedCheckpointError, StorageError
from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent.folders import PrivateFolder, keep_outputs, link_checkpoints, outputs_id, unpack
from ebbtide.live.agent.gang import command_of, neighbours, restore_parts
from ebbtide.live.agent.heartbeats import Heartbeats
from ebbtide.live.agent.inputs import fetch_inputs
from ebbtide.live.agent.machine import Machine, ThisMachine, checkpoints_of
from ebbtide.live.agent.messages import MessageLog, Outbox, Unreadable
from ebbtide.live.agent.metadata import Notice
from ebbtide.live.agent.protocol import (
    MOST_STEPS,
    ORDERS,
    REPORTS,
    Channel,
    Down,
    End,
    Ended,
    Ending,
    Hand,
    Keep,
    Leave,
    Log,
    Named,
    Noticed,
    Order,
    Rebalance,
    Repeat,
    Restored,
    Save,
    Saved,
    Stepped,
    Stranded,
    Train,
    Up,
)
from ebbtide.live.agent.tasks import TaskRunner
from ebbtide.live.agent.uploads import Uploaded, Uploads
from ebbtide.live.agent.watching import LogLines
from ebbtide.live.agent.work import SavingTimes, Work
from ebbtide.live.checkpoints.manifest import Manifest
from ebbtide.live.checkpoints.store import CheckpointStore, CheckpointWriter
from ebbtide.trial import AGENT, CHECKPOINT_DIR, INPUTS, MAX_STEPS, TRIAL_ID

_LOGGER = logging.getLogger(__name__)

# Exit codes of the agent: the machine stays rented, or is to be ended.
STAYS, ENDS_MACHINE = 0, 42

# Exit codes of a shell that cannot start a program.
_NOT_STARTED = (126, 127)

# Names of numbers in a program's lines that belong to Ebbtide's protocol and are no results.
_OURS = frozenset({"step", "started", "saved", "finished", "left", "save_s", "step_s", "api", "epoch"})
_MOST_FIELDS, _MOST_OF_NAME = 50, 80

_TAIL_LINES = 30
# Without a notice, a program that does not leave is killed after so many times the time that saving needs.
_PATIENCE = 4.0
_RETRY_S = 1.0
# After a program's end its output is read for so long at most: a process that it left may hold the output open.
_LAST_OUTPUT_S = 10.0
# Storage that lacks a checkpoint that it had is asked again for so long at most.
_LACKS_S = 300.0


class Agent:
    """The agent of one machine.

    Args:
        config: The configuration that the machine was started with.
        machine: The machine; by default the one that this process runs on.
    """

    def __init__(self, config: AgentConfig, machine: Machine | None = None) -> None:
        self._config = config
        self._machine = machine or ThisMachine(config)
        self._runtime, self._objects = self._machine.runtime, self._machine.objects
        self._folder = Path(config.folder).resolve()
        key = bytes.fromhex(config.key)
        self._orders = MessageLog(self._objects, Channel(config.machine, ORDERS, key))
        self._heartbeats = Heartbeats(self._objects, config.run, config.controller_limit_s)
        reports = MessageLog(self._objects, Channel(config.machine, REPORTS, key))
        self._outbox = Outbox(reports, config.report_s, self._runtime)
        self._happened: deque[Callable[[], None]] = deque()
        self._woken = self._runtime.flag()
        self._times = SavingTimes(first_s=config.first_save_s, margin_s=config.margin_s)
        # A training under way, or tasks of an array; never both.
        self._work: Work | None = None
        self._tasks: TaskRunner | None = None
        self._hands: list[Hand] = []
        self._next: Assignment | None = None
        self._attempts: dict[str, int] = {}
        # How the last assignment of each trial ended here, to be repeated on request.
        self._endings: dict[str, Ended] = {}
        self._epoch = 0
        self._beat = 0
        self._taken_at_s = math.inf
        self._notice = Notice()
        self._alive_s = self._runtime.monotonic_s()
        self._code: int | None = None
        self._gives_up_s = math.inf
        self._closing = self._runtime.flag()

    def run(self) -> int:
        """Run until ordered to end; returns the exit code."""
        self._machine.begin(self._folder, lambda: self._put(lambda: self._end(STAYS)))
        self._outbox.put(Up())
        for watch, every_s in (
            (self._watch_orders, self._config.poll_s),
            (self._watch_metadata, self._config.notice_poll_s),
            (self._watch_controller, self._heartbeats.every_s),
            (self._machine.remember, self._machine.remembers_every_s),
        ):
            self._runtime.begin(partial(self._repeat, watch, every_s))
        while self._code is None or self._is_busy:
            if not self._happened:
                self._woken.wait(self._config.tick_s)
                self._woken.clear()
            try:
                if self._happened:
                    self._happened.popleft()()
                self._tick()
            except Exception as error:
                if self._tasks is not None:
                    _LOGGER.exception("tasks of %s cannot be continued", self._tasks.assignment.trial_id)
                    self._conclude_tasks(self._tasks)
                    continue
                if self._work is None:
                    raise
                # What this training does would end every agent that takes it: it is the training that fails.
                _LOGGER.exception("trial %s cannot be continued", self._work.assignment.trial_id)
                self._fail(self._work, f"the agent cannot go on with it: {type(error).__name__}: {error}")
        self._closing.set()
        self._outbox.put(Down())
        self._outbox.close()
        return self._code

    def _put(self, happened: Callable[[], None]) -> None:
        """Called from any thread: what happened is handled by the loop."""
        self._happened.append(happened)
        self._woken.set()

    @property
    def _is_busy(self) -> bool:
        return self._work is not None or self._tasks is not None

    @property
    def _code_folder(self) -> Path:
        return self._folder / "code"

    @property
    def _inputs_folder(self) -> Path:
        return self._folder / "inputs"

    # What is watched, in threads of their own.

    def _repeat(self, watch: Callable[[], None], every_s: float) -> None:
        while not self._closing.is_set():
            try:
                watch()
            except Exception as error:
                _LOGGER.warning("%s", error)
            self._closing.wait(every_s)

    def _watch_orders(self) -> None:
        begins = self._orders.read == 0
        for order in _in_force(list(self._given())) if begins else self._given():
            self._put(partial(self._ordered, order))

    def _given(self) -> Iterator[Order]:
        """New orders of the newest controller: one that another has taken over from is not obeyed any more."""
        for found in self._orders.new():
            if isinstance(found, Unreadable):
                _LOGGER.warning("%s %s; it is not obeyed", found.key, found.why)
            elif found.epoch < self._epoch:
                _LOGGER.warning(
                    "an order of controller %d, which %d has replaced, is not obeyed", found.epoch, self._epoch
                )
            else:
                self._epoch = found.epoch
                if found.message is not None:
                    yield found.message  # type: ignore[misc]

    def _watch_metadata(self) -> None:
        notice = self._machine.notice()
        if notice != self._notice:
            self._put(lambda: self._noticed(notice))

    def _watch_controller(self) -> None:
        newest = self._heartbeats.newest()
        if newest != self._beat and self._heartbeats.keeps_alive(newest, self._config.machine):
            self._beat, self._alive_s = newest, self._runtime.monotonic_s()

    # What happens.

    def _ordered(self, order: Order) -> None:
        work = self._work
        match order:
            case Train(assignment):
                if assignment.attempt <= self._attempts.get(assignment.trial_id, 0):
                    return  # written twice
                self._attempts[assignment.trial_id] = assignment.attempt
                self._next = assignment
                self._leave()
                if not self._is_busy:
                    self._begin()
            case Hand(attempt):
                if self._tasks is not None and attempt == self._tasks.assignment.attempt:
                    self._tasks.hand(order)
                else:
                    self._hands.append(order)
            case Save() if work is not None:
                work.ask_to_save(self._runtime.monotonic_s())
            case Keep(attempt, number):
                if work is not None and attempt == work.assignment.attempt and work.uploads is not None:
                    work.uploads.oldest = max(work.uploads.oldest, number)
            case Leave(attempt, trial, alone):
                if self._next is not None and attempt == self._next.attempt:
                    self._next = None
                if work is not None and attempt == work.assignment.attempt:
                    work.ask_to_leave(self._runtime.monotonic_s(), alone=alone)
                elif self._tasks is not None and attempt == self._tasks.assignment.attempt:
                    self._tasks.leave(self._runtime.monotonic_s())
                elif trial:
                    # It never began on this machine, or before this agent started: it need not be waited for.
                    self._outbox.put(Ended(trial, attempt, Ending.LEFT, 0))
            case End():
                self._end(ENDS_MACHINE)
            case Repeat():
                for ended in self._endings.values():
                    self._outbox.put(ended)
                if self._tasks is not None:
                    self._tasks.repeat()

    def _end(self, code: int) -> None:
        self._code, self._next = code, None
        self._leave()

    def _leave(self) -> None:
        """What is under way is to save and end."""
        now_s = self._runtime.monotonic_s()
        if self._work is not None:
            self._work.ask_to_leave(now_s)
        if self._tasks is not None:
            self._tasks.leave(now_s)

    def _noticed(self, notice: Notice) -> None:
        before, self._notice = self._notice, notice
        if notice.rebalance and not before.rebalance:
            # A revocation has become more likely: the policy decides what to do about it.
            self._outbox.put(Rebalance())
        if notice.taken_at_s is not None and before.taken_at_s is None:
            left_s = notice.taken_at_s - self._runtime.epoch_s()
            self._taken_at_s = self._runtime.monotonic_s() + left_s
            self._outbox.put(Noticed(notice.taken_at_s))
            if self._work is not None and self._work.assignment.framework:
                # The sooner a worker leaves, the more of what it has reaches others.
                self._work.ask_to_leave(self._runtime.monotonic_s())
            if self._work is not None and not self._times.is_known:
                # How long saving takes was not measured yet, and there is still time to do so.
                self._work.ask_to_save(self._runtime.monotonic_s())

    def _begin(self) -> None:
        """Start the next assignment: restore its newest checkpoint, and train."""
        assert self._next is not None
        assignment, self._next = self._next, None
        folder = self._folder / f"{assignment.trial_id}-{assignment.attempt}"
        now_s = self._runtime.monotonic_s()
        if assignment.side_by_side:
            self._tasks = TaskRunner(
                assignment,
                folder,
                self._code_folder,
                self._config.machine,
                self._config.margin_s,
                self._machine,
                self._put,
                lambda report, urgent: self._outbox.put(report, urgent=urgent),
            )
            for hand in self._hands:
                if hand.attempt == assignment.attempt:
                    self._tasks.hand(hand)
            self._hands = [hand for hand in self._hands if hand.attempt > assignment.attempt]
            return
        self._work = work = Work(assignment, folder / "checkpoints", now_s, self._times, saved_s=now_s)
        self._runtime.begin(partial(self._restore, work))

    def _restore(self, work: Work) -> None:
        """In a thread of its own, tried again until storage answers or the assignment is over."""
        store = checkpoints_of(self._machine, work.assignment.trial_id)
        lacks_s = math.inf
        while not work.over:
            lacks = ""
            try:
                lacks = _lacks(store, work.assignment)
                if lacks:
                    raise StorageError(lacks)
                for number in work.assignment.aside:
                    store.set_aside(number, "training failed from it")
                if work.assignment.code:
                    try:
                        unpack(self._objects, work.assignment.code, self._code_folder)
                    except tarfile.TarError as error:
                        lacks = f"the code in storage is not used: {error}"
                        raise
                assignment = work.assignment
                fetch_inputs(self._objects, assignment.inputs, self._inputs_folder)
                writer = store.begin_writing(
                    self._config.machine, attempt=assignment.attempt, machines=assignment.machines
                )
                if assignment.resume is None:
                    manifest = store.restore(work.folder)
                else:
                    manifest = restore_parts(self._machine, assignment.resume, work.folder)
            except DamagedCheckpointError as error:
                # Which whole checkpoint is resumed from instead is for the controller to say.
                self._put(partial(self._not_restored, work, str(error)))
                return
            except Exception as error:
                _LOGGER.warning("trial %s is not restored yet: %s", work.assignment.trial_id, error)
                if not lacks:
                    lacks_s = math.inf
                elif math.isinf(lacks_s):
                    lacks_s = self._runtime.monotonic_s()
                    line = f"ebbtide: {lacks}; asked again"
                    self._put(partial(self._outbox.put, Log(work.assignment.trial_id, line)))
                elif self._runtime.monotonic_s() - lacks_s > min(_LACKS_S, self._config.controller_limit_s):
                    self._put(partial(self._not_restored, work, lacks))
                    return
                self._runtime.sleep(_RETRY_S)
                continue
            self._put(partial(self._restored, work, writer, manifest))
            return

    def _not_restored(self, work: Work, problem: str) -> None:
        if not work.over and work.asked_to_leave_s is None:
            self._failed_to_start(work, problem, code=None)

    def _restored(self, work: Work, writer: CheckpointWriter, manifest: Manifest | None) -> None:
        if work.over or work is not self._work:
            return
        if manifest is not None:
            work.restored, work.step = manifest.number, manifest.step
            work.began = work.written = work.stored = manifest.step
        self._outbox.put(Restored(*_about(work), work.step, work.restored))
        if work.asked_to_leave_s is not None:
            return
        work.folder.mkdir(parents=True, exist_ok=True)
        work.uploads = Uploads(
            writer,
            work.folder,
            work.assignment.keep,
            lambda found: self._put(lambda: self._uploaded(work, found)),
            self._runtime,
        )
        assignment = work.assignment
        environment = {
            # Python keeps lines back where no terminal reads them: metrics would come late, or in another order.
            "PYTHONUNBUFFERED": "1",
            **assignment.environment,
            TRIAL_ID: assignment.trial_id,
            CHECKPOINT_DIR: str(work.folder),
            AGENT: "1",
        }
        if assignment.inputs:
            environment[INPUTS] = str(self._inputs_folder)
        if assignment.max_steps:
            environment[MAX_STEPS] = str(assignment.max_steps)
        environment |= neighbours(assignment, bytes.fromhex(self._config.key), self._config.store)
        arguments = [part.replace("{checkpoint_dir}", str(work.folder)) for part in command_of(assignment)]
        try:
            runs_in = self._private(work)
            if assignment.checkpoints:
                link_checkpoints(runs_in, assignment.checkpoints, work.folder)
            work.process = self._machine.start(
                arguments,
                environment,
                runs_in,
                lambda line: self._put(lambda: self._read_output(work, line)),
            )
        except (OSError, ValueError) as error:
            # No such executable, or one that no operating system could be given.
            self._failed_to_start(work, str(error))
            return
        work.log_lines = LogLines(assignment.metric, work.step) if assignment.reads_log else None
        work.mirror = self._machine.mirror(
            work.process,
            work.folder,
            lambda copy: self._put(lambda: self._copied(work, copy)),
            lambda: _is_busy(work),
        )

    def _copied(self, work: Work, copy: Path) -> None:
        """A program that does not use `ebbtide.trial` has written a checkpoint."""
        if work.uploads is not None and work.mirror is not None and not work.over:
            work.uploads.add("", work.step, copy)
            work.written = work.step

    def _private(self, work: Work) -> Path:
        """Make the folder that the program runs in, which no other program uses."""
        assignment, place = work.assignment, work.folder.parent / "code"
        if assignment.code:
            work.private = PrivateFolder(place, code=self._code_folder)
        elif assignment.cwd:
            work.private = PrivateFolder(place, linked=Path(assignment.cwd))
        else:
            return work.folder.parent
        return work.private.path

    def _fail(self, work: Work, problem: str) -> None:
        if work.process is not None:
            work.process.kill()
        self._failed_to_start(work, problem, code=None)
        if self._next is not None and self._code is None:
            self._begin()

    def _failed_to_start(self, work: Work, problem: str, *, code: int | None = 127) -> None:
        self._close(work)
        self._tell_end(
            Ended(
                *_about(work),
                Ending.FAILED,
                work.step,
                number=work.restored,
                began=work.began if work.uploads is not None else None,
                code=code,
                tail=(problem,),
                cannot_start=code is not None,
            )
        )

    def _keep_outputs(self, work: Work) -> None:
        """Store the files that a finished program wrote beside its code: they may be its results."""
        private = work.private
        if private is None or work.ending() is not Ending.FINISHED:
            return
        work.keeps_outputs = True

        def keep() -> None:
            outputs = checkpoints_of(self._machine, outputs_id(work.assignment.trial_id))
            problem = keep_outputs(outputs, private, self._config.machine, work.step)
            self._put(partial(self._kept_outputs, work, problem))

        self._runtime.begin(keep)

    def _kept_outputs(self, work: Work, problem: str) -> None:
        work.keeps_outputs = False
        if problem:
            self._outbox.put(Log(work.assignment.trial_id, f"ebbtide: {problem}"))

    def _read_output(self, work: Work, line: Mapping[str, Any] | str | None) -> None:
        if work.over:
            return
        if line is None:
            work.output_read = True
            self._exited(work)
            self._keep_outputs(work)
        elif isinstance(line, str):
            work.tail = [*work.tail, line][-_TAIL_LINES:]
            self._outbox.put(Log(work.assignment.trial_id, line), urgent=False)
            if work.log_lines is not None:
                self._reported(work, work.log_lines.report_of(line))
        else:
            self._reported(work, line)

    def _reported(self, work: Work, line: Mapping[str, Any]) -> None:
        """A line of JSON from the program; unknown fields are ignored."""
        if "api" in line:
            work.has_api = True
        if ("api" in line or "saved" in line) and work.mirror is not None:
            # The program itself says when a checkpoint is complete.
            work.mirror.close()
            work.mirror = None
        self._named(work, line)
        step = _step_of(line.get("step", line.get("started")))
        if step is not None:
            work.step = max(work.step, step)
            metric = _number_of(line.get(work.assignment.metric))
            self._outbox.put(
                Stepped(*_about(work), work.step, self._runtime.epoch_s(), step, metric, *_origin(work)),
                urgent=False,
            )
        if _is_duration(step_s := _number_of(line.get("step_s"))):
            self._times.stepped(step_s)
        saved = _step_of(line.get("saved"))
        if "left" in line:
            work.has_left = True
        if saved is not None:
            work.written, work.saved_s = saved, self._runtime.monotonic_s()
            work.step = max(work.step, work.written)
            if _is_duration(save_s := _number_of(line.get("save_s"))):
                self._times.saved(save_s)
            if work.uploads is not None:
                folder = line.get("folder", "")
                work.uploads.add(folder if isinstance(folder, str) else "", work.written)
        if "finished" in line:
            work.finished = True

    def _named(self, work: Work, line: Mapping[str, Any]) -> None:
        """Report names of the program's numbers, with which a misspelt metric can be explained."""
        new = {
            name[:_MOST_OF_NAME]
            for name, value in line.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in _OURS
        } - work.fields
        if new and len(work.fields) < _MOST_FIELDS:
            work.fields |= new
            self._outbox.put(Named(*_about(work), tuple(sorted(new)[:_MOST_FIELDS])), urgent=False)

    def _exited(self, work: Work) -> None:
        if work.has_api or work.uploads is None or work.superseded or not _has_files(work.folder):
            return
        # Without `ebbtide.trial`, the folder is complete now, unless the program failed, or was killed while it
        # was writing.
        code = work.process.exit_code if work.process is not None else None
        if work.ending() is Ending.FINISHED:
            work.step = max(work.step, work.assignment.max_steps)
        if work.mirror is not None:
            work.mirror.close()
        if work.ending() is not Ending.FAILED and (work.mirror is None or work.mirror.has_new(code or 0)):
            work.uploads.add("", work.step)
            work.written = work.step

    def _uploaded(self, work: Work, found: Uploaded) -> None:
        if found.manifest is None:
            work.superseded = True
            if work.process is not None:
                work.process.kill()
            return
        self._times.uploaded(found.seconds)
        work.stored = max(work.stored, found.step)
        stored = found.manifest
        work.stored_number = stored.number
        self._outbox.put(Saved(*_about(work), found.step, stored.number, stored.size_bytes, *_origin(work)))

    # What is checked at every tick.

    def _tick(self) -> None:
        now_s = self._runtime.monotonic_s()
        if now_s - self._alive_s > self._config.controller_limit_s and self._code is None:
            _LOGGER.warning("no heartbeat of the controller for %g s: this machine ends", now_s - self._alive_s)
            self._outbox.put(Stranded())
            self._end(ENDS_MACHINE)
            # A machine that nobody knows of any more must not wait for ever for storage that may be gone.
            self._gives_up_s = now_s + self._config.controller_limit_s
        work, tasks = self._work, self._tasks
        if tasks is not None:
            self._machine.reap(tasks.programs)
            tasks.tick(now_s, self._taken_at_s)
            if now_s >= self._gives_up_s or tasks.has_left:
                self._conclude_tasks(tasks)
            return
        self._machine.reap([] if work is None or work.process is None else [work.process])
        if work is None:
            return
        if work.is_running:
            self._save_in_time(work, now_s)
        elif now_s >= self._gives_up_s:
            _LOGGER.warning("trial %s: what is not stored by now is given up", work.assignment.trial_id)
            self._conclude(work)
        elif (work.process is not None or work.asked_to_leave_s is not None) and self._is_quiet(work, now_s):
            self._conclude(work)

    def _save_in_time(self, work: Work, now_s: float) -> None:
        # A program that does not say when it has saved gets as much time again.
        leaving_s = self._times.needed_s * (1.0 if work.mirror is None else 2.0)
        if now_s >= self._taken_at_s - leaving_s:
            work.ask_to_leave(self._runtime.monotonic_s())
        if work.asked_to_leave_s is not None:
            patience_s = _PATIENCE * self._times.needed_s
            if work.mirror is not None and now_s >= self._taken_at_s - self._times.needed_s and work.process:
                # There is only time left to store what it has written by now.
                work.process.kill()
            waits_for_ever = work.alone_s is not None and now_s > work.alone_s + self._times.needed_s
            too_long = math.isinf(self._taken_at_s) and now_s > work.asked_to_leave_s + patience_s
            if (waits_for_ever or too_long) and work.process:
                _LOGGER.warning("trial %s does not leave; it is killed", work.assignment.trial_id)
                work.process.kill()
        elif now_s - work.saved_s >= self._times.interval_s(work.assignment.mttr_s / work.assignment.machines):
            work.ask_to_save(self._runtime.monotonic_s())

    def _is_quiet(self, work: Work, now_s: float) -> bool:
        """Whether nothing is under way: all output is read, and no upload runs."""
        if work.process is not None and not work.output_read:
            if work.exited_s is None:
                work.exited_s = now_s
            elif now_s - work.exited_s > _LAST_OUTPUT_S:
                # A process that it started still runs, and holds its output open.
                self._machine.end_left()
            return False
        if work.keeps_outputs:
            return False
        return not self._happened and (work.uploads is None or not work.uploads.is_busy)

    def _conclude(self, work: Work) -> None:
        ending = work.ending()
        self._close(work)
        code = work.process.exit_code if work.process is not None else None
        step = work.stored if ending is Ending.LEFT else work.step
        # A shell exits so when there is no such program, or none that may be executed.
        never_ran = ending is Ending.FAILED and code in _NOT_STARTED and not work.fields and not work.has_api
        self._tell_end(
            Ended(
                *_about(work),
                ending,
                step,
                came=max(work.step - work.began, 0),
                number=work.restored,
                began=work.began if work.uploads is not None else None,
                stored=work.stored_number or (work.restored if work.resumed_own else 0),
                code=code,
                tail=tuple(work.tail),
                cannot_start=never_ran and work.step == work.began,
            )
        )
        if self._next is not None and self._code is None:
            self._begin()

    def _conclude_tasks(self, tasks: TaskRunner) -> None:
        self._tasks = None
        tasks.close()
        assignment = tasks.assignment
        self._tell_end(Ended(assignment.trial_id, assignment.attempt, Ending.LEFT, tasks.done))
        if self._next is not None and self._code is None:
            self._begin()

    def _close(self, work: Work) -> None:
        work.over = True
        if work.mirror is not None:
            work.mirror.close()
        if work.uploads is not None:
            work.uploads.close()
        # What its program put into other sessions must not run beside the next one.
        self._machine.end_left()
        if work is self._work:
            self._work = None
        shutil.rmtree(work.folder.parent, ignore_errors=True)

    def _tell_end(self, ended: Ended) -> None:
        self._endings[ended.trial] = ended
        self._outbox.put(ended)


def _step_of(value: object) -> int | None:
    """A step as a program prints it; None: it is none that could be reported."""
    return value if type(value) is int and 0 <= value <= MOST_STEPS else None


def _number_of(value: object) -> float:
    """A number as a program prints it; NaN: it is none. What is too large for one is infinite."""
    if not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_duration(seconds: float) -> bool:
    return 0.0 <= seconds < math.inf


def _has_files(folder: Path) -> bool:
    """Whether there is anything in a folder, which a program may have removed."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _lacks(store: CheckpointStore, assignment: Assignment) -> str:
    """Why storage cannot be the run's, which has a checkpoint that this lacks; empty: it lacks none."""
    expected = assignment.expected
    if expected in assignment.aside or max(store.numbers("manifests"), default=0) >= expected:
        return ""
    return f"storage has no checkpoint {expected} of trial {assignment.trial_id}, which was stored: is it mounted?"


def _about(work: Work) -> tuple[str, int]:
    return work.assignment.trial_id, work.assignment.attempt


def _origin(work: Work) -> tuple[int, int]:
    """The resume step of an assignment, and the number of its checkpoint."""
    return work.began, work.restored


def _is_busy(work: Work) -> bool:
    return work.uploads is not None and work.uploads.is_busy


def _in_force(orders: list[Order]) -> list[Order]:
    """The orders that an agent has to obey when it starts, of all that the machine ever received: the last order
    to train, unless that training is over, and every order after it."""
    last = max((place for place, order in enumerate(orders) if isinstance(order, Train)), default=None)
    if last is None:
        return orders
    train, rest = orders[last], orders[last + 1 :]
    assert isinstance(train, Train)
    over = any(isinstance(order, Leave) and order.attempt == train.assignment.attempt for order in rest)
    return rest if over else [train, *rest]
