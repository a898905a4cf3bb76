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

from ebbtide._compiled_records import GO_ON_DEMAND, LONG_AGO_S, NOTHING, ON_DEMAND, SPOT, WAIT, ZonesNow
from ebbtide._utc import DAY_S, HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.spells.fitting import SpellModel, spells_of_probes, updated
from ebbtide.forecasts.spells.models import SpellModels, default_spell_models
from ebbtide.jobs.checkpoint_interval import saves_while_training
from ebbtide.jobs.job import Job
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import MARKET_FIELDS, Market, Place
from ebbtide.policies.api.actions import Action, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View, run_started_s
from ebbtide.policies.deadline.choosing import by_table, cost_by_table, greedy, next_cheapest
from ebbtide.policies.deadline.problem import place_numbers
from ebbtide.policies.deadline.table import Question, ZoneTable, problem_for, table_for
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.moving import take_over

# Where no deadline is given: starts of machines, first or later ones, for which short jobs are left time.
_DEFAULT_STARTS = 4

# Zones of a table, the cheapest: what it takes to solve grows with their square, and so many are hardly ever all
# without a machine.
_MOST_ZONES = 16


# Looks further apart than this multiple of `look_every_s` leave a gap in what is known of a spell.
_LONGEST_LOOKS = 1.5


class DeadlineRule(StrEnum):
    """Which market is asked for a spot machine, and when on-demand machines are rented."""

    TABLE = "deadline"  # by expected cost, over models of availability
    PROGRESS = "uniform-progress"  # NSDI 2024, in the market that is cheapest at the start
    FAILOVER = "next-cheapest"  # the same, failing over to the next-cheapest zone
    GREEDY = "greedy-spot"  # spot until the last safe moment


