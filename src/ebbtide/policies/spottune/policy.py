"""SpotTune (Algorithm 1): every trial on the machine of least expected step cost, bad trials ended early.

A machine that its provider revokes within the first hour costs nothing where the billing says so. SpotTune then
prefers machines likely to be revoked, and releases a machine after an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.forecasts.learning_curves.curves import Bools
from ebbtide.forecasts.learning_curves.early_curve import EarlyCurve
from ebbtide.jobs.job import UNKNOWN_STEPS
from ebbtide.jobs.throughput import ThroughputModel
from ebbtide.market.billing import Refund
from ebbtide.market.catalogue import InstanceType
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import Action, Hold, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View, run_started_s
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.risk import MarketRisk
from ebbtide.policies.spottune.offers import BestBid, Offer, Provisioner, StepCost
from ebbtide.policies.spottune.selection import TrialSelection


@dataclass(frozen=True)
class ObservedStepTimes:
    """M[instance][trial] of SpotTune: seconds per step, kept in a policy's memory.

    Before any observation, a machine's speed follows from its cores (`ThroughputModel`); if all of a step is
    parallel, that is `C0 / CPUs` (Algorithm 1, line 12 prints a product, by which more cores would be slower). A
    type on which a trial has trained has the time observed there. Trials of a sweep differ in size, but hardly in
    the machines that suit them: the ratio of two types observed for some trials is used for the others.

    Attributes:
        seen: Observed seconds per step, by trial and instance type.
        parallel: Parallel share of a step (Amdahl), assumed before any observation.
        curiosity: Share by which a type that no trial has run on is taken to be faster than assumed.
    """

    seen: dict[str, dict[str, float]]
    parallel: float = 1.0
    curiosity: float = 0.0
    _slowness: dict[str, float] = field(default_factory=dict, repr=False)

    @classmethod
    def in_memory(cls, memory: dict[str, Any], parallel: float, curiosity: float = 0.0) -> ObservedStepTimes:
        """The times kept in a policy's memory, which survive a restart."""
        return cls(memory.setdefault("seconds_per_step", {}), parallel, curiosity)

    def observe(self, view: View, job: JobView) -> None:
        """Record the speed of a trial on its current machine."""
        for lease in job.leases:
            if lease.state is LeaseState.RUNNING and job.steps_on.get(lease.lease_id, 0.0) > 0:
                rate = view.seen_steps_per_s(job.job, lease.market)
                own = self.seen.setdefault(str(job.job_id), {})
                if rate and own.get(lease.market.instance_type) != 1.0 / rate:
                    own[lease.market.instance_type] = 1.0 / rate
                    self._slowness.clear()

    def of_all(self, view: View, job: JobView, markets: Sequence[Market]) -> list[float]:
        """Seconds per step of a trial in each market, in the order of the markets."""
        own = self.seen.get(str(job.job_id), {})
        slowness = self._slowness_on(view)
        # Types whose markets are all hidden at the moment tell nothing now.
        sizes = [math.log(seconds) - slowness[name] for name, seconds in own.items() if name in slowness]
        size = sum(sizes) / len(sizes) if sizes else 0.0
        tried = {name for trial in self.seen.values() for name in trial} if self.curiosity else slowness
        return [
            own.get(name) or math.exp(size + slowness[name]) * (1.0 if name in tried else 1.0 - self.curiosity)
            for name in (market.instance_type for market in markets)
        ]

    def _slowness_on(self, view: View) -> dict[str, float]:
        """Logarithm of each type's slowness: the model's, corrected by trials that ran on several types."""
        if not self._slowness:
            for market in view.markets:
                if market.instance_type not in self._slowness:
                    seconds = _before_seen(self.parallel, view.machine(market))
                    self._slowness[market.instance_type] = math.log(seconds)
            self._slowness.update(self._corrected(self._slowness))
        return self._slowness

    def _corrected(self, slowness: Mapping[str, float]) -> dict[str, float]:
        found = dict(slowness)
        shown = [{name: each for name, each in own.items() if name in found} for own in self.seen.values()]
        several = [own for own in shown if len(own) > 1]
        # Estimate sizes of trials and slowness of types in turns: for so few values it converges at once.
        for _ in range(3 if several else 0):
            off: dict[str, list[float]] = {}
            for own in several:
                size = sum(math.log(seconds) - found[name] for name, seconds in own.items()) / len(own)
                for name, seconds in own.items():
                    off.setdefault(name, []).append(math.log(seconds) - size)
            found |= {name: sum(values) / len(values) for name, values in off.items()}
        return found


@cache
def _before_seen(parallel: float, machine: InstanceType) -> float:
    return ThroughputModel(1.0, parallel).seconds_per_step(machine)


# Algorithm 1 runs every ten seconds; whether staying is still cheaper is checked every ten minutes.
_LOOP_S = 10.0
_LOOK_AGAIN_S = 600.0

