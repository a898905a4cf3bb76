"""The agent's loop: events from other threads go to one queue, and are handled one after the other."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ebbtide.live.agent.config import AgentConfig, Assignment
from ebbtide.live.agent.heartbeats import Heartbeats
from ebbtide.live.agent.machine import Machine, ThisMachine
from ebbtide.live.agent.messages import MessageLog, Outbox, Unreadable
from ebbtide.live.agent.metadata import Notice
from ebbtide.live.agent.protocol import (
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
    Noticed,
    Order,
    Rebalance,
    Repeat,
    Save,
    Stranded,
    Train,
    Up,
)
from ebbtide.live.agent.tasks import TaskRunner
from ebbtide.live.agent.training import Loop, Training
from ebbtide.live.agent.work import SavingTimes

_LOGGER = logging.getLogger(__name__)

# Exit codes of the agent: the machine stays rented, or is to be ended.
STAYS, ENDS_MACHINE = 0, 42


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
        self._training: Training | None = None
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
                if self._training is None:
                    raise
                # What this training does would end every agent that takes it: it is the training that fails.
                _LOGGER.exception("trial %s cannot be continued", self._training.assignment.trial_id)
                self._training.fail(f"the agent cannot go on with it: {type(error).__name__}: {error}")
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
        return self._training is not None or self._tasks is not None

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
        training = self._training
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
            case Save() if training is not None:
                training.ask_to_save()
            case Keep(attempt, number):
                if training is not None and attempt == training.assignment.attempt:
                    training.keep(number)
            case Leave(attempt, trial, alone):
                if self._next is not None and attempt == self._next.attempt:
                    self._next = None
                if training is not None and attempt == training.assignment.attempt:
                    training.leave(alone=alone)
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
        if self._training is not None:
            self._training.leave()
        if self._tasks is not None:
            self._tasks.leave(self._runtime.monotonic_s())

    def _noticed(self, notice: Notice) -> None:
        before, self._notice = self._notice, notice
        if notice.rebalance and not before.rebalance:
            # A revocation has become more likely: the policy decides what to do about it.
            self._outbox.put(Rebalance())
        if notice.taken_at_s is not None and before.taken_at_s is None:
            left_s = notice.taken_at_s - self._runtime.epoch_s()
            self._taken_at_s = self._runtime.monotonic_s() + left_s
            self._outbox.put(Noticed(notice.taken_at_s))
            if self._training is not None:
                self._training.noticed()

    def _begin(self) -> None:
        """Start the next assignment: restore its newest checkpoint, and train."""
        assert self._next is not None
        assignment, self._next = self._next, None
        if assignment.side_by_side:
            self._tasks = TaskRunner(
                assignment,
                self._folder / f"{assignment.trial_id}-{assignment.attempt}",
                self._folder / "code",
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
        loop = Loop(
            put=lambda _, happened: self._put(happened),
            tell=lambda report, urgent: self._outbox.put(report, urgent=urgent),
            over=self._over,
            is_waiting=lambda _: bool(self._happened),
        )
        self._training = Training(assignment, self._config, self._machine, self._times, loop)

    # What is checked at every tick.

    def _tick(self) -> None:
        now_s = self._runtime.monotonic_s()
        if now_s - self._alive_s > self._config.controller_limit_s and self._code is None:
            _LOGGER.warning("no heartbeat of the controller for %g s: this machine ends", now_s - self._alive_s)
            self._outbox.put(Stranded())
            self._end(ENDS_MACHINE)
            # A machine that nobody knows of any more must not wait for ever for storage that may be gone.
            self._gives_up_s = now_s + self._config.controller_limit_s
        training, tasks = self._training, self._tasks
        if tasks is not None:
            self._machine.reap(tasks.programs)
            tasks.tick(now_s, self._taken_at_s)
            if now_s >= self._gives_up_s or tasks.has_left:
                self._conclude_tasks(tasks)
            return
        program = None if training is None else training.program
        self._machine.reap([] if program is None else [program])
        if training is not None:
            training.tick(now_s, self._taken_at_s, self._gives_up_s)

    def _over(self, training: Training, ended: Ended) -> None:
        """A training is over on this machine: what waited for that begins."""
        if training is self._training:
            self._training = None
        self._tell_end(ended)
        if self._next is not None and self._code is None:
            self._begin()

    def _conclude_tasks(self, tasks: TaskRunner) -> None:
        self._tasks = None
        tasks.close()
        assignment = tasks.assignment
        self._tell_end(Ended(assignment.trial_id, assignment.attempt, Ending.LEFT, tasks.done))
        if self._next is not None and self._code is None:
            self._begin()

    def _tell_end(self, ended: Ended) -> None:
        self._endings[ended.trial] = ended
        self._outbox.put(ended)


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
