"""The agent's loop: events from other threads go to one queue, and are handled one after the other."""

from __future__ import annotations

import logging
import math
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent.folders import PrivateFolder, keep_outputs, link_checkpoints, unpack
from ebbtide.live.agent.log_lines import LogLines
from ebbtide.live.agent.messages import Heartbeats, MessageLog, Outbox
from ebbtide.live.agent.metadata import Metadata, Notice
from ebbtide.live.agent.mirror import Mirror
from ebbtide.live.agent.processes import MACHINE, TrainingProcess, kill_processes
from ebbtide.live.agent.uploads import Uploaded, Uploads
from ebbtide.live.agent.work import Ending, SavingTimes, Work
from ebbtide.live.checkpoints.manifest import Manifest
from ebbtide.live.checkpoints.store import CheckpointStore, CheckpointWriter
from ebbtide.live.storage import object_store
from ebbtide.trial import AGENT, CHECKPOINT_DIR, MAX_STEPS, TRIAL_ID

_LOGGER = logging.getLogger(__name__)

# Exit codes of the agent: the machine stays rented, or is to be ended.
STAYS, ENDS_MACHINE = 0, 42

# Exit codes of a shell that cannot start a program.
_NOT_STARTED = (126, 127)

# Names of numbers in a program's lines that belong to Ebbtide's protocol and are no results.
_OURS = frozenset({"step", "started", "saved", "finished", "left", "save_s", "step_s", "api", "epoch"})
_MOST_FIELDS, _MOST_OF_NAME = 50, 80

_TICK_S = 0.05
_TAIL_LINES = 30
# Without a notice, a program that does not leave is killed after so many times the time that saving needs.
_PATIENCE = 4.0
_RETRY_S = 1.0
# After a program's end its output is read for so long at most: a process that it left may hold the output open.
_LAST_OUTPUT_S = 10.0


