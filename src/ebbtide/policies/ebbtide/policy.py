"""`ebbtide`, the policy by default: any jobs, with or without a deadline, at the least expected cost.

It joins what the papers' policies know. Machines are chosen by the cost of what is left to do, egress and the
value of time included, over spot markets and on-demand machines. Where prices revoke and what is revoked is
refunded, market and max price are chosen together (SpotTune, `BestBid`). A market that refuses is left for a
while, and the next best asked at once. A job moves, the new machine first, where that saves more than it costs
(DeepSpotCloud). A job with a deadline is on spot machines while an on-demand one is still a way out; where
capacity decides, the table of `deadline` over its spells leads it. Trials of a sweep are predicted at theta, and
the best trained on (SpotTune). Where nothing is known of a market's past, prices of the moment decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.forecasts.learning_curves.early_curve import EarlyCurve
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Hold, Release, Request, WakeAt
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View, run_started_s
from ebbtide.policies.backoff import RefusedMarkets
from ebbtide.policies.deadline.gangs import sizes_of
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.ebbtide.moves import best_move, is_renewed, next_look_s, refunds_first_hour, staying_usd
from ebbtide.policies.ebbtide.options import Refunds, Way, Ways
from ebbtide.policies.ebbtide.reasons import reason
from ebbtide.policies.ebbtide.slack import InTime
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.migration import take_over
from ebbtide.policies.risk import MarketRisk
from ebbtide.policies.spottune.offers import BestBid, Offer
from ebbtide.policies.spottune.policy import ObservedStepTimes
from ebbtide.policies.spottune.selection import TrialSelection
from ebbtide.policies.stopping import Stopper, StopperName, SuccessiveHalving

# A market that refuses is left for so long at first, and at most, seconds: where the first hour is refunded, short
# openings are worth most.
_FIRST_REFUSAL_S, _LONGEST_REFUSAL_S = 60.0, 300.0

# Half a gang is kept for so long, then given back, and the whole asked for again after so long at first, seconds.
_HALF_S, _GANG_S = 300.0, 600.0
# Where machines that are taken in their first hour are free, it is kept longer: given back, it is paid for.
_REFUNDED_HALF_S = 1800.0

# A machine of a type that the table does not know has to cost less than this share of what the table expects.
_CHEAPER = 0.95
# A job without a deadline waits no longer than this in all, seconds.
_LONGEST_WAIT_S = 6 * DAY_S
# Why a machine is left for the deadline's sake.
_TOO_LATE = "if this machine were taken before the next look, no other might end in time"
# So long after a machine was to be taken, it is not taken after all, seconds.
_LATE_S = 60.0
# From a machine's first charge until it trains, seconds.
_CHARGED_S = 100.0


@dataclass(frozen=True)
class Ebbtide:
    """Least expected cost for jobs of any kind.

    Attributes:
        deadline_s: Seconds from the start until the deadline; infinity: there is none.
        hour_usd: What an hour of a job's time is worth, USD; 0: nothing, or as `bid` has it where it chooses.
        patience: How long a job without a deadline waits, in all, for a machine at no more than the usual price,
            as a multiple of the run's work: where there is one machine at a time, jobs follow each other. The work
            is counted on the faster of the usual machine and the one that could be had instead.
        theta: Share of its steps after which a trial is predicted; 1: all are trained to the end.
        mcnt: Number of trials, the best by prediction, that are trained to the end.
        selects: Whether the jobs are trials of one sweep, of which the best are trained on.
        stopper: What ends trials early: `earlycurve` predicts all at `theta` and trains the `mcnt` best on, `asha`
            has one in `reduction` go on at each rung.
        reduction: For `asha`: of the trials that come to a rung, one in so many goes on.
        grace: For `asha`: share of its steps that each trial is trained for in any case.
        maximise: Whether a higher metric is better.
        measured: The jobs' rates were measured beforehand; else seconds per step are learnt during training.
        parallel: Parallel share of a step, before a machine's speed is observed.
        look_every_s: Seconds from one look at the prices to the next.
        start_s: Seconds kept in reserve for the start of a machine, where there is a deadline.
        predictor: Predicts final metrics; None: EarlyCurve as calibrated.
        spells: Models of how capacity comes and goes.
        bid: Chooses market and max price where prices revoke.
        hazard: Chances of losing machines for capacity, which count beside prices.
        capacity: Whether they count; else prices alone.
        name: The policy's name in tables.
        wakes_on: Empty: only the events that are always delivered.
    """

    backs_off: ClassVar[bool] = True

    deadline_s: float = math.inf
    hour_usd: float = 0.0
    patience: float = 4.0
    theta: float = 0.7
    mcnt: int = 3
    selects: bool = False
    stopper: StopperName = StopperName.EARLYCURVE
    reduction: float = 3.0
    grace: float = 0.1
    maximise: bool = False
    measured: bool = True
    parallel: float = 0.83
    look_every_s: float = 600.0
    start_s: float = 300.0
    predictor: EarlyCurve | None = None
    spells: SpellModels = field(default_factory=default_spell_models, repr=False)
    bid: BestBid = field(default_factory=BestBid, repr=False)
    hazard: Hazard = field(default_factory=default_hazard, repr=False)
    capacity: bool = True
    name: str = "ebbtide"
    wakes_on: frozenset[Wake] = frozenset()

    def __post_init__(self) -> None:
        check_fields(
            self,
            positive=("deadline_s", "mcnt", "start_s"),
            not_negative=("hour_usd", "patience"),
            shares=("theta", "parallel", "grace"),
            finite=("hour_usd", "start_s"),
            between={"look_every_s": (1.0, DAY_S), "reduction": (1.0 + 1e-6, 1e6)},
        )

    def for_goals(self, goals: Goals) -> Ebbtide:
        """Return this policy with the goals of some work."""
        own = goals.given(
            deadline_s="deadline_s", theta="theta", mcnt="mcnt", maximise="maximise", selects="selects"
        )
        if goals.is_measured is not None:
            own["measured"] = goals.knows_length
        return replace(self, **own)

    def decide(self, view: View) -> Iterable[Action]:
        begins = any(event.wake is Wake.START for event in view.events)
        run_started_s(view)
        now = self._now(view)
        if begins and self.selects:
            yield from self._selection.begin(view)
        for job in view.jobs:
            if not self.measured:
                now.times.observe(view, job)
        yield from now.refusals.note()
        if any(_is_by_capacity(view, event) for event in view.events):
            view.memory["capacity"] = True
        Refunds(view).note()
        if self.selects:
            for event in view.events:
                if event.wake is Wake.MILESTONE:
                    yield from self._selection.reached(view, view.jobs[event.job_id])
            yield from self._selection.select(view)
        training = [job for job in view.jobs if not job.is_finished and not self._waits(view, job)]
        by_table = {job.job_id for job in training if self._is_by_table(now, job)}
        if by_table:
            led = [job for job in training if job.job_id in by_table]
            wanted = [(job, float(job.job.steps - self._end(view, job))) for job in led]
            for action in self._table.provide(view, wanted):
                yield self._or_other_type(now, action)
            for job, later_steps in wanted:
                if not view.leases_of(job.job_id) and not self._table.awaits(view, job):
                    yield from self._instead_of_waiting(now, job, later_steps)
        else:
            # The table's policy moves every job whose new machine runs.
            for event in view.events:
                if event.wake is Wake.RUNNING:
                    yield from take_over(view, view.lease(event.lease_id), keeps_refunded=True)
        yield from self._table.give_back(view)
        yield from _give_back_spared(view)
        for event in view.events:
            if event.wake is Wake.RUNNING:
                yield self._next_look(view, view.lease(event.lease_id))
        for job in training:
            if job.job_id not in by_table:
                yield from self._serve(now, job)
        if training and view.memory.get("look_s", -math.inf) <= view.now_s:
            view.memory["look_s"] = view.now_s + self.look_every_s
            yield WakeAt(view.now_s + self.look_every_s)

    def offers(self, view: View, job: JobView) -> list[Offer]:
        """The spot offers of the moment for a job, one per market that can run it."""
        ways = self._ways(self._now(view), job)
        if ways.bids_pay:
            return self._bid.offers(view, job, ways.steps, ways.markets, ways.seconds)
        found = []
        for market, seconds in zip(ways.markets, ways.seconds.tolist(), strict=True):
            listed = view.on_demand_price(market) or 2.0 * view.price(market)
            found.append(Offer(market, listed, view.price(market) * seconds / HOUR_S, math.nan, seconds))
        return found

    # Who serves a job.

    def _is_by_table(self, now: _Now, job: JobView) -> bool:
        """Return whether the table of `deadline` leads a job: capacity, not price, takes machines, as far as seen.

        Raises:
            InputError: The deadline cannot be kept, and nothing is rented yet.
        """
        view = now.view
        if not self._is_due or sizes_of(job.job)[0] < job.job.most_machines:
            return False
        kept: dict[str, bool] = view.memory.setdefault("by_table", {})
        key = str(job.job_id)
        if key in view.memory.get("off_table", ()):
            if view.leases_of(job.job_id):
                return False
            view.memory["off_table"].remove(key)
        if key in kept and (kept[key] or not view.memory.get("capacity")):
            return kept[key]
        in_time = self._in_time(now, job)
        if not view.leases and view.now_s <= run_started_s(view):
            in_time.check()
        by_capacity = not view.billing.price_revokes or bool(view.memory.get("capacity"))
        kept[key] = by_capacity and in_time.can_be_kept and self._knows_machines(view, job)
        return kept[key]

    def _knows_machines(self, view: View, job: JobView) -> bool:
        """Return whether the table knows the markets of the job's machines, which may be of another type."""
        held = {lease.market for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)}
        return not held or held <= set(self._table.zones_of(view, job))

    def _or_other_type(self, now: _Now, action: Action) -> Action:
        """Action of the table, or a spot machine of another type where that is cheaper than going on demand.

        The table knows the zones of one type. On a machine of another the job is off the table.
        """
        view = now.view
        if not isinstance(action, Request) or not action.on_demand or action.job is None:
            return action
        job = view.jobs[action.job]
        if view.leases_of(job.job_id):
            return action
        in_time = self._in_time(now, job, bids=False)
        way = in_time.best_spot(self._table.zones_of(view, job))
        listed = [one.usd for one in in_time.ways.out if one.market == action.market]
        if way is None or not listed or way.usd >= listed[0]:
            return action
        off_table: list[str] = view.memory.setdefault("off_table", [])
        off_table.append(str(job.job_id))
        why = "a spot machine of another type is expected to cost less than going on demand"
        return _asked(job, way, lambda: reason(why, in_time, way))

    def _instead_of_waiting(self, now: _Now, job: JobView, later_steps: float) -> Iterator[Action]:
        """A spot machine of another type where the table has a job wait, if it costs less than is expected."""
        view = now.view
        if job.job.most_machines > 1:
            # Machines that work as one are asked for by the table only.
            return
        in_time = self._in_time(now, job, bids=False)
        way = in_time.best_spot(self._table.zones_of(view, job))
        if way is None:
            return
        waiting_usd = self._table.expected_usd(view, job, later_steps)
        if way.usd < _CHEAPER * waiting_usd:
            view.memory.setdefault("off_table", []).append(str(job.job_id))
            why = f"a spot machine of another type costs less than {_CHEAPER:g} of what waiting is expected to"
            waiting = Alternative("wait, by the table of policy deadline", waiting_usd)
            yield _asked(job, way, lambda: reason(why, in_time, way, waiting))

    def _serve(self, now: _Now, job: JobView) -> Iterator[Action]:
        view = now.view
        held = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
        if any(not lease.is_booted for lease in held):
            # A machine is starting; its next event wakes the policy.
            return
        missing = job.job.most_machines - len(held)
        if missing <= 0:
            view.memory.get("halves", {}).pop(str(job.job_id), None)
        looks: dict[str, float] = view.memory.setdefault("looks", {})
        is_due = any(looks.get(str(lease.lease_id), math.inf) <= view.now_s + 1e-6 for lease in held)
        is_time = self._is_due and view.memory.get("look_s", -math.inf) <= view.now_s
        if missing <= 0 and not is_due and not is_time:
            return
        if not held and view.memory.get("gangs", {}).get(str(job.job_id), [0.0])[0] > view.now_s:
            return
        ways = self._ways(now, job)
        if missing > 0:
            way = self._best(now, job, ways)
            if way is not None:
                yield _asked(job, way, lambda: self._why(self._in_time(now, job), way), missing)
            elif not held:
                yield Hold(job.job_id, lambda: self._why_waits(self._in_time(now, job)))
            if way is None and 0 < len(held) < job.job.least_machines:
                # They are paid for and idle until the others come: they are kept for a while only.
                since_s = view.memory.setdefault("halves", {}).setdefault(str(job.job_id), view.now_s)
                kept_s = _REFUNDED_HALF_S if refunds_first_hour(view) else _HALF_S
                if view.now_s < since_s + kept_s:
                    yield WakeAt(since_s + kept_s)
                    return
                del view.memory["halves"][str(job.job_id)]
                why = Reason("the other machines that the job needs have not come, and these are paid for idle")
                yield from (Release(lease.lease_id, because=why) for lease in held)
                yield _backed_off(view, job)
        elif job.job.checkpoint is not None:
            yield from self._moves(now, job, held, is_due)
            if is_due:
                yield from (self._next_look(view, lease) for lease in held)

    # Which machines are rented.

    def _best(self, now: _Now, job: JobView, ways: Ways) -> Way | None:
        """The way to take now; None: it is better to wait."""
        view = now.view
        if self._is_due:
            in_time = self._in_time(now, job)
            found = in_time.best()
            if found is not None and in_time.waits_out(found):
                found = in_time.best_at_price()
            return None if found is not None and in_time.waits_out(found) else found
        best, at_price = ways.cheapest, ways.cheapest_by_price
        waited: dict[str, float] = view.memory.setdefault("waits_since_s", {})
        spent: dict[str, float] = view.memory.setdefault("waited_s", {})
        key = str(job.job_id)
        since_s = waited.setdefault(key, view.now_s)
        waited_s = spent.get(key, 0.0) + view.now_s - since_s
        if best is not None and at_price is not None:
            patience_s = self._patience_s(now, ways, at_price)
            may_wait = waited_s < patience_s and job.job.checkpoint is not None
            if not may_wait or not (ways.is_dearer(at_price) or ways.is_dear(at_price, waited_s / patience_s)):
                spent[key] = waited_s
                del waited[key]
                return best
        return None

    def _patience_s(self, now: _Now, ways: Ways, instead: Way) -> float:
        """Longest total wait of a job, seconds, by the faster of what it waits for and what it could have now.

        Work of unknown length counts as an hour.
        """
        if not self.measured:
            return self.patience * HOUR_S
        work_s = now.steps * min(ways.usual[1], ways.seconds_in(instead.market))
        return min(self.patience * work_s, _LONGEST_WAIT_S)

    def _why(self, in_time: InTime, way: Way) -> Reason:
        """Reason for the way that is taken."""
        why = "it is expected to cost least until the job is done"
        if self._is_due and in_time.may_try(way):
            why = "of what leaves time for an on-demand machine after it, it is expected to cost least"
        elif self._is_due:
            why = "no way leaves time for another after it: the fastest is taken"
        return reason(why, in_time, way)

    def _why_waits(self, in_time: InTime) -> Reason:
        """Reason to rent no machine for a job that has none."""
        ways = in_time.ways
        if ways.cheapest is None:
            why = "no market can be asked now: all have just refused, or cost more than their list price"
            return reason(why, in_time, None)
        at = "at the price that a tenth of the last week was below"
        usual = Alternative("wait for a machine at the usual cost", ways.usual[0], at, is_chosen=True)
        return reason(
            "machines cost more than is usual, or refuse, and there is time to wait", in_time, None, usual
        )

    # When a job moves.

    def _moves(self, now: _Now, job: JobView, held: Sequence[LeaseView], is_due: bool) -> Iterator[Action]:
        """Request a machine to move to: if the deadline needs one, or where it is time to look and one pays."""
        view = now.view
        in_time = self._in_time(now, job)
        ways, lease = in_time.ways, held[0]
        if ways.steps <= 0.0 or any(one.market not in ways.markets for one in held):
            return
        above = view.billing.price_revokes and view.price(lease.market) > lease.max_price_usd_per_hour
        if not lease.on_demand and above:
            # It is being revoked at this moment; a move would lose the refund.
            return
        staying_s = max(ways.work_s_in(one.market) for one in held)
        target: Way | None = None
        if self._is_due and not all(one.on_demand for one in held) and not in_time.may_keep(staying_s):
            target = self._in_time(now, job, bids=False).best()
            if target is not None and not target.on_demand and target.work_s >= staying_s:
                target = None
            if target is not None and len(held) > 1:
                # Machines that work as one are replaced together, once these are saved.
                late = Reason(_TOO_LATE)
                yield from (Release(one.lease_id, because=late) for one in held)
                return
        elif is_due and len(held) > 1:
            if is_renewed(view, held, in_time):
                new = Reason("new machines of this market are refunded if they are taken within their first hour")
                yield from (Release(one.lease_id, because=new) for one in held)
            return
        elif is_due:
            target = best_move(view, lease, in_time)
        if target is not None:
            why = "moving there saves more than the move costs" if is_due else _TOO_LATE
            stay_usd = staying_usd(view, lease, ways)
            staying = Alternative(f"stay on lease {lease.lease_id}", stay_usd, market=lease.market)
            yield _asked(job, target, lambda: reason(why, in_time, target, staying))

    def _next_look(self, view: View, lease: LeaseView) -> WakeAt:
        look_s = next_look_s(view, lease, self.look_every_s)
        view.memory.setdefault("looks", {})[str(lease.lease_id)] = look_s
        return WakeAt(look_s)

    # What it knows.

    @property
    def _selection(self) -> Stopper:
        if self.stopper is StopperName.ASHA:
            return SuccessiveHalving(self.reduction, self.grace, self.maximise)
        return TrialSelection(self.theta, self.mcnt, True, self.predictor, self.maximise)

    @cached_property
    def _table(self) -> Deadline:
        return Deadline(
            deadline_s=self.deadline_s, models=self.spells, look_every_s=self.look_every_s, start_s=self.start_s
        )

    @property
    def _bid(self) -> BestBid:
        return replace(self.bid, hour_usd=self.hour_usd) if self.hour_usd else self.bid

    def _waits(self, view: View, job: JobView) -> bool:
        return self.selects and self._selection.waits(view, job)

    def _end(self, view: View, job: JobView) -> int:
        return self._selection.end(view, job) if self.selects else job.job.steps

    @property
    def _is_due(self) -> bool:
        """True if there is a deadline that can be planned for: the duration of the work is known."""
        return math.isfinite(self.deadline_s) and self.measured

    def _in_time(self, now: _Now, job: JobView, *, bids: bool = True) -> InTime:
        """The ways for a job, and which of them the deadline leaves."""
        ways = self._ways(now, job)
        allowed_s, passed_s = math.inf, now.view.now_s - run_started_s(now.view)
        if self._is_due:
            allowed_s = self.deadline_s
            later = float(job.job.steps - self._end(now.view, job))
            if later > 0.0:
                allowed_s -= later * float(ways.seconds.min()) + self.start_s
        return InTime(
            ways=ways if bids else replace(ways, bid=None),
            left_s=allowed_s - passed_s,
            start_s=self.start_s,
            look_every_s=self.look_every_s,
            allowed_s=allowed_s,
        )

    def _now(self, view: View) -> _Now:
        refusals = RefusedMarkets(view, _FIRST_REFUSAL_S, _LONGEST_REFUSAL_S)
        times = ObservedStepTimes.in_memory(view.memory, self.parallel)
        risk = MarketRisk.now(view, self.hazard if self.capacity else None)
        return _Now(view, refusals, times, lambda job: self._end(view, job), risk)

    def _ways(self, now: _Now, job: JobView) -> Ways:
        """The ways for a job; jobs that are alike share them."""
        view, work = now.view, job.job
        steps = max(float(self._end(view, job)) - job.steps_done, 0.0)
        rates = {kind: view.steps_per_s(work, market) for kind, market in now.types.items()}
        seen = None if self.measured else job.job_id
        lies = job.saved_at, work.bucket, job.checkpoint_bytes
        form = work.machines, work.checkpoint, work.dataset, work.coupling, job.restores > 0
        key = steps, tuple(rates.values()), seen, lies, form
        if key not in now.known:
            able = [market for market in view.markets if rates[market.cloud, market.instance_type] > 0]
            if self.measured:
                seconds: Any = [1.0 / rates[market.cloud, market.instance_type] for market in able]
            else:
                seconds = now.times.of_all(view, job, able)
            now.known[key] = Ways(
                view,
                job,
                steps,
                able,
                np.array(seconds),
                now.refusals,
                _CHARGED_S,
                self.hour_usd,
                self._bid,
                now.risk,
            )
        return now.known[key]


