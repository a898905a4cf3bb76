"""Agents of machines on a tape: they take orders and report as real ones do, and count their training.

How a training goes on one machine is `SimulatedTraining`, as in a replay; everything between it and the engine is
the live path. A program reports its progress, as it does live, in whole steps: at each hundredth of its steps, at
each of its validations, and just before its controller looks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.agent.config import Assignment
from ebbtide.live.agent.messages import MessageLog, Unreadable
from ebbtide.live.agent.protocol import (
    Ended,
    Ending,
    Envelope,
    Leave,
    Message,
    Noticed,
    Restored,
    Save,
    Saved,
    Stepped,
    Train,
    Up,
)
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event, Wake
from ebbtide.simulation.replay import SAVE_MARGIN_S
from ebbtide.simulation.simulated_training import SimulatedTraining

# Reports of a training, evenly over its steps; and the share of them after which a new attempt first reports, so
# that its speed can be measured from there.
_REPORTS = 100
_FIRST_REPORT = 10**7


@dataclass
class TapeTrial:
    """What is to be trained, and what is stored of it.

    Attributes:
        progress: The job and how far it is, by what its agents did and saved.
        catalogue: Instance types, for the speed of a training.
        curve: Its metric as it trains; None: it reports none.
    """

    progress: JobProgress
    catalogue: Catalogue
    curve: Curve | None = None

    @cached_property
    def training(self) -> SimulatedTraining:
        """Its training, on whatever machine it is."""
        job = self.progress.job
        return SimulatedTraining(
            self.progress,
            lambda lease: job.steps_per_s(lease.market.cloud, lease.market.instance_type, self.catalogue),
            lambda lease: self.catalogue.instance_type(lease.market.cloud, lease.market.instance_type).vcpus,
            SAVE_MARGIN_S,
        )

    @cached_property
    def reports_at(self) -> list[int]:
        """Steps at which its program reports, in order."""
        steps = self.progress.job.steps
        evenly = {max(steps * number // _REPORTS, 1) for number in range(1, _REPORTS + 1)}
        return sorted(evenly | set(self._metrics))

    def metric_at(self, step: int) -> float:
        """Its metric at a step; NaN: it was not measured there."""
        return self._metrics.get(step, math.nan)

    @cached_property
    def _metrics(self) -> dict[int, float]:
        if self.curve is None:
            return {}
        pairs = zip(self.curve.steps.tolist(), self.curve.metric.tolist(), strict=True)
        return {int(step): metric for step, metric in pairs}


@dataclass
class TapeAgent:
    """The agent of one machine.

    Attributes:
        lease: The machine.
        orders: Log of its orders.
        reports: Log of its reports.
        trials: What may be trained, by trial id.
    """

    lease: Lease
    orders: MessageLog
    reports: MessageLog
    trials: dict[str, TapeTrial]
    _training: SimulatedTraining | None = None
    _assignment: Assignment | None = None
    _next: Assignment | None = None
    _leaving: bool = False
    _attempts: set[tuple[str, int]] = field(default_factory=set)
    _told: int = 0
    _count: int = 0

    @property
    def next_time_s(self) -> float:
        """When something happens next in its training; infinity: nothing does."""
        return self._training.next_time_s() if self._training is not None else math.inf

    def boot(self) -> None:
        """The machine is up."""
        self._report(Up())

    def noticed(self, now_s: float) -> None:
        """The machine will be revoked."""
        self._report(Noticed(self.lease.revoke_at_s))
        if self._training is not None:
            self._follow(lambda training: training.lease_noticed(self.lease, now_s), now_s)

    def gone(self, now_s: float) -> None:
        """The machine has ended, and with it what was not saved."""
        if self._training is not None:
            self._training.lease_lost(self.lease, now_s)

    def obey(self, now_s: float) -> bool:
        """Take the orders that have come; returns whether there were any."""
        orders = list(self.orders.new())
        for found in orders:
            if isinstance(found, Unreadable):
                raise InputError(f"{found.key}: {found.why}")
            match found.message:
                case Train(assignment):
                    self._train(assignment, now_s)
                case Save() if self._training is not None:
                    self._follow(lambda training: training.save(now_s), now_s)
                case Leave(attempt) if self._training is not None and attempt == self._about[1]:
                    self._leave(now_s)
        return bool(orders)

    def advance(self, now_s: float) -> bool:
        """Do what is due; returns whether anything was reported."""
        before = self._count
        self._follow(lambda training: training.advance(now_s), now_s)
        return self._count > before

    def tell_progress(self, now_s: float) -> None:
        """Do what is due, and report the steps done by now, if there are more than before."""
        self._follow(lambda training: training.advance(now_s), now_s)
        if self._training is not None:
            self._step(math.floor(self._training.progress.steps_done), now_s)

    def _train(self, assignment: Assignment, now_s: float) -> None:
        about = (assignment.trial_id, assignment.attempt)
        # A controller that has not heard for a while repeats its order.
        if about in self._attempts:
            return
        self._attempts.add(about)
        self._next = assignment
        if self._training is None:
            self._begin(now_s)
        else:
            self._leave(now_s)

    def _begin(self, now_s: float) -> None:
        assert self._next is not None
        self._assignment, self._next, self._leaving = self._next, None, False
        progress = self._trial.progress
        job = progress.job
        self._training = self._trial.training
        self._told = int(progress.steps_saved)
        self._report(Restored(*self._about, self._told, self._told))
        self._follow(lambda training: training.assign([self.lease], now_s), now_s)
        self._report_at(self._told + max(job.steps // _FIRST_REPORT, 1), now_s)

    def _leave(self, now_s: float) -> None:
        self._leaving = True
        self._follow(lambda training: training.assign([], now_s), now_s)

    def _follow(self, act: Callable[[SimulatedTraining], Sequence[Event]], now_s: float) -> None:
        """Do something with the training, and report what came of it."""
        training = self._training
        if training is None:
            return
        for event in act(training):
            step = int(training.progress.steps_saved)
            match event.wake:
                case Wake.MILESTONE:
                    reached = int(event.detail.removeprefix("step "))
                    self._step(reached, now_s)
                    points = self._trial.reports_at
                    place = bisect_right(points, reached)
                    if place < len(points):
                        self._report_at(points[place], now_s)
                case Wake.SAVED:
                    self._report(Saved(*self._about, step, step))
                case Wake.FINISHED:
                    self._ended(Ending.FINISHED)
                    return
        if self._training is training and not training.is_on(self.lease) and self._was_left(training):
            self._ended(Ending.LEFT)
            if self._next is not None:
                self._begin(now_s)

    def _report_at(self, step: int, now_s: float) -> None:
        self._follow(lambda training: training.wake_at_step(step, now_s), now_s)

    def _step(self, step: int, now_s: float) -> None:
        if step > self._told:
            self._told = step
            self._report(Stepped(*self._about, step, now_s, step, self._trial.metric_at(step)))

    def _ended(self, how: Ending) -> None:
        self._report(Ended(*self._about, how, int(self._trial.progress.steps_saved)))
        self._training = None

    def _was_left(self, training: SimulatedTraining) -> bool:
        return self._leaving or self.lease.state is LeaseState.NOTICED or not training.concerns(self.lease)

    @property
    def _trial(self) -> TapeTrial:
        return self.trials[self._about[0]]

    @property
    def _about(self) -> tuple[str, int]:
        assert self._assignment is not None
        return self._assignment.trial_id, self._assignment.attempt

    def _report(self, message: Message) -> None:
        self._count += 1
        self.reports.read += 1
        self.reports.write(self.reports.read, [Envelope("tape", self._count, 0, message)])