class Agent:
    """The agent of one machine.

    Args:
        config: The configuration that the machine was started with.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._objects = object_store(config.store)
        self._folder = Path(config.folder).resolve()
        self._orders = MessageLog(self._objects, config.machine, "orders")
        self._heartbeats = Heartbeats(self._objects, config.run, config.controller_limit_s)
        self._outbox = Outbox(MessageLog(self._objects, config.machine, "reports"), config.report_s)
        self._metadata = Metadata(config.metadata_url)
        self._happened: queue.Queue[Callable[[], None]] = queue.Queue()
        self._times = SavingTimes(first_s=config.first_save_s, margin_s=config.margin_s)
        self._work: Work | None = None
        self._next: Assignment | None = None
        self._attempts: dict[str, int] = {}
        self._taken_at_s = math.inf
        self._notice = Notice()
        self._alive_s = time.monotonic()
        self._code: int | None = None
        self._closing = threading.Event()

    def run(self) -> int:
        """Run until ordered to end; returns the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._happened.put(lambda: self._end(STAYS)))
        # Processes of an earlier agent that was killed must not run beside those started now.
        os.environ[MACHINE] = str(self._folder)
        kill_processes(MACHINE, str(self._folder))
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._outbox.put({"type": "up"})
        for watch, every_s in (
            (self._watch_orders, self._config.poll_s),
            (self._watch_metadata, self._config.notice_poll_s),
            (self._watch_controller, self._heartbeats.slot_s / 2.0),
        ):
            threading.Thread(target=self._repeat, args=(watch, every_s), daemon=True).start()
        while self._code is None or self._work is not None:
            try:
                happened = self._happened.get(timeout=_TICK_S)
            except queue.Empty:
                pass
            else:
                happened()
            self._tick()
        self._closing.set()
        self._outbox.put({"type": "down"})
        self._outbox.close()
        return self._code

    @property
    def _code_folder(self) -> Path:
        return self._folder / "code"

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
        for order in _in_force(list(self._orders.new())) if begins else self._orders.new():
            self._happened.put(partial(self._ordered, order))

    def _watch_metadata(self) -> None:
        notice = self._metadata.notice()
        if notice != self._notice:
            self._happened.put(lambda: self._noticed(notice))

    def _watch_controller(self) -> None:
        if self._heartbeats.seen(time.time()):
            self._alive_s = time.monotonic()

    # What happens.

    def _ordered(self, order: Mapping[str, Any]) -> None:
        work = self._work
        match order["type"]:
            case "train":
                assignment = Assignment.decode(order["assignment"])
                if assignment.attempt <= self._attempts.get(assignment.trial_id, 0):
                    return  # written twice
                self._attempts[assignment.trial_id] = assignment.attempt
                self._next = assignment
                if work is None:
                    self._begin()
                else:
                    work.ask_to_leave()
            case "save" if work is not None:
                work.ask_to_save()
            case "leave":
                attempt = order.get("attempt")
                if self._next is not None and attempt in (None, self._next.attempt):
                    self._next = None
                if work is not None and attempt in (None, work.assignment.attempt):
                    work.ask_to_leave()
                elif "trial" in order:
                    # It never began on this machine, or before this agent started: it need not be waited for.
                    about = {"trial": order["trial"], "attempt": attempt}
                    self._outbox.put({"type": str(Ending.LEFT), **about, "step": 0, "number": 0})
            case "end":
                self._end(ENDS_MACHINE)

    def _end(self, code: int) -> None:
        self._code, self._next = code, None
        if self._work is not None:
            self._work.ask_to_leave()

    def _noticed(self, notice: Notice) -> None:
        before, self._notice = self._notice, notice
        if notice.rebalance and not before.rebalance:
            # A revocation has become more likely: the policy decides what to do about it.
            self._outbox.put({"type": "rebalance"})
        if notice.taken_at_s is not None and before.taken_at_s is None:
            left_s = notice.taken_at_s - time.time()
            self._taken_at_s = time.monotonic() + left_s
            self._outbox.put({"type": "notice", "taken_at_s": notice.taken_at_s})
            if self._work is not None and not self._times.is_known:
                # How long saving takes was not measured yet, and there is still time to do so.
                self._work.ask_to_save()

    def _begin(self) -> None:
        """Start the next assignment: restore its newest checkpoint, and train."""
        assert self._next is not None
        assignment, self._next = self._next, None
        folder = self._folder / f"{assignment.trial_id}-{assignment.attempt}"
        self._work = work = Work(assignment, folder / "checkpoints", time.monotonic(), self._times)
        threading.Thread(target=self._restore, args=(work,), daemon=True).start()

    def _restore(self, work: Work) -> None:
        """In a thread of its own, tried again until storage answers or the assignment is over."""
        store = CheckpointStore(self._objects, work.assignment.trial_id)
        while not work.over:
            try:
                for number in work.assignment.aside:
                    store.set_aside(number, "training failed from it")
                if work.assignment.code:
                    unpack(self._objects, work.assignment.code, self._code_folder)
                writer = store.begin_writing(self._config.machine)
                manifest = store.restore(work.folder)
            except Exception as error:
                _LOGGER.warning("trial %s is not restored yet: %s", work.assignment.trial_id, error)
                time.sleep(_RETRY_S)
                continue
            self._happened.put(partial(self._restored, work, writer, manifest))
            return

    def _restored(self, work: Work, writer: CheckpointWriter, manifest: Manifest | None) -> None:
        if work.over or work is not self._work:
            return
        if manifest is not None:
            work.restored, work.step = manifest.number, manifest.step
            work.began = work.written = work.stored = manifest.step
        self._report(work, "restored", step=work.step, number=work.restored)
        if work.asked_to_leave_s is not None:
            return
        work.folder.mkdir(parents=True, exist_ok=True)
        work.uploads = Uploads(
            writer,
            work.folder,
            work.assignment.keep,
            lambda found: self._happened.put(lambda: self._uploaded(work, found)),
        )
        assignment = work.assignment
        environment = {
            **assignment.environment,
            TRIAL_ID: assignment.trial_id,
            CHECKPOINT_DIR: str(work.folder),
            AGENT: "1",
        }
        if assignment.max_steps:
            environment[MAX_STEPS] = str(assignment.max_steps)
        arguments = [part.replace("{checkpoint_dir}", str(work.folder)) for part in assignment.arguments]
        try:
            runs_in = self._private(work)
            if assignment.checkpoints:
                link_checkpoints(runs_in, assignment.checkpoints, work.folder)
            self._check_executable(arguments[0], runs_in, environment)
            work.process = TrainingProcess(
                arguments,
                environment,
                runs_in,
                lambda line: self._happened.put(lambda: self._read_output(work, line)),
            )
        except OSError as error:
            self._failed_to_start(work, str(error))
            return
        work.log_lines = LogLines(assignment.metric, work.step) if assignment.reads_log else None
        work.mirror = Mirror(
            work.folder,
            work.folder.parent / "copies",
            work.process.process.pid,
            lambda copy: self._happened.put(lambda: self._copied(work, copy)),
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

    def _check_executable(self, name: str, runs_in: Path, environment: Mapping[str, str]) -> None:
        """Check before the start, since `setpriv`, which starts the program, reports less.

        Raises:
            OSError: There is no such executable.
        """
        path = environment.get("PATH", os.environ.get("PATH", os.defpath))
        if shutil.which(str(runs_in / name) if "/" in name else name, path=path) is None:
            raise FileNotFoundError(f"{name} is not found on the machine, or cannot be executed")

    def _failed_to_start(self, work: Work, problem: str) -> None:
        self._close(work)
        self._report(
            work, Ending.FAILED, step=work.step, number=work.restored, code=127, tail=[problem], cannot_start=True
        )

    def _keep_outputs(self, work: Work) -> None:
        """Store the files that a finished program wrote beside its code: they may be its results."""
        private = work.private
        if private is None or work.ending() is not Ending.FINISHED:
            return
        work.keeps_outputs = True

        def keep() -> None:
            problem = keep_outputs(
                self._objects, work.assignment.trial_id, private, self._config.machine, work.step
            )
            self._happened.put(partial(self._kept_outputs, work, problem))

        threading.Thread(target=keep, daemon=True).start()

    def _kept_outputs(self, work: Work, problem: str) -> None:
        work.keeps_outputs = False
        if problem:
            self._outbox.put({"type": "log", "log": f"ebbtide: {problem}", "trial": work.assignment.trial_id})

    def _read_output(self, work: Work, line: Mapping[str, Any] | str | None) -> None:
        if work.over:
            return
        if line is None:
            work.output_read = True
            self._exited(work)
            self._keep_outputs(work)
        elif isinstance(line, str):
            work.tail = [*work.tail, line][-_TAIL_LINES:]
            self._outbox.put({"type": "log", "log": line, "trial": work.assignment.trial_id}, urgent=False)
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
        step = line.get("step", line.get("started"))
        if isinstance(step, int):
            work.step = max(work.step, step)
            report: dict[str, Any] = {"step": work.step, "told_s": time.time()}
            metric = line.get(work.assignment.metric)
            if isinstance(metric, int | float):
                report |= {"at": step, "metric": float(metric)}
            self._report(work, "step", urgent=False, **report)
        if isinstance(line.get("step_s"), int | float):
            self._times.stepped(float(line["step_s"]))
        if isinstance(line.get("saved"), int):
            work.written = int(line["saved"])
            work.step = max(work.step, work.written)
            if "save_s" in line:
                self._times.saved(float(line["save_s"]))
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
            self._report(work, "fields", urgent=False, names=sorted(new)[:_MOST_FIELDS])

    def _exited(self, work: Work) -> None:
        if work.has_api or work.uploads is None or work.superseded or not any(work.folder.iterdir()):
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
        self._report(work, "saved", step=found.step, number=stored.number, size_bytes=stored.size_bytes)

    # What is checked at every tick.

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._alive_s > self._config.controller_limit_s and self._code is None:
            _LOGGER.warning("no heartbeat of the controller for %g s: this machine ends", now_s - self._alive_s)
            self._outbox.put({"type": "stranded"})
            self._end(ENDS_MACHINE)
        work = self._work
        if work is None:
            return
        if work.is_running:
            self._save_in_time(work, now_s)
        elif (work.process is not None or work.asked_to_leave_s is not None) and self._is_quiet(work, now_s):
            self._conclude(work)

    def _save_in_time(self, work: Work, now_s: float) -> None:
        # A program that does not say when it has saved gets as much time again.
        leaving_s = self._times.needed_s * (1.0 if work.mirror is None else 2.0)
        if now_s >= self._taken_at_s - leaving_s:
            work.ask_to_leave()
        if work.asked_to_leave_s is not None:
            patience_s = _PATIENCE * self._times.needed_s
            if work.mirror is not None and now_s >= self._taken_at_s - self._times.needed_s and work.process:
                # There is only time left to store what it has written by now.
                work.process.kill()
            if math.isinf(self._taken_at_s) and now_s > work.asked_to_leave_s + patience_s and work.process:
                _LOGGER.warning("trial %s does not leave; it is killed", work.assignment.trial_id)
                work.process.kill()
        elif now_s - work.saved_s >= self._times.interval_s(work.assignment.mttr_s):
            work.ask_to_save()

    def _is_quiet(self, work: Work, now_s: float) -> bool:
        """Whether nothing is under way: all output is read, and no upload runs."""
        if work.process is not None and not work.output_read:
            if work.exited_s is None:
                work.exited_s = now_s
            elif now_s - work.exited_s > _LAST_OUTPUT_S:
                # A process that it started still runs, and holds its output open.
                work.process.kill()
            return False
        if work.keeps_outputs:
            return False
        return self._happened.empty() and (work.uploads is None or not work.uploads.is_busy)

    def _conclude(self, work: Work) -> None:
        ending = work.ending()
        self._close(work)
        code = work.process.exit_code if work.process is not None else None
        step = work.stored if ending is Ending.LEFT else work.step
        # A shell exits so when there is no such program, or none that may be executed.
        never_ran = ending is Ending.FAILED and code in _NOT_STARTED and not work.fields and not work.has_api
        self._report(
            work,
            ending,
            step=step,
            came=work.step - work.began,
            number=work.restored,
            code=code,
            tail=work.tail,
            cannot_start=never_ran and work.step == work.began,
        )
        if self._next is not None and self._code is None:
            self._begin()

    def _close(self, work: Work) -> None:
        work.over = True
        if work.mirror is not None:
            work.mirror.close()
        if work.uploads is not None:
            work.uploads.close()
        if work is self._work:
            self._work = None
        shutil.rmtree(work.folder.parent, ignore_errors=True)

    def _report(self, work: Work, what: str, *, urgent: bool = True, **details: Any) -> None:
        about = {"trial": work.assignment.trial_id, "attempt": work.assignment.attempt}
        self._outbox.put({"type": str(what), **about, **details}, urgent=urgent)


def _is_busy(work: Work) -> bool:
    return work.uploads is not None and work.uploads.is_busy


def _in_force(orders: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The orders that an agent has to obey when it starts, of all that the machine ever received: the last order
    to train, unless that training is over, and every order after it."""
    last = max((place for place, order in enumerate(orders) if order["type"] == "train"), default=None)
    if last is None:
        return orders
    attempt, rest = orders[last]["assignment"]["attempt"], orders[last + 1 :]
    over = any(order["type"] == "leave" and order.get("attempt") in (None, attempt) for order in rest)
    return rest if over else [orders[last], *rest]
