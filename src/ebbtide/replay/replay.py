"""The replay provider: a replayed market, simulated training, and a clock that skips to what is next."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush

import numpy as np

from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.policies.api.events import Event, Wake
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.simulated_tasks import SimulatedTasks
from ebbtide.replay.simulated_training import SimulatedTraining

# How a job is done: as an array, or in any other way.
_Simulated = SimulatedTasks | SimulatedTraining

# The last save before a revocation is planned to be complete this long before it.
SAVE_MARGIN_S = 5.0


class ReplayProvider:
    """Runs jobs on a replayed market in simulated time.

    Args:
        market: What to rent from.
        catalogue: For rates by core.
        save_margin_s: How long before a revocation the last save is to be complete.
        curves: Of each job, what its metric will be as it trains, if that is known.
        speed_of: Speed of a lease's machines over that of their type; None: all of a type are alike.
    """

    def __init__(
        self,
        market: ReplayedMarket,
        *,
        catalogue: Catalogue | None = None,
        save_margin_s: float = SAVE_MARGIN_S,
        curves: Sequence[Curve | None] = (),
        speed_of: Callable[[Lease], float] | None = None,
    ) -> None:
        self._market = market
        self._catalogue = catalogue or default_catalogue()
        self._save_margin_s = save_margin_s
        self._curves = tuple(curves)
        self._speed_of = speed_of
        self._training: list[_Simulated] = []
        self._calendar: list[tuple[float, int, int, int]] = []
        self._rates: dict[tuple[int, str, str, str], float] = {}
        self._speeds: dict[int, float] = {}
        self._entered = 0
        self._moments = 0
        self._out: deque[Event] = deque()
        self._leases: dict[int, Lease] = {}
        # The machines that each job is about to leave, and of how many jobs each machine is.
        self._leaving: dict[int, tuple[int, ...]] = {}
        self._left_by: Counter[int] = Counter()

    @property
    def now_s(self) -> float:
        return self._market.now_s

    @property
    def is_over(self) -> bool:
        return self._market.is_over

    @property
    def moments(self) -> int:
        """Number of events of the market and of training so far."""
        return self._moments + self._market.moments

    @property
    def markets(self) -> Sequence[Market]:
        return self._market.markets

    def prices(self, market: Market) -> PriceSeries:
        return self._market.prices(market)

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        for progress in jobs:
            rate = partial(self.rate_of, progress)
            vcpus = partial(_vcpus, self._catalogue, {})
            training: _Simulated
            if progress.job.cpus_per_task is not None:
                training = SimulatedTasks(progress, rate, vcpus, self._save_margin_s)
            else:
                training = SimulatedTraining(progress, rate, vcpus, self._save_margin_s)
                training.head_comes = self._head_comes
            training.has_no_room = partial(self._has_no_room, progress)
            self._training.append(training)
        if watch_prices:
            self._market.watch_prices()

    def rate_of(self, progress: JobProgress, lease: Lease) -> float:
        """Steps a second of a job on one machine of a lease."""
        market = lease.market
        key = progress.job_id, market.cloud, market.instance_type, market.product
        if key not in self._rates:
            self._rates[key] = progress.job.steps_per_s(market, self._catalogue)
        if self._speed_of is None:
            return self._rates[key]
        if lease.lease_id not in self._speeds:
            self._speeds[lease.lease_id] = self._speed_of(lease)
        return self._rates[key] * self._speeds[lease.lease_id]

    def launch(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        self._market.launch(lease)

    def terminate(self, lease: Lease) -> None:
        self._market.terminate(lease)
        for training in self._concerned(lease):
            self._follow(training, training.lease_lost(lease, self.now_s))

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        self._follow(self._training[job_id], self._training[job_id].assign(leases, self.now_s))

    def in_use(self, lease: Lease) -> bool:
        return any(training.is_on(lease) for training in self._training)

    def save(self, job_id: int) -> None:
        self._follow(self._training[job_id], self._training[job_id].save(self.now_s))

    def stop(self, job_id: int) -> None:
        self._follow(self._training[job_id], self._training[job_id].stop(self.now_s))

    def wake_at_step(self, job_id: int, step: int) -> None:
        self._follow(self._training[job_id], self._training[job_id].wake_at_step(step, self.now_s))

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        curve = self._curves[job_id] if job_id < len(self._curves) else None
        if curve is None:
            return np.empty(0), np.empty(0)
        done = self._training[job_id].progress.steps_done
        seen = int(np.searchsorted(curve.steps, done + 1e-6, side="right"))
        return curve.steps[:seen], curve.metric[:seen]

    def refresh(self) -> None:
        for training in self._training:
            training.refresh(self.now_s)

    def next_event(self, until_s: float) -> Event | None:
        while not self._out:
            training_s = self._calendar[0][0] if self._calendar else math.inf
            next_s = min(training_s, self._market.next_time_s)
            if self.is_over or next_s > until_s:
                if not self.is_over and until_s < math.inf:
                    self._market.now_s = max(self.now_s, until_s)
                return None
            # A save that is done at the very moment of a revocation is done.
            if training_s <= self._market.next_time_s:
                self._train()
            else:
                self._rent()
        return self._out.popleft()

    def close(self) -> None:
        self._calendar.clear()

    def _train(self) -> None:
        """Go to the next change in some job's training."""
        time_s, _, job_id, version = heappop(self._calendar)
        training = self._training[job_id]
        # An entry is stale if the job's plans have changed since.
        if training.version == version:
            self._moments += 1
            self._market.now_s = time_s
            self._follow(training, training.advance(time_s))

    def _rent(self) -> None:
        """Go to the next change in the market, and let the training on the lease concerned know."""
        event = self._market.advance()
        if event is None:
            return
        self._out.append(event)
        if event.lease_id < 0:
            return
        lease = self._leases[event.lease_id]
        for training in self._concerned(lease):
            if event.wake is Wake.NOTICE:
                self._follow(training, training.lease_noticed(lease, self.now_s))
            elif event.wake is Wake.ENDED:
                self._follow(training, training.lease_lost(lease, self.now_s))
            else:
                self._follow(training, training.advance(self.now_s))

    def _head_comes(self) -> bool:
        return any(lease.on_demand and lease.is_open and not lease.is_booted for lease in self._leases.values())

    def _has_no_room(self, job: JobProgress, lease: Lease) -> bool:
        """Return whether a machine that some jobs have yet to leave lacks room for a job."""
        if self._left_by[lease.lease_id] <= 0:
            return False
        others = (each.progress for each in self._training if each.is_on(lease))
        return math.fsum(other.job.share for other in others if other is not job) + job.job.share > 1.0 + 1e-9

    def _concerned(self, lease: Lease) -> list[_Simulated]:
        return [training for training in self._training if training.concerns(lease)]

    def _follow(self, training: _Simulated, events: Iterable[Event]) -> None:
        """Pass on what a job's training tells, and put its next change on the calendar."""
        self._out.extend(events)
        self._note_left(training)
        time_s = training.next_time_s()
        if time_s < math.inf:
            self._entered += 1
            job_id = training.progress.job_id
            heappush(self._calendar, (max(time_s, self.now_s), self._entered, job_id, training.version))

    def _note_left(self, training: _Simulated) -> None:
        """Note which machines a job is about to leave; one that it has left may go to another job."""
        job_id = training.progress.job_id
        before, now = self._leaving.get(job_id, ()), tuple(lease.lease_id for lease in training.leaving)
        if before == now:
            return
        self._leaving[job_id] = now
        self._left_by.update(now)
        self._left_by.subtract(before)
        for lease_id in sorted(set(before) - set(now)):
            for other in self._concerned(self._leases[lease_id]):
                if other is not training:
                    self._follow(other, other.advance(self.now_s))


def _vcpus(catalogue: Catalogue, known: dict[Market, int], lease: Lease) -> int:
    market = lease.market
    if market not in known:
        known[market] = catalogue.instance_type(market.cloud, market.instance_type).vcpus
    return known[market]
