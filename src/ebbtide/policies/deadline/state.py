"""State of a job with a deadline at one moment, for its rule: from the view and the policy's memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ebbtide.base.compiled_records import LONG_AGO_S, NOTHING, ON_DEMAND, SPOT, ZonesNow
from ebbtide.jobs.checkpoint_interval import saves_while_training
from ebbtide.market.markets import Market
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.deadline.costs import place_numbers
from ebbtide.policies.deadline.gangs import (
    Gang,
    coming_leases,
    gangs_of,
    largest_within,
    note_refusal,
    refused_s,
    steady_leases,
    taken_among,
)


def most_usd_per_hour(own: dict[str, Any]) -> float:
    """The price above which no spot machine is held, USD per hour: that of an on-demand machine.

    Args:
        own: What the policy remembers of the job.
    """
    return float(own["on_demand_usd"] / gangs_of(own)[0].machines)


@dataclass(frozen=True)
class JobMoments:
    """Makes the moments of a policy's jobs, and keeps in its memory what they show.

    Attributes:
        memory: What the policy remembers of all jobs.
        look_every_s: Seconds from one decision to the next.
        ask_every_s: Seconds between requests to other zones while a spot machine is held.
        retry_s: Seconds after which a market that has refused is asked again.
        learns: Whether what is seen of markets is kept for their models.
    """

    memory: dict[str, Any]
    look_every_s: float
    ask_every_s: float
    retry_s: float
    learns: bool

    def of(self, view: View, job: JobView, later_steps: float, own: dict[str, Any]) -> ZonesNow:
        """State of a job and its zones now; changes since the last look are noted in the memory.

        Args:
            view: What the policy sees.
            job: A job whose machines have all booted.
            later_steps: Steps that it is to do later, after another start; time is reserved for them.
            own: What the policy remembers of the job.
        """
        gangs, leases = gangs_of(own), steady_leases(view, job)
        left_s, to_do_s = self._times(view, job, later_steps, own, gangs)
        spot = [lease for lease in leases if not lease.on_demand]
        if len(leases) < job.job.least_machines:
            # What is left of a gang does not work.
            leases, spot = [], []
        held = SPOT if spot else ON_DEMAND if leases else NOTHING
        since_s = self._note_held(view, own, gangs, spot)
        # A market that refused a moment ago is not asked now, nor is one that costs more than on demand, nor one
        # that the view does not show, because another policy around this one backs off from it.
        times_s = [refused_s(self.memory["refused"], gangs, gang) for gang in gangs]
        most_usd = most_usd_per_hour(own)
        shown = {market for market in view.markets if view.price(market) <= most_usd}
        refused = [
            time_s if gang.market in shown and time_s <= view.now_s - self.retry_s else view.now_s
            for gang, time_s in zip(gangs, times_s, strict=True)
        ]
        watched = own.get("watched", -1)
        return ZonesNow(
            left_s,
            left_s - to_do_s,
            self.look_every_s,
            np.array([view.price(gang.market) * gang.machines for gang in gangs]),
            own["zone"],
            held,
            view.now_s - since_s,
            view.now_s - np.array(refused),
            view.now_s - own.get("asked_s", LONG_AGO_S) >= self.ask_every_s,
            job.restores == 0,
            own.get("fell_place", -1),
            bool(own.get("was_safety")),
            watched,
            view.now_s - own["up_since_s"] if watched >= 0 else 0.0,
        )

    def refuse(self, view: View, market: Market) -> None:
        """Keep that a market has just refused a machine, or one of those that were to work as one."""
        noted = False
        for job_id, own in self.memory["jobs"].items():
            if own.get("asked_market") != str(market):
                continue
            mine = {*steady_leases(view, view.jobs[int(job_id)]), *coming_leases(view, own)}
            given = sum(lease.market == market and not lease.on_demand for lease in mine)
            if given < own["asked"]:
                # What came of a gang is paid for though it is given back; where others work, there is time.
                waits = own["asked"] > 1 and (given > 0 or bool(view.jobs[int(job_id)].leases))
                self._gone(gangs_of(own), market, given, view.now_s, self._longer_s if waits else 0.0)
                noted = True
        if not noted:
            self._gone((Gang(market),), market, 0, view.now_s)

    def saw(self, gang: Gang, now_s: float, *, is_up: bool) -> None:
        """Keep what a request or held machines show of a market, one look at a time."""
        if self.learns:
            looks = self.memory.setdefault("seen", {}).setdefault(str(gang), [])
            if not looks or looks[-1][0] < now_s:
                looks.append([now_s, int(is_up)])

    @property
    def _longer_s(self) -> float:
        return max(self.look_every_s - self.retry_s, 0.0)

    def _gone(
        self, gangs: tuple[Gang, ...], market: Market, given: int, now_s: float, waits_s: float = 0.0
    ) -> None:
        note_refusal(self.memory["refused"], gangs, market, given, now_s, waits_s)
        for gang in gangs:
            if gang.market == market and gang.machines > given:
                self.saw(gang, now_s, is_up=False)

    def _times(
        self, view: View, job: JobView, later_steps: float, own: dict[str, Any], gangs: tuple[Gang, ...]
    ) -> tuple[float, float]:
        """Seconds until the deadline, and of work on all machines that are asked for at most."""
        first = gangs[0]
        vcpus = view.machine(first.market).vcpus
        save_s = job.job.save_s(vcpus, gangs[own["zone"]].market.place)
        rate = view.steps_per_s(job.job, first.market) * job.job.speedup_of(max(gang.machines for gang in gangs))
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
        return left_s, to_do_s

    def _note_held(self, view: View, own: dict[str, Any], gangs: tuple[Gang, ...], spot: list[LeaseView]) -> float:
        """Keep which machines are held, and which were taken since; since when there are so many, or none.

        Returns:
            Seconds since 1970.
        """
        before = own.pop("leases", None) or ([own.pop("lease")] if "lease" in own else [])
        taken = taken_among(view, before)
        if before and taken:
            market = view.lease(before[0]).market
            self._gone(gangs, market, len(before) - taken, view.now_s)
        kept = bool(before) and bool(spot) and view.lease(before[0]).market == spot[0].market
        if spot:
            market = spot[0].market
            own["zone"] = largest_within(gangs, market, len(spot))
            own["leases"] = [lease.lease_id for lease in spot]
            for gang in gangs:
                if gang.market == market and gang.machines <= len(spot):
                    self.saw(gang, view.now_s, is_up=True)
            begun_s = sorted(lease.started_s for lease in spot)
            since_s: float = begun_s[min(gangs[own["zone"]].machines, len(spot)) - 1]
            if "asked_up_s" in own and str(market) == own["asked_market"] and not kept:
                # As old as it was taken for: what was not seen before is not young for that.
                own["up_since_s"] = own.pop("asked_up_s")
            return min(since_s, float(own.get("up_since_s", math.inf)))
        if before:
            own["fell_s"] = view.now_s
            own.pop("up_since_s", None)
            if taken:
                own["fell_place"] = place_numbers([gang.market.place for gang in gangs])[own["zone"]]
        found: float = own["fell_s"]
        return found