@dataclass(frozen=True)
class _Now:
    """Inputs of one decision, for all jobs.

    Attributes:
        view: What the policy sees.
        refusals: Markets that have just refused.
        times: Seconds per step that were observed.
        end: Returns the step up to which a job is to be trained, as far as is decided.
        risk: Risk of losing machines for capacity.
        known: The ways of jobs that are alike, once they are made.
    """

    view: View
    refusals: RefusedMarkets
    times: ObservedStepTimes
    end: Callable[[JobView], int]
    risk: MarketRisk
    known: dict[Any, Ways] = field(default_factory=dict)

    @cached_property
    def types(self) -> dict[tuple[str, str], Market]:
        """A market of each instance type."""
        return {(market.cloud, market.instance_type): market for market in self.view.markets}

    @cached_property
    def steps(self) -> float:
        """Steps of all jobs of the run that are to be trained."""
        return math.fsum(self.end(job) for job in self.view.jobs)


def _asked(job: JobView, way: Way, because: Callable[[], Reason], count: int = 1) -> Request:
    """A request for machines of a way."""
    most = way.max_price_usd_per_hour
    return Request(way.market, most, way.on_demand, job=job.job_id, count=count, because=because)


def _give_back_spared(view: View) -> Iterator[Action]:
    """Release machines that were left to their provider, which has not taken them after all."""
    noticed = [lease for lease in view.leases if math.isfinite(lease.revoke_at_s) and lease.is_booted]
    used = {lease.lease_id for job in view.jobs for lease in job.leases} if noticed else set()
    for lease in noticed:
        if lease.lease_id in used:
            continue
        if view.now_s >= lease.revoke_at_s + _LATE_S:
            yield Release(lease.lease_id, because=Reason("its provider was to take it, and has not"))
        else:
            yield WakeAt(lease.revoke_at_s + _LATE_S)


def _backed_off(view: View, job: JobView) -> WakeAt:
    """Wake-up to request a gang again, after some of its machines came and others did not."""
    gangs: dict[str, list[float]] = view.memory.setdefault("gangs", {})
    times = gangs.get(str(job.job_id), [0.0, 0.0])[1] + 1.0
    until_s = view.now_s + min(_GANG_S * 2.0 ** min(times - 1.0, 8.0), HOUR_S)
    gangs[str(job.job_id)] = [until_s, times]
    return WakeAt(until_s)


def _is_by_capacity(view: View, event: Event) -> bool:
    """Return whether a spot machine was refused or is revoked although its price did not exceed its max price."""
    if event.wake not in (Wake.LAUNCH_FAILED, Wake.NOTICE):
        return False
    lease = view.lease(event.lease_id)
    above = view.billing.price_revokes and view.price(lease.market) > lease.max_price_usd_per_hour
    return not lease.on_demand and not above