# Share of the time until the deadline planned for training; the rest is for starts, moves and waiting.
_TRAINING_SHARE = 0.8


@dataclass(frozen=True)
class SpotTune:
    """SpotTune's provisioner and orchestrator.

    Attributes:
        theta: Share of its steps after which a trial is predicted; 1: all are trained to the end.
        mcnt: Number of trials, the best by prediction, that are chosen.
        trains_on: Train the chosen trials to the end; else they end where they were predicted, too.
        provisioner: Estimates the cost of a step in each market and gives the max price to request.
        stays: After an hour, stay if moving, its time included, is not expected to be cheaper; else move every
            hour at any cost, as in Algorithm 1.
        parallel: Parallel share of a step, before a machine's speed is observed; 1 is the paper's start.
        curiosity: Share by which a type that no trial has run on yet is taken to be faster than assumed, so that
            it is tried where it might be better.
        measured: The trials' rates were measured beforehand; else seconds per step are learnt during training.
        predictor: Predicts final metrics; None: EarlyCurve as calibrated.
        maximise: Whether a higher metric is better.
        deadline_s: Seconds from the start until the deadline; more expensive machines are used where cheaper ones
            would be too slow.
        name: The policy's name in tables.
        wakes_on: Empty: only the events that are always delivered.
    """

    one_machine_a_job: ClassVar[bool] = True

    theta: float = 0.7
    mcnt: int = 3
    trains_on: bool = True
    provisioner: Provisioner = field(default_factory=StepCost)
    stays: bool = True
    parallel: float = 0.83
    curiosity: float = 0.0
    measured: bool = False
    predictor: EarlyCurve | None = None
    maximise: bool = False
    deadline_s: float = math.inf
    name: str = "spottune"
    wakes_on: frozenset[Wake] = frozenset()

    def __post_init__(self) -> None:
        check_fields(
            self, positive=("mcnt", "deadline_s"), shares=("theta", "parallel"), between={"curiosity": (0.0, 0.9)}
        )

    def for_goals(self, goals: Goals) -> SpotTune:
        """Return this policy with the goals of some work.

        Only bids of least cost keep a deadline: SpotTune as published has none.
        """
        own = goals.given(mcnt="mcnt", maximise="maximise", measured="is_measured")
        if self.theta < 1.0:
            own |= goals.given(theta="theta")
        if isinstance(self.provisioner, BestBid):
            own |= goals.given(deadline_s="deadline_s")
        return replace(self, **own)

    def decide(self, view: View) -> Iterable[Action]:
        memory = view.memory
        times = ObservedStepTimes.in_memory(memory, self.parallel, self.curiosity)
        if any(event.wake is Wake.START for event in view.events):
            run_started_s(view)
            yield from self._selection.begin(view)
        for job in view.jobs:
            times.observe(view, job)
        for event in view.events:
            if event.wake is Wake.RUNNING:
                yield WakeAt(event.time_s + HOUR_S)
            elif event.wake is Wake.MILESTONE:
                yield from self._selection.reached(view, view.jobs[event.job_id])
        yield from self._give_back(view, times)
        yield from self._selection.select(view)
        yield from self._provide(view, times)

    @property
    def _selection(self) -> TrialSelection:
        return TrialSelection(self.theta, self.mcnt, self.trains_on, self.predictor, self.maximise)

    def offers(self, view: View, job: JobView) -> list[Offer]:
        """The current offers for a trial, one per market that can run it."""
        return self._offers(view, job, ObservedStepTimes.in_memory(view.memory, self.parallel, self.curiosity))

    def _give_back(self, view: View, times: ObservedStepTimes) -> Iterator[Action]:
        """Release machines held for an hour: from now on they would be charged even if revoked."""
        if view.billing.refund is not Refund.WITHIN_FIRST_HOUR:
            return
        given_back = view.memory.setdefault("given_back", [])
        # When each kept machine is checked again, by lease.
        looks: dict[str, float] = view.memory.setdefault("looks", {})
        # Jobs without checkpoints cannot move.
        for job in (job for job in view.jobs if job.job.checkpoint is not None):
            for lease in job.leases:
                held_s = view.now_s - lease.started_s
                due_s = looks.get(str(lease.lease_id), -math.inf)
                if held_s < HOUR_S - 1e-6 or not math.isinf(lease.revoke_at_s) or lease.lease_id in given_back:
                    continue
                if view.now_s < due_s:
                    continue
                if self.stays and self._stays(view, job, lease.market, times):
                    looks[str(lease.lease_id)] = view.now_s + _LOOK_AGAIN_S
                    yield WakeAt(view.now_s + _LOOK_AGAIN_S)
                    continue
                given_back.append(lease.lease_id)
                hour = Reason("its first hour is over: another machine's first hour may be refunded")
                yield Release(lease.lease_id, because=hour)

    def _stays(self, view: View, job: JobView, here: Market, times: ObservedStepTimes) -> bool:
        """Return whether to stay: it is in time, and no offer is cheaper, the time of the move included."""
        markets, seconds = self._usable(view, job, times)
        if here not in markets:
            # It is not shown at the moment: it has just refused another machine, and this one is kept.
            return True
        place = markets.index(here)
        if not self._in_time(view, job, seconds)[place]:
            return False
        vcpus = view.machine(here).vcpus
        moving_s = job.job.save_s(vcpus, here.place) + job.job.restore_s(vcpus)
        best = self._best(view, job, times)
        staying = self.provisioner.staying(view, place, markets, seconds)
        return best is None or best.usd_per_step * (1.0 + moving_s / HOUR_S) >= staying

    def _provide(self, view: View, times: ObservedStepTimes) -> Iterator[Action]:
        """Request a machine for each trial that has none, or none that stays."""
        memory = view.memory
        given_back = set(memory.get("given_back", []))
        refused = any(event.wake is Wake.LAUNCH_FAILED for event in view.events)
        if refused and not any(event.wake is Wake.TIMER for event in view.events):
            # A request now would be refused again.
            yield WakeAt(view.now_s + _LOOP_S)
            return
        for job in view.jobs:
            held = [
                lease
                for lease in view.leases_of(job.job_id)
                if math.isinf(lease.revoke_at_s) and lease.lease_id not in given_back
            ]
            if job.is_finished or held or self._selection.waits(view, job):
                continue
            kept = self._in_time_offers(view, job, times)
            if not kept:
                yield Hold(job.job_id, Reason("no market has a price at which its machines can run the trial"))
                yield WakeAt(view.now_s + 5 * 60.0)
            else:
                offer, left = _least(kept), self._selection.end(view, job) - job.steps_done
                because = partial(_by_step_cost, kept, offer, left, self.provisioner.risk(view))
                yield Request(offer.market, offer.max_price_usd_per_hour, job=job.job_id, because=because)

    def _best(self, view: View, job: JobView, times: ObservedStepTimes) -> Offer | None:
        """getBestInst: the market with the lowest expected step cost, among those where the trial ends in time."""
        kept = self._in_time_offers(view, job, times)
        return _least(kept) if kept else None

    def _in_time_offers(self, view: View, job: JobView, times: ObservedStepTimes) -> list[Offer]:
        """The offers with which the trial ends in time; empty: no market can run it."""
        offers = self._offers(view, job, times)
        if not offers:
            return []
        in_time = self._in_time(view, job, np.array([offer.seconds_per_step for offer in offers]))
        return [offer for offer, able in zip(offers, in_time, strict=True) if able]

    def _offers(self, view: View, job: JobView, times: ObservedStepTimes) -> list[Offer]:
        markets, seconds = self._usable(view, job, times)
        if not markets:
            return []
        left = self._selection.end(view, job) - job.steps_done
        return self.provisioner.offers(view, job, left, markets, seconds)

    def _usable(self, view: View, job: JobView, times: ObservedStepTimes) -> tuple[list[Market], Floats]:
        """The markets where the trial can run, and its seconds per step there, shape (n,)."""
        markets = [market for market in view.markets if view.steps_per_s(job.job, market) > 0]
        if self.measured:
            return markets, np.array([1.0 / view.steps_per_s(job.job, market) for market in markets])
        return markets, np.array(times.of_all(view, job, markets))

    def _in_time(self, view: View, job: JobView, seconds: Floats) -> Bools:
        """Mask of the seconds per step that meet the deadline; if none does, of the lowest. Shape (n,)."""
        if math.isinf(self.deadline_s):
            return np.ones(len(seconds), dtype=bool)
        left_s = self.deadline_s - (view.now_s - run_started_s(view))
        able = seconds * job.steps_left <= _TRAINING_SHARE * left_s
        return able if able.any() else np.asarray(seconds <= seconds.min())


def _least(offers: Sequence[Offer]) -> Offer:
    return min(offers, key=lambda offer: (offer.usd_per_step, offer.market))


def _by_step_cost(offers: Sequence[Offer], chosen: Offer, steps_left: float, risk: MarketRisk) -> Reason:
    """Reason for taking an offer: the lowest expected cost of a step."""
    steps = "" if steps_left > UNKNOWN_STEPS / 2 else f" x {steps_left:g} steps"
    alternatives = [
        Alternative(
            f"spot, at most {offer.max_price_usd_per_hour:.4f} USD/h",
            offer.usd_per_step * steps_left,
            f"{offer.usd_per_step:.8g} USD a step{steps}; {offer.seconds_per_step:.4g} s a step"
            + (
                ""
                if math.isnan(offer.revoked)
                else f"; revoked within the hour with probability {offer.revoked:.3f}"
            )
            + risk.text(offer.market),
            offer.market,
            offer is chosen,
        )
        for offer in offers
    ]
    return Reason("lowest expected cost of a step (SpotTune, Eq. 1 and 2)", alternatives)