@dataclass(frozen=True)
class Deadline:
    """Runs every job by one deadline, each on one machine.

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
        learn_every_s: Seconds after which the models take in what the run has seen of its zones; infinity: never.
        wakes_on: Events asked for beyond those that are always delivered: none.
    """

    one_machine_a_job: ClassVar[bool] = True
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
    learn_every_s: float = math.inf
    wakes_on: frozenset[Wake] = frozenset()

    def __post_init__(self) -> None:
        check_fields(
            self,
            positive=("deadline_s", "times_work", "start_s", "learn_every_s"),
            not_negative=("gamma", "ask_every_s"),
            finite=("gamma", "start_s", "times_work"),
            between={"look_every_s": (1.0, DAY_S), "retry_s": (1.0, DAY_S)},
        )

    @property
    def name(self) -> str:
        return str(self.rule)

    def decide(self, view: View) -> Iterable[Action]:
        waiting = [job for job in view.jobs if not job.is_finished]
        yield from self.provide(view, [(job, 0.0) for job in waiting])

    def provide(self, view: View, jobs: Sequence[tuple[JobView, float]]) -> Iterator[Action]:
        """Answer the events of a view for the jobs that are to have a machine.

        Args:
            view: The view that `decide` is given.
            jobs: Jobs, each with the steps that it is to do later, after another start; time is reserved for them.
        """
        begun = {"began_s": run_started_s(view), "refused": {}, "jobs": {}}
        memory: dict[str, Any] = view.memory.setdefault("deadline", begun)
        for event in view.events:
            if event.wake is Wake.LAUNCH_FAILED:
                lease = view.lease(event.lease_id)
                if lease.on_demand:
                    memory.setdefault("refused_on_demand", {})[str(lease.market)] = view.now_s
                else:
                    memory["refused"][str(lease.market)] = view.now_s
                    self._saw(memory, lease.market, view.now_s, is_up=False)
                yield WakeAt(view.now_s + self.retry_s)
            elif event.wake is Wake.RUNNING:
                yield from take_over(view, view.lease(event.lease_id))
        for job, later_steps in jobs:
            yield from self._serve(view, job, later_steps, memory)
        next_s = memory.get("look_s", -math.inf)
        if jobs and next_s <= view.now_s:
            memory["look_s"] = view.now_s + self.look_every_s
            yield WakeAt(view.now_s + self.look_every_s)

    def zones_of(self, view: View, job: JobView) -> list[Market]:
        """The markets that are asked for a job, or would be if it began now.

        Raises:
            InputError: The deadline cannot be kept, or no market with a known on-demand price can run the job.
        """
        memory: dict[str, Any] = view.memory.get("deadline", {"began_s": run_started_s(view), "jobs": {}})
        own = memory["jobs"].get(str(job.job_id), {})
        if "zones" not in own:
            own = self._begin(view, job, dict(memory))
        return [Market(*fields) for fields in own["zones"]]

    def expected_usd(self, view: View, job: JobView, later_steps: float = 0.0) -> float:
        """What the rest of a served job is expected to cost by the table, USD; infinity: it is not known."""
        memory: dict[str, Any] = view.memory.get("deadline", {"jobs": {}})
        own: dict[str, Any] = memory["jobs"].get(str(job.job_id), {})
        if "zones" not in own or not own["can_save"]:
            return math.inf
        zones = self.zones_of(view, job)
        leases = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
        now = self._now(view, job, later_steps, memory, own, zones, leases)
        table = table_for(self._question(own, zones, memory))
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
        zones = [Market(*fields) for fields in own["zones"]]
        return table_for(replace(self._question(own, zones, {}), gamma=gamma))

    def _serve(self, view: View, job: JobView, later_steps: float, memory: dict[str, Any]) -> Iterator[Action]:
        leases = [lease for lease in view.leases_of(job.job_id) if math.isinf(lease.revoke_at_s)]
        if any(not lease.is_booted for lease in leases):
            # A machine is starting; its next event wakes the policy.
            return
        own: dict[str, Any] = memory["jobs"].setdefault(str(job.job_id), {})
        if "zones" not in own:
            own.update(self._begin(view, job, memory))
        zones = [Market(*fields) for fields in own["zones"]]
        now = self._now(view, job, later_steps, memory, own, zones, leases)
        if math.isfinite(self.learn_every_s):
            # Whole periods of the run: a run that is resumed decides as one that was not.
            own["learnt_s"] = view.now_s - (view.now_s - memory["began_s"]) % self.learn_every_s
        answer = self._answer(now, own, zones, memory)
        own["was_safety"] = answer == GO_ON_DEMAND and now.slack_s - self.look_every_s < own["restart_s"]
        if answer == WAIT:
            yield from (Release(lease.lease_id) for lease in leases)
        elif answer == GO_ON_DEMAND:
            if now.held != ON_DEMAND:
                yield from self._go_on_demand(view, job, zones, now, own, memory)
        elif now.held != SPOT or answer != now.zone:
            yield self._spot(view, job, zones, answer, now, own)

    def _spot(
        self, view: View, job: JobView, zones: Sequence[Market], zone: int, now: ZonesNow, own: dict[str, Any]
    ) -> Request:
        """The request for the spot machine of a zone."""
        own["asked_s"], own["zone"] = view.now_s, own["zone"] if now.held == SPOT else zone
        # Where the price revokes no machine, a max price would only add interruptions.
        price = math.inf if not view.billing.price_revokes else own["on_demand_usd"]
        return Request(zones[zone], price, job=job.job_id)

    def _go_on_demand(
        self,
        view: View,
        job: JobView,
        zones: Sequence[Market],
        now: ZonesNow,
        own: dict[str, Any],
        memory: dict[str, Any],
    ) -> Iterator[Action]:
        """Request the cheapest on-demand machine in the checkpoint's place, or else elsewhere.

        Where all have just been refused, a spot machine is better than none, though it may be taken too late.
        """
        here, refused = zones[now.zone].place, memory.get("refused_on_demand", {})
        shown = set(view.markets)
        able = [
            one for one in zones if one in shown and refused.get(str(one), LONG_AGO_S) <= view.now_s - self.retry_s
        ]
        if able:
            usd = {one: view.on_demand_price(one) or math.inf for one in able}
            market = min(able, key=lambda one: (one.place != here, usd[one], one))
            yield Request(market, on_demand=True, job=job.job_id)
        elif now.held == NOTHING and own["can_save"]:
            open_zones = np.flatnonzero(now.since_refused_s > 0.0).tolist()
            if open_zones:
                zone = min(open_zones, key=lambda one: (float(now.spot_usd[one]), one))
                yield self._spot(view, job, zones, zone, now, own)

    def _answer(self, now: ZonesNow, own: dict[str, Any], zones: Sequence[Market], memory: dict[str, Any]) -> int:
        if not own["can_save"]:
            # A job without checkpoints is not put on a machine that can be revoked.
            return GO_ON_DEMAND
        if self.rule is DeadlineRule.TABLE:
            table = table_for(self._question(own, zones, memory))
            return by_table(table.costs, table.problem.task, now)
        task = problem_for(self._question(own, zones, memory)).task
        return greedy(task, now) if self.rule is DeadlineRule.GREEDY else next_cheapest(task, now)

    def _begin(self, view: View, job: JobView, memory: dict[str, Any]) -> dict[str, Any]:
        """What does not change for a job: its zones, and their expected prices and times."""
        known = [market for market in view.markets if view.on_demand_price(market) is not None]
        able = [market for market in known if view.steps_per_s(job.job, market) > 0]
        if not able:
            raise InputError(
                f"no market with a known on-demand price can run job {job.job.name}; policy {self.name} needs one "
                "as the way out"
            )
        mean = {market: view.mean_price(market, DAY_S) for market in able}
        hours = {market: _hours(view, job.job, market, job.steps_left) for market in able}
        vcpus = view.machine(able[0]).vcpus
        restart_s = self.start_s + job.job.restore_s(vcpus)
        deadline_s = self.deadline_s
        if math.isinf(deadline_s):
            longest_s = memory.setdefault("longest_h", _longest_h(view)) * HOUR_S
            deadline_s = max(self.times_work * longest_s, longest_s + _DEFAULT_STARTS * restart_s)
        left_s = deadline_s - (view.now_s - memory["began_s"])
        in_time = [market for market in able if hours[market] * HOUR_S + 2.0 * restart_s <= left_s]
        if not in_time:
            raise InputError(
                f"job {job.job.name} cannot be done in {_in_words(left_s)}: on the fastest machine it takes "
                f"{_in_words(min(hours.values()) * HOUR_S)}, and a start {restart_s / 60:.0f} min"
            )
        best = min(in_time, key=lambda market: (mean[market] * hours[market], market))
        alike = [market for market in in_time if math.isclose(hours[market], hours[best], rel_tol=1e-6)]
        if self.rule is DeadlineRule.PROGRESS:
            alike = [best]
        # In the order of the view, so that ties are broken as without a limit.
        cheapest = {best, *sorted(alike, key=lambda market: (mean[market], market))[:_MOST_ZONES]}
        alike = [market for market in alike if market in cheapest]
        checkpoint = job.job.checkpoint
        listed = [view.on_demand_price(market) or math.inf for market in alike]
        return {
            "zones": [[getattr(market, name) for name in MARKET_FIELDS] for market in alike],
            "spot_usd": [mean[market] for market in alike],
            "on_demand_usd": min(listed),
            "work_h": hours[best],
            "deadline_h": left_s / HOUR_S,
            "ends_s": memory["began_s"] + deadline_s,
            "restart_s": restart_s,
            "begins_s": view.now_s,
            "can_save": checkpoint is not None,
            "checkpoint_bytes": job.checkpoint_bytes,
            "bucket": list(job.job.bucket.place) if job.job.bucket else None,
            "zone": alike.index(best),
            "fell_s": view.now_s,
        }

    def _now(
        self,
        view: View,
        job: JobView,
        later_steps: float,
        memory: dict[str, Any],
        own: dict[str, Any],
        zones: Sequence[Market],
        leases: Sequence[LeaseView],
    ) -> ZonesNow:
        vcpus = view.machine(zones[0]).vcpus
        place = zones[own["zone"]].place
        save_s = job.job.save_s(vcpus, place)
        rate = view.steps_per_s(job.job, zones[0])
        left_s = own["ends_s"] - view.now_s
        if later_steps:
            left_s -= later_steps / rate + save_s + own["restart_s"]
        # Of a job that is saved as it trains, a save may be under way as well.
        to_do_s = max(job.steps_left - later_steps, 0.0) / rate + (
            2.0 * save_s if saves_while_training(job.job) else save_s
        )
        if save_s > view.billing.notice_s:
            # Steps that cannot be saved within the notice are to be done again.
            to_do_s += (job.steps_done - job.steps_saved) / rate + self.look_every_s
        spot = next((lease for lease in leases if not lease.on_demand), None)
        if spot is not None:
            self._saw(memory, spot.market, view.now_s, is_up=True)
        held = SPOT if spot else ON_DEMAND if leases else NOTHING
        if spot is not None:
            own["zone"] = zones.index(spot.market)
            own["lease"] = spot.lease_id
        elif "lease" in own:
            last = view.lease(own.pop("lease"))
            own["fell_s"] = view.now_s
            if last.state is LeaseState.REVOKED or math.isfinite(last.revoke_at_s):
                own["fell_place"] = place_numbers([market.place for market in zones])[own["zone"]]
                memory["refused"][str(last.market)] = view.now_s
                self._saw(memory, last.market, view.now_s, is_up=False)
        since_s = spot.started_s if spot is not None else own["fell_s"]
        # A market that refused a moment ago is not asked now, nor is one that the view does not show, because
        # another policy around this one backs off from it.
        times_s = [memory["refused"].get(str(one), LONG_AGO_S) for one in zones]
        shown = set(view.markets)
        refused = [
            time_s if one in shown and time_s <= view.now_s - self.retry_s else view.now_s
            for one, time_s in zip(zones, times_s, strict=True)
        ]
        return ZonesNow(
            left_s,
            left_s - to_do_s,
            self.look_every_s,
            np.array([view.price(market) for market in zones]),
            own["zone"],
            held,
            view.now_s - since_s,
            view.now_s - np.array(refused),
            view.now_s - own.get("asked_s", LONG_AGO_S) >= self.ask_every_s,
            job.restores == 0,
            own.get("fell_place", -1),
            bool(own.get("was_safety")),
        )

    def _question(self, own: dict[str, Any], zones: Sequence[Market], memory: dict[str, Any]) -> Question:
        models = [self._model(market, own, memory) for market in zones]
        return Question(
            tuple(zones),
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
        )

    def _saw(self, memory: dict[str, Any], market: Market, now_s: float, *, is_up: bool) -> None:
        """Keep what a request or a held machine shows of a market, one look at a time."""
        if math.isfinite(self.learn_every_s):
            looks = memory.setdefault("seen", {}).setdefault(str(market), [])
            if not looks or looks[-1][0] < now_s:
                looks.append([now_s, int(is_up)])

    def _model(self, market: Market, own: dict[str, Any], memory: dict[str, Any]) -> SpellModel:
        """The model of a market, with what the run had seen of it when it last learnt."""
        model = self.models.of(market)
        seen = memory.get("seen", {}).get(str(market), ())
        looks = [look for look in seen if look[0] <= own.get("learnt_s", -math.inf)]
        if len(looks) < 2:
            return model
        times_s, up = np.array(looks).T
        return updated(model, spells_of_probes(times_s, up > 0, _LONGEST_LOOKS * self.look_every_s))


def _in_words(duration_s: float) -> str:
    return f"{duration_s / HOUR_S:.1f} h" if duration_s >= HOUR_S else f"{duration_s / 60:.0f} min"


def _hours(view: View, job: Job, market: Market, steps: float) -> float:
    """Hours of work of some steps on one machine of a market."""
    return steps / view.steps_per_s(job, market) / HOUR_S


def _longest_h(view: View) -> float:
    """Hours of work of the longest job, each on the machine with the least cost of a step at list prices."""
    found = []
    for job in view.jobs:
        prices = [
            (price / rate, _hours(view, job.job, market, job.job.steps))
            for market in view.markets
            if (rate := view.steps_per_s(job.job, market)) > 0
            and (price := view.on_demand_price(market)) is not None
        ]
        found.append(min(prices, default=(0.0, 0.0))[1])
    return max(found)
