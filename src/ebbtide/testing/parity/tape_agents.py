"""Agents of machines on a tape: they take orders and report as real ones do, and their jobs count the work.

How the work of a job goes, on one machine or on several, is what a `TapeWork` knows, by the same rules as in a
replay; everything between it and the engine is the live path.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from ebbtide.errors import InputError
from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.messages import MessageLog, Unreadable
from ebbtide.live.agent.protocol import (
    Ended,
    Ending,
    Envelope,
    Hand,
    Keep,
    Leave,
    Message,
    Noticed,
    Save,
    Train,
    Up,
)
from ebbtide.market.leases import Lease


class TapeWork(ABC):
    """What the agents of one job do, on all of its machines.

    An agent is in it from `begin` until it is told to `end`, or its machine is gone. Times are seconds since 1970.
    """

    @property
    @abstractmethod
    def next_time_s(self) -> float:
        """When something happens next of itself; infinity: nothing does."""

    @abstractmethod
    def begin(self, agent: TapeAgent, now_s: float) -> None:
        """An agent begins its assignment."""

    @abstractmethod
    def leave(self, agent: TapeAgent, now_s: float) -> None:
        """An agent was ordered to leave its assignment."""

    @abstractmethod
    def noticed(self, agent: TapeAgent, now_s: float) -> None:
        """An agent's machine will be revoked."""

    @abstractmethod
    def gone(self, agent: TapeAgent, now_s: float) -> None:
        """An agent's machine has ended, and with it what was not saved."""

    @abstractmethod
    def advance(self, now_s: float) -> None:
        """Do what is due."""

    @abstractmethod
    def tell_progress(self, now_s: float) -> None:
        """Do what is due, and report how far it is by now, if that is further than before."""

    @abstractmethod
    def obey(self, agent: TapeAgent, order: Save | Keep | Hand, now_s: float) -> None:
        """An agent was given another order about its assignment.

        Raises:
            InputError: It is none for a job of this kind.
        """


@dataclass(eq=False)
class TapeAgent:
    """The agent of one machine.

    Attributes:
        lease: The machine.
        orders: Log of its orders.
        reports: Log of its reports.
        work_of: Gives what is to be done for the id of a trial.
        assignment: What it has now; None: nothing.
        count: How many reports it has written.
    """

    lease: Lease
    orders: MessageLog
    reports: MessageLog
    work_of: Callable[[str], TapeWork]
    assignment: Assignment | None = None
    count: int = 0
    _next: Assignment | None = None
    _attempts: dict[str, int] = field(default_factory=dict)

    def boot(self) -> None:
        """The machine is up."""
        self.report(Up())

    def noticed(self, now_s: float) -> None:
        """The machine will be revoked."""
        self.report(Noticed(self.lease.revoke_at_s))
        if self.assignment is not None:
            self._work.noticed(self, now_s)

    def gone(self, now_s: float) -> None:
        """The machine has ended."""
        if self.assignment is not None:
            self._work.gone(self, now_s)
            self.assignment = None

    def obey(self, now_s: float) -> bool:
        """Take the orders that have come; returns whether there were any."""
        orders = list(self.orders.new())
        for found in orders:
            if isinstance(found, Unreadable):
                raise InputError(f"{found.key}: {found.why}")
            self._obey(found.message, now_s)
        return bool(orders)

    def report(self, message: Message) -> None:
        """Write a report."""
        self.count += 1
        self.reports.read += 1
        self.reports.write(self.reports.read, [Envelope("tape", self.count, 0, message)])

    def end(self, how: Ending, step: int, now_s: float, stored: int = 0) -> None:
        """Report how the assignment has ended, and begin the next one if there is one.

        Args:
            how: How it has ended.
            step: The step that it has reached.
            now_s: The present moment, seconds since 1970.
            stored: Number of the newest checkpoint that it has stored; 0: none.
        """
        assert self.assignment is not None
        self.report(Ended(self.assignment.trial_id, self.assignment.attempt, how, step, stored=stored))
        self.assignment = None
        self._begin(now_s)

    @property
    def about(self) -> tuple[str, int]:
        """Id of the trial and number of the assignment, as reports begin."""
        assert self.assignment is not None
        return self.assignment.trial_id, self.assignment.attempt

    @property
    def _work(self) -> TapeWork:
        return self.work_of(self.about[0])

    def _obey(self, order: Message | None, now_s: float) -> None:
        attempt = -1 if self.assignment is None else self.assignment.attempt
        match order:
            case Train(assignment):
                self._train(assignment, now_s)
            case Save() if self.assignment is not None:
                self._work.obey(self, order, now_s)
            case Keep() | Hand() if order.attempt == attempt:
                self._work.obey(self, order, now_s)
            case Leave():
                self._leave(order, now_s)

    def _train(self, assignment: Assignment, now_s: float) -> None:
        # A controller that has not heard for a while repeats its order.
        if assignment.attempt <= self._attempts.get(assignment.trial_id, 0):
            return
        self._attempts[assignment.trial_id] = assignment.attempt
        self._next = assignment
        if self.assignment is None:
            self._begin(now_s)
        else:
            self._work.leave(self, now_s)

    def _leave(self, order: Leave, now_s: float) -> None:
        following = self._next
        if following is not None and (following.trial_id, following.attempt) == (order.trial, order.attempt):
            self._next = None
            self.report(Ended(order.trial, order.attempt, Ending.LEFT, 0))
        elif self.assignment is not None and self.about[1] == order.attempt:
            self._work.leave(self, now_s)

    def _begin(self, now_s: float) -> None:
        if self._next is not None:
            self.assignment, self._next = self._next, None
            self._work.begin(self, now_s)


def next_time_s(works: list[TapeWork]) -> float:
    """When something happens next in any of them; infinity: nothing does."""
    return min((work.next_time_s for work in works), default=math.inf)
