"""SpotTune (Algorithm 1): every trial on the machine of least expected step cost, bad trials ended early.

A machine that its provider revokes within the first hour costs nothing where the billing says so. SpotTune then
prefers machines likely to be revoked, and gives a machine back after an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ebbtide.learning_curves.calibration import default_calibration
from ebbtide.learning_curves.early_curve import EarlyCurve
from ebbtide.learning_curves.predictions import observed
from ebbtide.market.billing import Refund
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.actions import Action, Release, Request, Stop, WakeAt, WakeAtStep
from ebbtide.policies.events import Wake
from ebbtide.policies.step_times import ObservedStepTimes
from ebbtide.policies.view import View
from ebbtide.revocation.forecasts import Forecast, RecentFrequency
from ebbtide.utc import HOUR_S
from ebbtide.workloads.progress import JobProgress

# Algorithm 1 looks every ten seconds; whether staying is still cheaper, every ten minutes will do.
_LOOP_S = 10.0
_LOOK_AGAIN_S = 600.0

# Delta as published (Algorithm 1, line 4), USD per hour.
PUBLISHED_DELTA_USD = (0.00001, 0.2)

# Of a trial, how often it is looked at whether it has converged.
_CONVERGENCE_CHECKS = 10


@dataclass(frozen=True)
class SpotTune:
    """SpotTune's provisioner and orchestrator.

    Attributes:
        theta: Trials are predicted from this share of their steps; 1: all are trained to the end.
        mcnt: So many trials, the best by prediction, are chosen.
        trains_on: Train the chosen to the end; else they are ended, too, where they were predicted.
        delta: How far the max price is above the price: a share of it, drawn evenly from this interval; None: as
            published, 0.00001 to 0.2 USD per hour.
        forecast: Foretells revocations.
        stays: After an hour, stay where moving is not expected to be cheaper, the time it takes reckoned; else
            move every hour whatever it costs, as Algorithm 1 has it.
        doubt: Added to the probability of paying: a forecast that is all but sure may still be wrong, and on a
            dear machine that is what the hour costs. 0 is Eq. 1.
        parallel: Share of a step that cores do together, before a machine's speed is seen; 1 is the paper's start.
        predictor: Of where curves end; None: EarlyCurve as calibrated.
        name: For tables.
        wakes_on: Nothing but what is always delivered.
    """

    theta: float = 0.7
    mcnt: int = 3
    trains_on: bool = True
    delta: tuple[float, float] | None = (0.05, 0.1)
    forecast: Forecast = field(default_factory=RecentFrequency)
    stays: bool = True
    doubt: float = 0.1
    parallel: float = 0.5
    predictor: EarlyCurve | None = None
    name: str = "spottune"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        memory = view.memory
        times = ObservedStepTimes.in_memory(memory, self.parallel)
        if any(event.wake is Wake.START for event in view.events):
            memory["paused"], memory["chosen"] = [], None
            for job in view.jobs:
                yield from self._milestones(view, job)
        for job in view.jobs:
            times.observe(view, job)
        for event in view.events:
            if event.wake is Wake.RUNNING:
                yield WakeAt(event.time_s + HOUR_S)
            elif event.wake is Wake.MILESTONE:
                yield from self._reached(view, view.jobs[event.job_id])
        yield from self._give_back(view, times)
        if memory["chosen"] is None and all(
            job.is_finished or job.job_id in memory["paused"] for job in view.jobs
        ):
            yield from self._select(view)
        yield from self._provide(view, times)

    def _goal(self, job: JobProgress) -> int:
        """Steps before the trial is predicted."""
        return max(math.ceil(self.theta * job.job.steps), 1)

    def _end(self, view: View, job: JobProgress) -> int:
        """Steps at which the trial, as things stand, leaves its machine by itself."""
        chosen = view.memory["chosen"]
        return self._goal(job) if self._selects(view) and chosen is None else job.job.steps

    def _milestones(self, view: View, job: JobProgress) -> Iterator[Action]:
        if self._selects(view):
            yield WakeAtStep(job.job_id, self._goal(job))
        for check in range(1, _CONVERGENCE_CHECKS):
            yield WakeAtStep(job.job_id, max(job.job.steps * check // _CONVERGENCE_CHECKS, 1))

    def _selects(self, view: View) -> bool:
        """Whether trials are compared at theta: there have to be more than are wanted."""
        return self.theta < 1.0 and len(view.jobs) > self.mcnt

    def _reached(self, view: View, job: JobProgress) -> Iterator[Action]:
        """A trial has come to theta, or to a look at whether it has converged."""
        if job.is_finished:
            return
        steps, metric = view.measured(job.job_id)
        if len(steps) and (not math.isfinite(metric[-1]) or self._predictor().has_converged(metric)):
            yield Stop(job.job_id)
            return
        waits = view.memory["chosen"] is None and job.job_id not in view.memory["paused"]
        if self._selects(view) and waits and job.steps_done >= self._goal(job) - 1e-6:
            view.memory["paused"].append(job.job_id)
            for lease in view.leases_of(job.job_id):
                yield Release(lease.lease_id)

    def _give_back(self, view: View, times: ObservedStepTimes) -> Iterator[Action]:
        """Machines held for an hour: from now on they would be paid even if they were revoked."""
        if view.billing.refund is not Refund.WITHIN_FIRST_HOUR:
            return
        given_back = view.memory.setdefault("given_back", [])
        # When each machine that was kept is to be looked at again, by lease.
        looks: dict[str, float] = view.memory.setdefault("looks", {})
        for job in view.jobs:
            for lease in job.leases:
                held_s = view.now_s - lease.started_s
                due_s = looks.get(str(lease.lease_id), -math.inf)
                if held_s < HOUR_S - 1e-6 or not math.isinf(lease.revoke_at_s) or lease.lease_id in given_back:
                    continue
                if view.now_s < due_s:
                    continue
                if self.stays and not self._moving_is_cheaper(view, job, lease.market, times):
                    looks[str(lease.lease_id)] = view.now_s + _LOOK_AGAIN_S
                    yield WakeAt(view.now_s + _LOOK_AGAIN_S)
                    continue
                given_back.append(lease.lease_id)
                yield Release(lease.lease_id)

    def _moving_is_cheaper(self, view: View, job: JobProgress, here: Market, times: ObservedStepTimes) -> bool:
        offers = self._offers(view, job, times)
        staying = times.of_all(view, job, [here])[0] * view.mean_price(here, HOUR_S)
        vcpus = view.machine(here).vcpus
        moving_s = job.job.save_s(vcpus) + job.job.restore_s(vcpus)
        return min(cost for _, _, cost in offers) * (1.0 + moving_s / HOUR_S) < staying

    def _select(self, view: View) -> Iterator[Action]:
        """Predict where every trial ends; train the best on, end the others (lines 48 to 53)."""
        waiting = [view.jobs[job_id] for job_id in view.memory["paused"]]
        seen = [observed(*view.measured(job.job_id), job.job.steps, "sweep") for job in waiting]
        ends = [end.value for end in self._predictor().ends(seen)]
        ranked = sorted(zip(ends, (job.job_id for job in waiting), strict=True))
        chosen = [job_id for _, job_id in ranked[: self.mcnt]]
        view.memory["chosen"] = chosen
        for job in waiting:
            if job.job_id not in chosen or not self.trains_on:
                yield Stop(job.job_id)

    def _predictor(self) -> EarlyCurve:
        return self.predictor or default_calibration().everywhere

    def _provide(self, view: View, times: ObservedStepTimes) -> Iterator[Action]:
        """A machine for each trial that has none, or none that stays."""
        memory = view.memory
        given_back = set(memory.get("given_back", []))
        refused = any(event.wake is Wake.LAUNCH_FAILED for event in view.events)
        if refused and not any(event.wake is Wake.TIMER for event in view.events):
            # Asked again at once, it would be refused again.
            yield WakeAt(view.now_s + _LOOP_S)
            return
        for job in view.jobs:
            held = [
                lease
                for lease in view.leases_of(job.job_id)
                if math.isinf(lease.revoke_at_s) and lease.lease_id not in given_back
            ]
            # Paused at theta, it waits for the choice, and goes on if it is among the chosen.
            waits = job.job_id in memory["paused"] and job.job_id not in (memory["chosen"] or ())
            if job.is_finished or held or waits:
                continue
            offer = self._best(view, job, times)
            if offer is None:
                yield WakeAt(view.now_s + 5 * 60.0)
            else:
                market, max_price = offer
                yield Request(market, max_price, job=job.job_id)

    def _best(self, view: View, job: JobProgress, times: ObservedStepTimes) -> tuple[Market, float] | None:
        """getBestInst: the market of least expected step cost, and the max price to ask for (Eq. 1, 2)."""
        offers = self._offers(view, job, times)
        if not offers:
            return None
        market, max_price, _ = min(offers, key=lambda offer: (offer[2], offer[0]))
        return market, max_price

    def _offers(self, view: View, job: JobProgress, times: ObservedStepTimes) -> list[tuple[Market, float, float]]:
        """Of each usable market, the max price to ask for and the expected cost of a step."""
        usable = [market for market in view.markets if view.steps_per_s(job.job, market) > 0]
        if not usable:
            return []
        if view.billing.refund is Refund.WITHIN_FIRST_HOUR:
            max_prices = self._max_prices(view, usable)
            p = self.forecast.probabilities(view, usable, max_prices)
        else:
            # Nothing is gained by being revoked.
            max_prices, p = np.full(len(usable), math.inf), np.zeros(len(usable))
        mean = np.array([view.mean_price(market, HOUR_S) for market in usable])
        seconds = np.array(times.of_all(view, job, usable))
        # A trial that is done before the hour is over leaves less time to be revoked in, and then it pays.
        p = p * np.minimum((self._end(view, job) - job.steps_done) * seconds / HOUR_S, 1.0)
        cost = seconds * (1.0 - p + self.doubt) * mean
        return list(zip(usable, max_prices.tolist(), cost.tolist(), strict=True))

    def _max_prices(self, view: View, markets: Sequence[Market]) -> Floats:
        prices = np.array([view.price(market) for market in markets])
        if self.delta is None:
            return np.asarray(prices + view.random.uniform(*PUBLISHED_DELTA_USD, len(markets)))
        return np.asarray(prices * (1.0 + view.random.uniform(*self.delta, len(markets))))
