"""The agent's loop: events from other threads go to one queue, and are handled one after the other."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from ebbtide.agent.config import AgentConfig
from ebbtide.agent.heartbeats import HeartbeatReader
from ebbtide.agent.machine import RentedMachine, ThisMachine
from ebbtide.agent.messages import MessageLog, Unreadable
from ebbtide.agent.metadata import MachineNotice
from ebbtide.agent.outbox import Outbox
from ebbtide.agent.protocol import (
    ORDERS,
    REPORTS,
    Channel,
    Down,
    End,
    Hand,
    Keep,
    Leave,
    Noticed,
    Order,
    Rebalance,
    Repeat,
    SaveOrder,
    Stranded,
    Train,
    Up,
)
from ebbtide.agent.secret_values import opened
from ebbtide.agent.trainings import Trainings, is_about

_LOGGER = logging.getLogger(__name__)

# Exit codes of the agent: the machine stays rented, or is to be ended.
STAYS, ENDS_MACHINE = 0, 42
# The agent reports at least this often that it runs.
_REPORTS_EVERY_S = 300.0
# A machine may be revoked this long after the announced time.
_LATE_S = 5.0


class Agent:
    """The agent of one machine.

    Args:
        config: The configuration that the machine was started with.
        machine: The machine; by default the one that this process runs on.
    """

    def __init__(self, config: AgentConfig, machine: RentedMachine | None = None) -> None:
        self._config = config
        self._machine = machine or ThisMachine(config)
        self._runtime, self._objects = self._machine.runtime, self._machine.objects
        self._folder = Path(config.folder).resolve()
        key = self._key = bytes.fromhex(config.key)
        self._orders = MessageLog(self._objects, Channel(config.machine, ORDERS, key))
        self._heartbeats = HeartbeatReader(
            self._objects, config.run, config.machine, key, config.controller_limit_s
        )
        reports = MessageLog(self._objects, Channel(config.machine, REPORTS, key))
        self._outbox = Outbox(reports, config.report_s, self._runtime)
        self._happened: deque[Callable[[], None]] = deque()
        self._woken = self._runtime.flag()
        self._trainings = Trainings(
            config, self._machine, self._put, lambda report, urgent: self._outbox.put(report, urgent=urgent)
        )
        self._epoch = 0
        self._beat = 0
        self._taken_at_s = math.inf
        self._notice = MachineNotice()
        self._alive_s = self._runtime.monotonic_s()
        self._code: int | None = None
        self._gives_up_s = math.inf
        self._closing = self._runtime.flag()
        self._reported_s = -math.inf

    @property
    def stranded_since_s(self) -> float:
        """Monotonic time at which the agent gave up waiting for a heartbeat; infinity: it has not."""
        return self._gives_up_s - self._config.controller_limit_s

    def run(self) -> int:
        """Run until ordered to end; returns the exit code."""
        self._machine.begin(self._folder, lambda: self._put(lambda: self._end(STAYS)))
        self._report_up(self._runtime.monotonic_s())
        for watch, every_s in (
            (self._watch_orders, self._config.poll_s),
            (self._watch_metadata, self._config.notice_poll_s),
            (self._watch_controller, self._heartbeats.every_s),
            (self._machine.remember, self._machine.remembers_every_s),
        ):
            self._runtime.begin(partial(self._repeat, watch, every_s))
        while self._code is None or self._trainings.is_busy:
            if not self._happened:
                self._woken.wait(self._config.tick_s)
                self._woken.clear()
            if self._happened:
                self._happened.popleft()()
            self._tick()
        self._closing.set()
        self._outbox.put(Down())
        self._outbox.close()
        return self._code

    def _put(self, happened: Callable[[], None]) -> None:
        """Queue an event for the loop; called from any thread."""
        self._happened.append(happened)
        self._woken.set()

    # Watches, each in its own thread.

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
        """Yield new orders of the newest controller; orders of a controller that was replaced are ignored."""
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
        newest = self._heartbeats.look()
        if newest != self._beat:
            self._beat, self._alive_s = newest, self._runtime.monotonic_s()

    # Handlers of events.

    def _ordered(self, order: Order) -> None:
        match order:
            case Train() if self._code is None:
                self._trainings.train(replace(order, assignment=opened(order.assignment, self._key)))
            case Hand():
                self._trainings.hand(order)
            case SaveOrder():
                self._trainings.save(order)
            case Keep():
                self._trainings.keep(order)
            case Leave():
                self._trainings.leave(order)
            case End():
                self._end(ENDS_MACHINE)
            case Repeat():
                self._trainings.repeat()

    def _end(self, code: int) -> None:
        self._code = code
        self._trainings.close()

    def _noticed(self, notice: MachineNotice) -> None:
        before, self._notice = self._notice, notice
        if notice.rebalance and not before.rebalance:
            # A revocation has become more likely: the policy decides what to do about it.
            self._outbox.put(Rebalance())
        if notice.taken_at_s is not None and before.taken_at_s is None:
            self._taken_at_s = self._runtime.monotonic_s() + self._left_s(notice.taken_at_s)
            self._outbox.put(Noticed(notice.taken_at_s))
            self._trainings.noticed()

    def _left_s(self, taken_at_s: float) -> float:
        """Seconds until the machine is taken, as far as its clock can be believed.

        The result is at most the longest notice. A machine that still runs well after the announced time has a
        wrong clock, so the usual notice is assumed.
        """
        left_s = taken_at_s - self._runtime.epoch_s()
        if left_s < -_LATE_S:
            return self._config.notice_s
        return min(left_s, self._config.longest_notice_s)

    # What is checked at every tick.

    def _report_up(self, now_s: float) -> None:
        """Report that the agent runs: a program may be silent for hours, and a machine that hangs is paid for."""
        self._reported_s = now_s
        self._outbox.put(Up(_REPORTS_EVERY_S))

    def _tick(self) -> None:
        now_s = self._runtime.monotonic_s()
        if now_s - self._reported_s >= _REPORTS_EVERY_S:
            self._report_up(now_s)
        if now_s - self._alive_s > self._config.controller_limit_s and self._code is None:
            _LOGGER.warning("no heartbeat of the controller for %g s: this machine ends", now_s - self._alive_s)
            self._outbox.put(Stranded())
            self._end(ENDS_MACHINE)
            # Do not wait forever for storage: it may be gone, and no controller knows of this machine any more.
            self._gives_up_s = now_s + self._config.controller_limit_s
        self._trainings.tick(now_s, self._taken_at_s, self._gives_up_s)


def _in_force(orders: list[Order]) -> list[Order]:
    """Reduce all orders that the machine ever received to those that a starting agent must obey.

    An order to leave stays until the end of its assignment is known to have been reported."""
    found: list[Order] = []
    for order in orders:
        if isinstance(order, Train):
            found = [each for each in (_beside(before, order) for before in found) if each is not None]
        elif isinstance(order, Leave):
            found = [each for each in found if not _is_over(each, order)]
        found.append(order)
    return found


def _beside(before: Order, new: Train) -> Order | None:
    """Reduce an earlier order to what still applies after an order to train; None: nothing does."""
    if isinstance(before, Train):
        trial_id, attempt = before.assignment.trial_id, before.assignment.attempt
        return before if trial_id in new.beside else Leave(attempt, trial_id)
    return before if isinstance(before, Leave) and before.trial and not before.reported else None


def _is_over(before: Order, left: Leave) -> bool:
    """Return whether a later order to leave settles an earlier order: nothing is left to do or report."""
    if isinstance(before, Train):
        return is_about(left, before.assignment)
    return (
        left.reported
        and isinstance(before, Leave)
        and (before.trial, before.attempt) == (left.trial, left.attempt)
    )
