"""Policies for jobs with a deadline: `deadline`, Uniform Progress, failing over, greedy.

Whether a market has capacity is known only from requests. One frame serves all four rules. It tracks the time and
the work left, what is held and which market refused when; it requests a machine where the rule says, and moves the
job once the machine runs. No rule can miss the deadline as long as on-demand machines start within `start_s`: time
for such a start is always kept in reserve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from ebbtide.base.compiled_records import GO_ON_DEMAND, LONG_AGO_S, NOTHING, ON_DEMAND, SPOT, WAIT, ZonesNow
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel, spells_of_probes, updated
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models
from ebbtide.market.markets import Market, Place
from ebbtide.policies.api.actions import Action, Hold, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.reasons import Because, Reason
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View, run_started_s
from ebbtide.policies.deadline.gangs import (
    Gang,
    brought_together,
    coming_leases,
    gangs_of,
    given_back,
    request_gang,
    steady_leases,
)
from ebbtide.policies.deadline.losses import allowance_usd, least_charged_s, lost_usd, note_rented, start_usd
from ebbtide.policies.deadline.plan_of_job import begun
from ebbtide.policies.deadline.reasons import by_costs, by_rule, without_saving
from ebbtide.policies.deadline.rules import (
    by_table,
    cost_by_table,
    greedy,
    is_only_watched,
    likely_age_s,
    next_cheapest,
)
from ebbtide.policies.deadline.state import JobMoments, most_usd_per_hour
from ebbtide.policies.deadline.table import Question, ZoneTable, problem_for, table_for
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.migration import take_over

# Looks further apart than this multiple of `look_every_s` leave a gap in what is known of a spell.
_LONGEST_LOOKS = 1.5

# A machine that only shows that its zone has one is paid for so long at least, and asked so often whether it was
# given, seconds.
_LEAST_LOOK_S, _GIVEN_S = 60.0, 10.0

# Times closer than this are the same, seconds.
_SAME_S = 1e-6


class DeadlineRule(StrEnum):
    """Rules that choose the market for spot machines, and the time for on-demand machines."""

    TABLE = "deadline"  # by expected cost, over models of availability
    PROGRESS = "uniform-progress"  # NSDI 2024, in the market that is cheapest at the start
    FAILOVER = "next-cheapest"  # the same, failing over to the next-cheapest zone
    GREEDY = "greedy-spot"  # spot until the last safe moment


@dataclass(frozen=True)
class Deadline:
    """Runs every job by one deadline, each on one machine, or on several of one market that work as one.

    Attributes:
        rule: The rule that chooses markets and on-demand machines.
        deadline_s: Seconds from the start to the deadline; infinity: `times_work` times the longest job's work, or
            what it and some starts take, if that is longer.
        times_work: Deadline as a multiple of the longest job's work, where none is given.
        models: Models of how long markets are up and down.
        gamma: USD of expected cost that a USD of standard deviation is worth.
        ask_every_s: Seconds between requests to other zones while a spot machine is held.
        look_every_s: Seconds from one decision to the next.
        retry_s: Seconds after which a market that has refused is asked again: where spells are short, each minute
            in which nothing runs counts.
        start_s: Seconds kept in reserve for the start of a machine; no start takes longer.
        watches: Whether the table may watch a zone for some decisions before its machines are kept: a young spell
            may end before their start is worth it. A look costs the least that machines are charged for.
        learn_every_s: Seconds after which the models take in what the run has seen of its zones; infinity: never.
        may_lose: Share of the cost on demand that the table may lose by starts of spot machines that are taken too
            soon, besides two starts on demand and a charge period; then it tries no more.
        wakes_on: Events asked for beyond those that are always delivered: prices that rise above the list price.
    """

    # It does not ask a market that refuses again at once.
    backs_off: ClassVar[bool] = True

    rule: DeadlineRule = DeadlineRule.TABLE
    deadline_s: float = math.inf
    times_work: float = 1.5
    models: SpellModels = field(default_factory=default_spell_models, repr=False)
    gamma: float = 0.0
    ask_every_s: float = 2 * HOUR_S
    look_every_s: float = 600.0
    retry_s: float = 60.0
    start_s: float = 300.0
    watches: bool = False
    learn_every_s: float = math.inf
    may_lose: float = 0.05
    wakes_on: frozenset[Wake] = frozenset({Wake.PRICE})

    def __post_init__(self) -> None:
        check_fields(
            self,
            positive=("deadline_s", "times_work", "start_s", "learn_every_s"),
            not_negative=("gamma", "ask_every_s", "may_lose"),
            finite=("gamma", "start_s", "times_work", "may_lose"),
            between={"look_every_s": (1.0, DAY_S), "retry_s": (1.0, DAY_S)},
        )

    @property
    def name(self) -> str:
        return str(self.rule)

    def for_goals(self, goals: Goals) -> Deadline:
        """Return this policy with the deadline of some work."""
        return replace(self, **goals.given(deadline_s="deadline_s"))

    def decide(self, view: View) -> Iterable[Action]:
        waiting = [job for job in view.jobs if not job.is_finished]
        yield from self.provide(view, [(job, 0.0) for job in waiting])

    def provide(self, view: View, jobs: Sequence[tuple[JobView, float]]) -> Iterator[Action]:
        """Answer the events of a view for the jobs that are to have a machine.

        Args:
            view: The view that `decide` is given.
            jobs: Jobs, each with the steps that it is to do later, after another start; time is reserved for them.
        """
        begun_ = {"began_s": run_started_s(view), "refused": {}, "jobs": {}}
        memory: dict[str, Any] = view.memory.setdefault("deadline", begun_)
        if view.events and all(event.wake is Wake.PRICE for event in view.events):
            jobs = [one for one in jobs if self._is_above_list(view, one[0], memory)]
            if not jobs:
                return
        for event in view.events:
            if event.wake is Wake.LAUNCH_FAILED:
                lease = view.lease(event.lease_id)
                if lease.on_demand:
                    memory.setdefault("refused_on_demand", {})[str(lease.market)] = view.now_s
                else:
                    self._moments(memory).refuse(view, lease.market)
                yield WakeAt(view.now_s + self.retry_s)
            elif event.wake is Wake.RUNNING:
                yield from take_over(view, view.lease(event.lease_id))
        yield from given_back(view, memory)
        for job, later_steps in jobs:
            yield from self._serve(view, job, later_steps, memory)
        next_s = memory.get("look_s", -math.inf)
        if jobs and next_s <= view.now_s:
            memory["look_s"] = view.now_s + self.look_every_s
            yield WakeAt(view.now_s + self.look_every_s)

    def give_back(self, view: View) -> Iterator[Action]:
        """Release machines that are on their way to jobs that are finished."""
        yield from given_back(view, view.memory.get("deadline", {"jobs": {}}))

    def awaits(self, view: View, job: JobView) -> bool:
        """Return whether a gang's machines, not yet assigned to the job, are on their way to it."""
        memory: dict[str, Any] = view.memory.get("deadline", {"jobs": {}})
        return bool(coming_leases(view, memory["jobs"].get(str(job.job_id), {})))

    def zones_of(self, view: View, job: JobView) -> list[Market]:
        """The markets that are asked for a job, or would be if it began now.

        Raises:
            InputError: The deadline cannot be kept, or no market with a known on-demand price can run the job.
        """
        memory: dict[str, Any] = view.memory.get("deadline", {"began_s": run_started_s(view), "jobs": {}})
        own = memory["jobs"].get(str(job.job_id), {})
        if "zones" not in own:
            own = self._begin(view, job, dict(memory))
        return list(dict.fromkeys(gang.market for gang in gangs_of(own)))

    def expected_usd(self, view: View, job: JobView, later_steps: float = 0.0) -> float:
        """Expected cost of the rest of a served job by the table, USD; infinity: not known."""
        memory: dict[str, Any] = view.memory.get("deadline", {"jobs": {}})
        own: dict[str, Any] = memory["jobs"].get(str(job.job_id), {})
        if "zones" not in own or not own["can_save"]:
            return math.inf
        now = self._moments(memory).of(view, job, later_steps, own)
        table = table_for(self._question(view, own, memory))
        return cost_by_table(table.costs, table.problem.task, now)

    def table(self, view: View, job: JobView, gamma: float) -> ZoneTable:
        """The table that decides for a job that begins now.

        Args:
            view: Current and past prices.
            job: The job that begins.
            gamma: USD of expected cost that a USD of standard deviation is worth.

        Raises:
            InputError: The deadline cannot be kept, or no market with a known on-demand price can run the job.
        """
        own = self._begin(view, job, {"began_s": view.now_s})
        return table_for(replace(self._question(view, own, {}), gamma=gamma))

    def _is_above_list(self, view: View, job: JobView, memory: dict[str, Any]) -> bool:
        """Return whether a spot machine of the job, served by the table, costs more than one on demand."""
        own = memory["jobs"].get(str(job.job_id), {})
        if self.rule is not DeadlineRule.TABLE or "zones" not in own:
            return False
        spot = [lease for lease in steady_leases(view, job) if not lease.on_demand and lease.is_charged]
        return any(view.price(lease.market) > most_usd_per_hour(own) for lease in spot)

    def _serve(self, view: View, job: JobView, later_steps: float, memory: dict[str, Any]) -> Iterator[Action]:
        own: dict[str, Any] = memory["jobs"].setdefault(str(job.job_id), {})
        note_rented(view, job, own)
        if "looks" in own:
            yield from self._look(view, job, own)
        if job.job.most_machines > 1 and "zones" in own:
            yield from brought_together(
                view,
                job,
                own,
                lambda market, given: self._takes(view, job, later_steps, own, memory, market, given),
            )
        if any(not lease.is_booted for lease in (*steady_leases(view, job), *coming_leases(view, own))):
            # A machine is starting; its next event wakes the policy.
            return
        if "zones" not in own:
            own.update(self._begin(view, job, memory))
        if own.get("watched", -1) >= 0 and view.now_s < own["next_look_s"] - _SAME_S:
            return
        gangs = gangs_of(own)
        now = self._moments(memory).of(view, job, later_steps, own)
        if math.isfinite(self.learn_every_s):
            # Whole periods of the run: a run that is resumed decides as one that was not.
            own["learnt_s"] = view.now_s - (view.now_s - memory["began_s"]) % self.learn_every_s
        answer = self._answer(view, job, now, own, memory)
        own["was_safety"] = answer == GO_ON_DEMAND and now.slack_s - self.look_every_s < own["restart_s"]
        leases = steady_leases(view, job)

        def because() -> Reason:
            return self._why(view, now, own, memory, answer)

        if answer == WAIT:
            if now.held != NOTHING and not _some_leave(view, job):
                yield from (Release(lease.lease_id, because=because) for lease in leases)
            elif now.held == NOTHING:
                yield Hold(job.job_id, because)
            own.pop("watched", None)
        elif answer == GO_ON_DEMAND:
            if now.held != ON_DEMAND or len(leases) < gangs[0].machines:
                yield from self._go_on_demand(view, job, now, own, memory, because)
            own.pop("watched", None)
        elif now.held != SPOT or answer != now.zone:
            yield from self._spot(view, job, answer, now, own, memory, because)

    def _why(self, view: View, now: ZonesNow, own: dict[str, Any], memory: dict[str, Any], answer: int) -> Reason:
        """Reason for the answer of the rule."""
        if not own["can_save"]:
            return without_saving()
        if self.rule is not DeadlineRule.TABLE:
            return by_rule(self.name, gangs_of(own), now, answer)
        return by_costs(table_for(self._question(view, own, memory)), gangs_of(own), now, answer)

    def _spot(
        self,
        view: View,
        job: JobView,
        zone: int,
        now: ZonesNow,
        own: dict[str, Any],
        memory: dict[str, Any],
        because: Because,
        *,
        at_any_price: bool = False,
    ) -> Iterator[Action]:
        """Request the spot machines of a zone, or those that it lacks; of a gang that shrinks, release some."""
        gang = gangs_of(own)[zone]
        here = [lease for lease in steady_leases(view, job) if lease.market == gang.market and not lease.on_demand]
        if len(here) > gang.machines:
            if _some_leave(view, job):
                return
            newest = sorted(here, key=lambda lease: lease.started_s)[gang.machines :]
            yield from (Release(lease.lease_id, because=because) for lease in newest)
            return
        own["asked_s"], own["asked"], own["asked_market"] = view.now_s, gang.machines, str(gang.market)
        if self._is_only_watched(view, zone, now, own, memory):
            own["looks"] = zone
            yield WakeAt(view.now_s + _GIVEN_S)
        elif zone == own.pop("watched", -1):
            own["asked_up_s"] = own["up_since_s"]
        elif self.rule is DeadlineRule.TABLE and own["can_save"]:
            ages = table_for(self._question(view, own, memory)).ages[zone]
            own["asked_up_s"] = view.now_s - likely_age_s(ages, AGE_BINS_S, float(now.since_refused_s[zone]))
        price = math.inf if at_any_price else most_usd_per_hour(own)
        asked = Request(gang.market, price, count=gang.machines - len(here), because=because)
        yield from self._request(view, job, own, asked)

    def _takes(
        self,
        view: View,
        job: JobView,
        later_steps: float,
        own: dict[str, Any],
        memory: dict[str, Any],
        market: Market,
        given: int,
    ) -> bool:
        """Return whether the rule has a job move to machines of a market that has given `given` of them."""
        now = self._moments(memory).of(view, job, later_steps, own)
        answer = self._answer(view, job, now, own, memory)
        gang = gangs_of(own)[answer] if answer >= 0 else None
        return gang is not None and gang.market == market and gang.machines <= given

    def _request(self, view: View, job: JobView, own: dict[str, Any], request: Request) -> Iterator[Action]:
        """Request machines for a job; those of a gang wait for each other."""
        if job.job.most_machines > 1:
            yield from request_gang(view, own, request)
        else:
            yield replace(request, job=job.job_id)

    def _look(self, view: View, job: JobView, own: dict[str, Any]) -> Iterator[Action]:
        """Give back the machines of a zone that is only watched, once it has given them."""
        leases = [*steady_leases(view, job), *coming_leases(view, own)]
        if any(not lease.is_charged for lease in leases):
            yield WakeAt(view.now_s + _GIVEN_S)
            return
        zone = own.pop("looks")
        own.pop("coming", None)
        seen = Reason("its zone was only watched: it has shown whether it has machines")
        yield from (Release(lease.lease_id, save=False, because=seen) for lease in leases)
        if len(leases) < gangs_of(own)[zone].machines:
            own.pop("watched", None)
            own.pop("up_since_s", None)
            return
        if own.get("watched") != zone:
            own["watched"], own["up_since_s"] = zone, view.now_s - own["likely_age_s"]
        own["next_look_s"] = view.now_s + self.look_every_s
        yield WakeAt(own["next_look_s"])

    def _go_on_demand(
        self,
        view: View,
        job: JobView,
        now: ZonesNow,
        own: dict[str, Any],
        memory: dict[str, Any],
        because: Because,
    ) -> Iterator[Action]:
        """Request the cheapest on-demand machines in the checkpoint's place, or else elsewhere.

        Where all have just been refused, spot machines are better than none, though they may be taken too late.
        """
        gangs, refused = gangs_of(own), memory.get("refused_on_demand", {})
        held = [lease.market for lease in steady_leases(view, job) if lease.on_demand]
        here, machines = gangs[now.zone].market.place, gangs[0].machines
        shown = set(view.markets)
        able = [
            one
            for one in self.zones_of(view, job)
            if one in shown and refused.get(str(one), LONG_AGO_S) <= view.now_s - self.retry_s
        ]
        if able:
            own["asked"] = machines
            usd = {one: view.on_demand_price(one) or math.inf for one in able}
            market = min(able, key=lambda one: (one.place != here, usd[one], one))
            request = Request(market, on_demand=True, count=machines - held.count(market), because=because)
            yield from self._request(view, job, own, request)
        elif now.held == NOTHING and own["can_save"]:
            above = now.spot_usd > most_usd_per_hour(own) * np.array([gang.machines for gang in gangs])
            open_zones = np.flatnonzero((now.since_refused_s > 0.0) | above).tolist()
            if open_zones:
                zone = min(
                    open_zones,
                    key=lambda one: (-gangs[one].machines, float(now.spot_usd[one]), one),
                )
                refused_all = Reason("every zone has just refused an on-demand machine: spot is better than none")
                yield from self._spot(view, job, zone, now, own, memory, refused_all, at_any_price=True)

    def _answer(self, view: View, job: JobView, now: ZonesNow, own: dict[str, Any], memory: dict[str, Any]) -> int:
        if not own["can_save"]:
            # A job without checkpoints is not put on a machine that can be revoked.
            return GO_ON_DEMAND
        if self.rule is DeadlineRule.TABLE:
            table = table_for(self._question(view, own, memory))
            answer = by_table(table.costs, table.problem.task, now)
            if answer < 0 or (now.held == SPOT and answer == now.zone):
                return answer
            lost = lost_usd(view, job, own) + start_usd(view, own, table.problem.task, now, answer)
            if lost <= allowance_usd(view, own, self.may_lose):
                return answer
            asks_none = now._replace(since_refused_s=np.zeros_like(now.since_refused_s))
            stays = now.held == SPOT and by_table(table.costs, table.problem.task, asks_none) == now.zone
            return int(now.zone) if stays else GO_ON_DEMAND
        task = problem_for(self._question(view, own, memory)).task
        return greedy(task, now) if self.rule is DeadlineRule.GREEDY else next_cheapest(task, now)

    def _is_only_watched(
        self, view: View, zone: int, now: ZonesNow, own: dict[str, Any], memory: dict[str, Any]
    ) -> bool:
        """Return whether a zone is asked only to see if it has machines, which are then released at once."""
        if self.rule is not DeadlineRule.TABLE or now.held != NOTHING or not own["can_save"]:
            return False
        table = table_for(self._question(view, own, memory))
        if not is_only_watched(table.costs, table.problem.task, now, zone):
            return False
        own["likely_age_s"] = likely_age_s(table.ages[zone], AGE_BINS_S, float(now.since_refused_s[zone]))
        return True

    def _begin(self, view: View, job: JobView, memory: dict[str, Any]) -> dict[str, Any]:
        """Fixed data of a job: the machines that it may have, their expected prices, and times."""
        return begun(
            view,
            job,
            memory,
            name=self.name,
            deadline_s=self.deadline_s,
            times_work=self.times_work,
            start_s=self.start_s,
            only_best=self.rule is DeadlineRule.PROGRESS,
        )

    def _moments(self, memory: dict[str, Any]) -> JobMoments:
        learns = math.isfinite(self.learn_every_s)
        return JobMoments(memory, self.look_every_s, self.ask_every_s, self.retry_s, learns)

    def _question(self, view: View, own: dict[str, Any], memory: dict[str, Any]) -> Question:
        gangs = gangs_of(own)
        models = [self._model(gang, own, memory) for gang in gangs]
        return Question(
            tuple((str(gang), gang.market.place) for gang in gangs),
            tuple(own["spot_usd"]),
            own["on_demand_usd"],
            own["work_h"],
            own["deadline_h"],
            own["restart_s"] / HOUR_S,
            own["checkpoint_bytes"],
            tuple(
                (np.ascontiguousarray(one.per_hour).tobytes(), np.ascontiguousarray(one.by_part).tobytes())
                for one in models
            ),
            own["begins_s"],
            self.ask_every_s,
            self.gamma,
            # Runs that began before buckets were known have none.
            Place(*own["bucket"]) if own.get("bucket") else None,
            tuple(own.get("speed", ())),
            max(_LEAST_LOOK_S, *(least_charged_s(view, gang.market) for gang in gangs))
            if self.watches
            else math.inf,
        )

    def _model(self, gang: Gang, own: dict[str, Any], memory: dict[str, Any]) -> SpellModel:
        """The model of a gang's market, with what the run had seen of it when it last learnt."""
        model = self.models.of(gang.market, gang.machines)
        seen = memory.get("seen", {}).get(str(gang), ())
        looks = [look for look in seen if look[0] <= own.get("learnt_s", -math.inf)]
        if len(looks) < 2:
            return model
        times_s, up = np.array(looks).T
        return updated(model, spells_of_probes(times_s, up > 0, _LONGEST_LOOKS * self.look_every_s))


def _some_leave(view: View, job: JobView) -> bool:
    """Return whether some of a job's machines are about to be revoked: until then, all work on."""
    return len(steady_leases(view, job)) < len(view.leases_of(job.job_id))
