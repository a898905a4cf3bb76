"""Agents of machines on a tape: they take orders and report as real agents do, with simulated work.

A `TapeWork` simulates the work of a job, on one or several machines, by the same rules as a replay; everything
between it and the engine is the live path.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from ebbtide.agent.config import Assignment
from ebbtide.agent.messages import MessageLog, Unreadable
from ebbtide.agent.protocol import (
    Ended,
    Ending,
    Envelope,
    Hand,
    Keep,
    Leave,
    Message,
    Noticed,
    SaveOrder,
    Train,
    Up,
)
from ebbtide.errors import InputError
from ebbtide.market.leases import Lease

# Tolerance of shares, which are sums of fractions such as 0.1.
_ROUNDING = 1e-9


class TapeWork(ABC):
    """The work of one job's agents, on all of its machines.

    An agent takes part in it, with a seat for each assignment, from `begin` until the seat's `end`, or until its
    machine is gone. Times are seconds since 1970.
    """

    @property
    @abstractmethod
    def next_time_s(self) -> float:
        """Time of the next event that needs no order; infinity: there is none."""

    @abstractmethod
    def begin(self, agent: TapeSeat, now_s: float) -> None:
        """Begin an agent's assignment."""

    @abstractmethod
    def leave(self, agent: TapeSeat, now_s: float) -> None:
        """Handle the order that an agent leaves its assignment."""

    @abstractmethod
    def noticed(self, agent: TapeSeat, now_s: float) -> None:
        """Handle the revocation notice of an agent's machine."""

    @abstractmethod
    def gone(self, agent: TapeSeat, now_s: float) -> None:
        """Handle the end of an agent's machine, which loses unsaved work."""

    @abstractmethod
    def advance(self, now_s: float) -> None:
        """Handle events that are due."""

    @abstractmethod
    def tell_progress(self, now_s: float) -> None:
        """Handle events that are due, and report progress if there is any."""

    @abstractmethod
    def obey(self, agent: TapeSeat, order: SaveOrder | Keep | Hand, now_s: float) -> None:
        """Handle another order about an agent's assignment.

        Raises:
            InputError: A job of this kind does not take the order.
        """


@dataclass(eq=False)
class TapeSeat:
    """An assignment that an agent has begun.

    Attributes:
        machine: The agent that has begun it.
        assignment: The assignment as it was ordered.
    """

    machine: TapeAgent
    assignment: Assignment

    @property
    def lease(self) -> Lease:
        """The lease of its machine."""
        return self.machine.lease

    @property
    def about(self) -> tuple[str, int]:
        """Id of the trial and number of the assignment, the first fields of reports."""
        return self.assignment.trial_id, self.assignment.attempt

    def report(self, message: Message) -> None:
        """Write a report."""
        self.machine.report(message)

    def end(self, how: Ending, step: int, now_s: float, stored: int = 0) -> None:
        """Report the end of the assignment, and begin assignments that wait for its room.

        Args:
            how: Kind of the ending.
            step: The step that it has reached.
            now_s: The current time, seconds since 1970.
            stored: Number of the newest checkpoint that it has stored; 0: none.
        """
        self.report(Ended(*self.about, how, step, stored=stored))
        self.machine.ended(self, now_s)


@dataclass(eq=False)
class TapeAgent:
    """The agent of one machine.

    Attributes:
        lease: Lease of the machine.
        orders: Log of its orders.
        reports: Log of its reports.
        work_of: Returns the work of a trial by its id.
        seats: Its current assignments, by id of the trial.
        count: Number of reports that it has written.
    """

    lease: Lease
    orders: MessageLog
    reports: MessageLog
    work_of: Callable[[str], TapeWork]
    seats: dict[str, TapeSeat] = field(default_factory=dict)
    count: int = 0
    _waiting: list[Assignment] = field(default_factory=list)
    _attempts: dict[str, int] = field(default_factory=dict)

    def boot(self) -> None:
        """Report that the machine is up."""
        self.report(Up())

    def noticed(self, now_s: float) -> None:
        """Report and handle the revocation notice."""
        self.report(Noticed(self.lease.revoke_at_s))
        for seat in list(self.seats.values()):
            self._work(seat).noticed(seat, now_s)

    def gone(self, now_s: float) -> None:
        """Handle the end of the machine."""
        seats, self.seats, self._waiting = self.seats, {}, []
        for seat in seats.values():
            self._work(seat).gone(seat, now_s)

    def obey(self, now_s: float) -> bool:
        """Carry out new orders; returns whether there were any."""
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

    def ended(self, seat: TapeSeat, now_s: float) -> None:
        """Remove an assignment that has ended, and begin those that wait for its room."""
        self.seats = {name: other for name, other in self.seats.items() if other is not seat}
        self._begin_what_fits(now_s)

    def _work(self, seat: TapeSeat) -> TapeWork:
        return self.work_of(seat.assignment.trial_id)

    def _obey(self, order: Message | None, now_s: float) -> None:
        match order:
            case Train():
                self._train(order, now_s)
            case SaveOrder():
                for seat in [seat for name, seat in self.seats.items() if name == order.trial]:
                    self._work(seat).obey(seat, order, now_s)
            case Keep() | Hand():
                for seat in [seat for seat in self.seats.values() if seat.assignment.attempt == order.attempt]:
                    self._work(seat).obey(seat, order, now_s)
            case Leave():
                self._leave(order, now_s)

    def _train(self, order: Train, now_s: float) -> None:
        # A controller repeats its order if it gets no report for a while.
        assignment = order.assignment
        if assignment.attempt <= self._attempts.get(assignment.trial_id, 0):
            return
        self._attempts[assignment.trial_id] = assignment.attempt
        self._waiting = [*(other for other in self._waiting if other.trial_id in order.beside), assignment]
        for name, seat in list(self.seats.items()):
            if name not in order.beside:
                self._work(seat).leave(seat, now_s)
        self._begin_what_fits(now_s)

    def _leave(self, order: Leave, now_s: float) -> None:
        about = order.trial, order.attempt
        if any((other.trial_id, other.attempt) == about for other in self._waiting):
            self._waiting = [other for other in self._waiting if (other.trial_id, other.attempt) != about]
            self.report(Ended(*about, Ending.LEFT, 0))
        seat = self.seats.get(order.trial)
        if seat is not None and seat.about == about:
            self._work(seat).leave(seat, now_s)

    def _begin_what_fits(self, now_s: float) -> None:
        waiting, self._waiting = self._waiting, []
        for assignment in waiting:
            used = math.fsum(seat.assignment.share for seat in self.seats.values())
            if used + assignment.share <= 1.0 + _ROUNDING and assignment.trial_id not in self.seats:
                seat = self.seats[assignment.trial_id] = TapeSeat(self, assignment)
                self._work(seat).begin(seat, now_s)
            else:
                self._waiting.append(assignment)


def next_time_s(works: list[TapeWork]) -> float:
    """Return the time of the next event of any of these jobs; infinity: there is none."""
    return min((work.next_time_s for work in works), default=math.inf)
