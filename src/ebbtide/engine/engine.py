"""The engine: drives one policy over one provider, from its first decision to the last job's end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from typing import Any

import numpy as np

from ebbtide.engine.accounts import Accounts
from ebbtide.engine.decisions import HELD, Decision, decided
from ebbtide.engine.ledger import Ledger
from ebbtide.engine.outcome import Outcome
from ebbtide.engine.policy_answers import about_of, answers_of, described, mistake, problem_with, settled
from ebbtide.engine.provider import MeasuresSpeed, Provider, TellsTogether
from ebbtide.engine.timeline import Moment, Timeline
from ebbtide.engine.view import EngineView
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.checkpoint_interval import steps_per_s_with_saves
from ebbtide.jobs.job import Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.billing import Billing, LeaseEnding
from ebbtide.market.catalogue import Catalogue, InstanceType, default_catalogue
from ebbtide.market.egress import EgressPrices
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market, Place
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import (
    Action,
    Assign,
    GiveUp,
    Hold,
    Release,
    Request,
    Save,
    Stop,
    WakeAt,
    WakeAtStep,
)
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy, check_fits, checked_policy

# A policy that answers its own events without time passing would never end.
_MAX_DECISIONS_AT_ONE_TIME = 10_000

_ALWAYS = frozenset(
    {
        Wake.START,
        Wake.RUNNING,
        Wake.LAUNCH_FAILED,
        Wake.NOTICE,
        Wake.ENDED,
        Wake.MILESTONE,
        Wake.FINISHED,
        Wake.TIMER,
    }
)


class Engine:
    """Engine of one run of a policy.

    Args:
        policy: The policy that decides what is rented.
        jobs: The jobs to be done, in the order of their ids.
        provider: Rents the machines and runs the training on them.
        billing: The rule by which spot leases are charged; names the rule of on-demand leases.
        catalogue: Instance types and list prices; by default those that ship with Ebbtide.
        egress: Prices of data that leave a region.
        goals: Goals of the jobs, which the policy sees; None: none is given.
        seed: Seed of the policy's random numbers.
        record: Whether a timeline of the run is kept, and every decision with its reason.
        keep: Called before each wait for events, so that the state can be stored.
        interruptible: Passes on the answers of the policy until it is interrupted.

    Raises:
        PolicyError: The policy lacks what every policy has; later, when it raises an exception or asks for what
            cannot be.
    """

    def __init__(
        self,
        policy: Policy,
        jobs: Sequence[Job],
        provider: Provider,
        billing: Billing,
        *,
        catalogue: Catalogue | None = None,
        egress: EgressPrices | None = None,
        goals: Goals | None = None,
        seed: int = 0,
        record: bool = False,
        keep: Callable[[Engine], None] | None = None,
        interruptible: Callable[[Iterator[Action]], Iterator[Action]] | None = None,
    ) -> None:
        self.policy = checked_policy(policy)
        check_fits(self.policy, jobs)
        self.billing = billing
        self.goals = goals or Goals()
        # Its own copies: whatever a policy does to the jobs that it is shown, the books do not change.
        self.jobs = [JobProgress(job_id, job.model_copy(deep=True)) for job_id, job in enumerate(jobs)]
        self.events: Sequence[Event] = ()
        self.memory: dict[str, Any] = {}
        self.timeline = Timeline()
        self.made: list[Decision] = []
        # By job id.
        self._last_made: dict[int, Decision] = {}
        self._provider = provider
        self._catalogue = catalogue or default_catalogue()
        self._accounts = Accounts(provider.prices, billing, self._catalogue, egress or EgressPrices())
        self._seed = seed
        self._record = record
        self._leases: list[Lease] = []
        self._open: dict[int, Lease] = {}
        # The job that each lease was requested for, and the other way round.
        self._for_job: dict[int, int] = {}
        self._coming: dict[int, set[int]] = {}
        # Ids of the jobs that are assigned to each lease.
        self._jobs_on: dict[int, set[int]] = {}
        self._kept: set[int] = set()
        self._grown: set[int] = set()
        self._draining: dict[int, Lease] = {}
        self._timers: list[tuple[float, int, Wake, int]] = []
        self._decisions = 0
        # Of all jobs together, for the timeline; None: it may have changed, which requests do not do.
        self._steps_done: float | None = None
        self._timers_set = 0
        self._unfinished = {job.job_id for job in self.jobs}
        # Declared steps per second, by job id, cloud and instance type.
        self._rates: dict[tuple[int, str, str, str, str], float] = {}
        self._speeds = provider if isinstance(provider, MeasuresSpeed) else None
        self._together = provider if isinstance(provider, TellsTogether) else None
        # What policies are shown: of this run alone, so that no policy can change what another one is shown.
        self._shown = [job.model_copy(deep=True) for job in jobs]
        self._ids = {id(job): job_id for job_id, job in enumerate(self._shown)}
        self._gave_up = ""
        self._tells_of_drained = False
        self._wakes = _ALWAYS | policy.wakes_on
        self._known_markets: set[Market] = set()
        self._keep = keep
        self._interruptible = interruptible
        self._asks = False
        self._started_s: float | None = None
        self.view = EngineView(self, self._shown, replace(billing))

    def run(self) -> Outcome:
        """Run to the end of the last job, or of the provider's time; continues where a snapshot was restored."""
        goes_on = self._started_s is not None
        start_s = self._provider.now_s if self._started_s is None else self._started_s
        self._started_s = start_s
        self._provider.start(self.jobs, watch_prices=Wake.PRICE in self._wakes)
        try:
            self._ask([Event(Wake.TIMER if goes_on else Wake.START, self.now_s)])
            decided_at, decided = start_s, 0
            while self._unfinished and not (self._gave_up and not self._open):
                if self._keep is not None:
                    self._keep(self)
                events = self._next_events()
                if events is None:
                    break
                wanted = [event for event in events if event.wake in self._wakes]
                # Once a run is given up, nobody is to rent for it any more.
                if wanted and not self._gave_up:
                    now_s = self.now_s
                    decided = decided + 1 if now_s == decided_at else 0
                    decided_at = now_s
                    if decided > _MAX_DECISIONS_AT_ONE_TIME:
                        raise mistake(self.policy, self.view, "it answers itself without end at one time")
                    self._ask(wanted)
            return self._outcome(start_s)
        finally:
            self.end_all()
            self._provider.close()

    # What the policy sees, through its view.

    @property
    def now_s(self) -> float:
        return self._provider.now_s

    @property
    def markets(self) -> Sequence[Market]:
        return self._provider.markets

    def price(self, market: Market) -> float:
        return self._provider.prices(market).at(self.now_s)

    def on_demand_price(self, market: Market) -> float | None:
        return self._accounts.on_demand_price(market, self.now_s)

    def past_prices(self, market: Market, duration_s: float) -> tuple[Floats, Floats]:
        # A price set at this very moment is known now.
        end_s = math.nextafter(self.now_s, math.inf)
        return self._provider.prices(market).between(self.now_s - duration_s, end_s)

    def mean_price(self, market: Market, duration_s: float) -> float:
        mean = self._provider.prices(market).mean(self.now_s - duration_s, self.now_s)
        return self.price(market) if math.isnan(mean) else mean

    @property
    def leases(self) -> Sequence[Lease]:
        return list(self._open.values())

    def lease(self, lease_id: int) -> Lease:
        if not 0 <= lease_id < len(self._leases):
            raise LookupError(f"{lease_id} is no lease; there have been {len(self._leases)}, with ids from 0")
        return self._leases[lease_id]

    def leases_of(self, job_id: int) -> Sequence[Lease]:
        if not 0 <= job_id < len(self.jobs):
            raise LookupError(f"{job_id} is no job; there are {len(self.jobs)}, with ids from 0")
        assigned = self.jobs[job_id].leases
        coming = [self._open[lease] for lease in sorted(self._coming.get(job_id, ())) if lease in self._open]
        return [*assigned, *(lease for lease in coming if lease not in assigned)]

    def steps_per_s(self, job: Job, market: Market) -> float:
        job_id = self._ids.get(id(job))
        if job_id is None:
            # None of the run's jobs.
            return steps_per_s_with_saves(job, market, self._catalogue)
        key = (job_id, market.cloud, market.region, market.instance_type, market.product)
        if key not in self._rates:
            own = self.jobs[job_id].job
            if self._speeds is None:
                self._rates[key] = steps_per_s_with_saves(own, market, self._catalogue)
            else:
                # What is measured has the saves in it.
                self._rates[key] = own.steps_per_s(market, self._catalogue)
        rate = self._rates[key]
        return rate if self._speeds is None else self._speeds.steps_per_s(job_id, market, rate)

    def seen_steps_per_s(self, job: Job, market: Market) -> float | None:
        job_id = self._ids.get(id(job))
        if job_id is None or self._speeds is None:
            return self.steps_per_s(job, market)
        return self._speeds.measured_steps_per_s(job_id, market)

    def machine(self, market: Market) -> InstanceType:
        return self._catalogue.machine_of(market)

    def egress_usd(self, size_bytes: int, source: Place, destination: Place) -> float:
        return self._accounts.egress.usd(size_bytes, source, destination)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        return self._provider.measured(job_id)

    @property
    def spent_usd(self) -> float:
        return self._accounts.spent_usd(self._open.values(), self.now_s)

    def spent_with(self, open_usd: Iterable[float]) -> float:
        """Total spent so far, USD, from the given costs of the open leases."""
        return math.fsum([self._accounts.ledger.total_usd, *open_usd])

    @property
    def open_usd(self) -> dict[int, float]:
        """Cost of each open lease if it were released now, USD by lease id."""
        return self._accounts.open_usd(self._open.values(), self.now_s)

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng([self._seed, self._decisions])

    # Events in, actions out.

    def _next_events(self) -> list[Event] | None:
        """Wait for the next events; None when no more can come."""
        provider = self._provider
        while True:
            until_s = self._timers[0][0] if self._timers else math.inf
            if until_s <= provider.now_s:
                return self._due_timers()
            event = provider.next_event(until_s)
            if event is not None:
                self._steps_done = None
                events = [event] if self._together is None else [event, *self._together.burst()]
                for each in events:
                    self._note(each)
                return events
            if provider.is_over or not self._timers:
                return None

    def _due_timers(self) -> list[Event]:
        events = []
        while self._timers and self._timers[0][0] <= self.now_s:
            _, _, wake, lease_id = heappop(self._timers)
            if wake is Wake.TIMER:
                events.append(Event(Wake.TIMER, self.now_s))
            elif self._leases[lease_id].is_open:
                events.append(Event(Wake.PERIOD_END, self.now_s, lease_id=lease_id))
                self._set_period_timer(self._leases[lease_id])
        return events

    def _note(self, event: Event) -> None:
        """Keep the engine's own books before the policy is asked."""
        wake = event.wake
        if event.lease_id >= 0:
            lease = self._leases[event.lease_id]
            if wake is Wake.RUNNING:
                self._booted(lease)
            elif wake is Wake.LAUNCH_FAILED:
                self._open.pop(lease.lease_id, None)
                self._forget(lease)
            elif wake is Wake.ENDED:
                self._settle(lease)
        elif wake is Wake.FINISHED:
            self._job_done(event.job_id)
        if self._record:
            self._remember(wake, event.lease_id, event.job_id, event.detail)
        self._end_drained()

    def _booted(self, lease: Lease) -> None:
        job_id = self._for_job.get(lease.lease_id)
        if job_id is not None and not self.jobs[job_id].is_finished:
            self._put_on(job_id, [*self.jobs[job_id].leases, lease])
            self._grown.add(job_id)
        if Wake.PERIOD_END in self._wakes:
            self._set_period_timer(lease)

    def _ask(self, events: Sequence[Event]) -> None:
        self._decisions += 1
        self.events = events
        self._steps_done = None
        self._provider.refresh()
        self._accounts.enter_transfers(self.jobs, self._leases)
        self._asks = True
        # Once a call, and only where something is decided: it costs a look at every open lease.
        spent_usd = cache(self._spent_if_known)
        answers = answers_of(self.policy, self.view)
        for answer in answers if self._interruptible is None else self._interruptible(answers):
            action = settled(answer)
            self._check(action)
            made = decided(self.view, self._decisions, action, spent_usd) if self._record else None
            before = len(self._leases)
            self._do(action)
            if made is not None:
                self._keep_decision(made, before)
        self._asks = False
        # Only now: the policy may have put the job on the new machine alone.
        for job_id in sorted(self._grown):
            self._assign(job_id, self.jobs[job_id].leases)
        self._end_drained()

    def _spent_if_known(self) -> float:
        """Total spent, USD; NaN where prices are not known at the moment."""
        try:
            return self.spent_usd
        except (CloudError, InputError):
            return math.nan

    def _check(self, action: Action) -> None:
        """Raise `PolicyError` for an action that cannot be done."""
        # A clock may have been set back since.
        began_s = self.now_s if self._started_s is None else min(self._started_s, self.now_s)
        problem = problem_with(
            action, jobs=len(self.jobs), leases=len(self._leases), open_machines=len(self._open), began_s=began_s
        )
        if not problem and isinstance(action, Request) and not self._knows(action.market):
            names = ", ".join(map(str, self.markets[:5]))
            problem = f"the market is none of the {len(self.markets)} that have a price now: {names}, ..."
        if problem:
            raise mistake(self.policy, self.view, f"{described(action)}: {problem}", about_of(action))

    def _knows(self, market: Market) -> bool:
        """Return whether a market has a price, or had one when the markets were last listed."""
        if market not in self._known_markets:
            self._known_markets = set(self.markets)
        return market in self._known_markets

    def _do(self, action: Action) -> None:
        if not isinstance(action, Request):
            self._steps_done = None
        match action:
            case Request():
                self._request(action)
            case Release(lease_id, save):
                self._release(self._leases[lease_id], save)
            case Assign(job, lease_ids):
                # What the policy says now stands over what its requests said.
                for lease_id in sorted(self._coming.get(job, ())):
                    self._requested_for(lease_id, None)
                self._assign(job, [self._leases[lease_id] for lease_id in lease_ids])
                for lease_id in lease_ids:
                    claimant = self._for_job.get(lease_id)
                    if claimant is not None and not self._has_room(lease_id, claimant):
                        self._requested_for(lease_id, None)
            case Save(job):
                self._provider.save(job)
            case Stop(job):
                self._provider.stop(job)
            case Hold():
                pass
            case GiveUp(reason):
                self._give_up(reason)
            case WakeAt(time_s):
                self._set_timer(time_s, Wake.TIMER)
            case WakeAtStep(job, step):
                self._provider.wake_at_step(job, step)

    def _keep_decision(self, made: Decision, leases_before: int) -> None:
        """Keep a decision; one to hold only where it is not the same as before."""
        if made.action == HELD:
            last = self._last_made.get(made.job_id)
            if not made.why or (last is not None and last.action == HELD and last.why == made.why):
                return
        requested = tuple(range(leases_before, len(self._leases)))
        self.keep_made([replace(made, lease_ids=requested) if requested else made])

    def keep_made(self, decisions: Iterable[Decision]) -> None:
        """Add decisions to those that are kept."""
        for decision in decisions:
            self.made.append(decision)
            self._last_made[decision.job_id] = decision

    @property
    def asks(self) -> bool:
        """True while the policy is being asked; read by other threads that see no progress."""
        return self._asks

    @property
    def gave_up(self) -> str:
        """Reason for ending the run before all jobs are done; empty: it is not being ended."""
        return self._gave_up

    @property
    def started_s(self) -> float:
        """Start of the run, seconds since 1970; the present time before the run has begun."""
        return self.now_s if self._started_s is None else self._started_s

    @property
    def ledger(self) -> Ledger:
        """Charges of the leases that have ended, refunds and egress."""
        return self._accounts.ledger

    @property
    def all_leases(self) -> Sequence[Lease]:
        """All of this run, by id."""
        return self._leases

    def resume(self) -> None:
        """After a run that was given up: continue with the unfinished jobs."""
        self._gave_up = ""
        # Machines are still being given back that the policy did not give back.
        self._tells_of_drained = bool(self._draining)

    def give_up(self, reason: str) -> None:
        """End the run from outside: save every job, give every machine back."""
        self._give_up(reason)

    def settle_again(self, lease: Lease) -> None:
        """Charge a lease anew whose machine ended in another way than it was charged for."""
        self._settle(lease)

    def settle_all_again(self) -> None:
        """Charge all ended spot leases by the prices that are known now: some may be published late."""
        for lease in self._leases:
            if lease.lease_id not in self._open and not lease.on_demand:
                self._accounts.settle_by_prices_now(lease, _ending_of(lease))

    def end_all(self) -> None:
        """Give every machine back now, saved or not."""
        for lease in list(self._open.values()):
            self._end(lease)

    def _give_up(self, reason: str) -> None:
        self._gave_up, self._steps_done = reason, None
        if self._record:
            self._remember("gave up", -1, -1, reason)
        for lease in list(self._open.values()):
            self._release(lease, save=True)

    def _request(self, request: Request) -> None:
        if request.on_demand and self.on_demand_price(request.market) is None:
            raise InputError(f"on-demand price of {request.market} is not known; it cannot be rented on demand")
        for _ in range(request.count):
            lease = Lease(
                len(self._leases),
                request.market,
                math.inf if request.on_demand else request.max_price_usd_per_hour,
                request.on_demand,
                self.now_s,
            )
            self._leases.append(lease)
            self._open[lease.lease_id] = lease
            self._requested_for(lease.lease_id, request.job)
            if request.keep:
                self._kept.add(lease.lease_id)
            if self._record:
                way = "on demand" if request.on_demand else f"max price {request.max_price_usd_per_hour:.4f}"
                self._remember("requested", lease.lease_id, -1, f"{request.market}, {way}")
            self._provider.launch(lease)

    def _assign(self, job_id: int, leases: list[Lease]) -> None:
        # One that is being given back ends as soon as no job is on it: none is put there again.
        leases = [lease for lease in leases if lease.is_open and lease.lease_id not in self._draining]
        job = self.jobs[job_id]
        for lease in leases:
            if not self._has_room(lease.lease_id, job_id):
                problem = f"the machine is full: job {job.job.name} does not fit beside others"
                raise mistake(self.policy, self.view, problem, f"lease {lease.lease_id}, {lease.market}")
        self._put_on(job_id, leases)
        self._grown.discard(job_id)
        self._provider.assign(job_id, leases)

    def _has_room(self, lease_id: int, job_id: int) -> bool:
        """Return whether a job fits on a machine beside the unfinished jobs there."""
        others = sorted(self._jobs_on.get(lease_id, set()) - {job_id})
        beside = sum(self.jobs[other].job.share for other in others if not self.jobs[other].is_finished)
        return beside + self.jobs[job_id].job.share <= 1 + 1e-9

    def _put_on(self, job_id: int, leases: list[Lease]) -> None:
        """Assign a job to these leases and no others, in the engine's own books."""
        job = self.jobs[job_id]
        for lease in job.leases:
            self._jobs_on[lease.lease_id].discard(job_id)
        job.leases = leases
        for lease in leases:
            self._jobs_on.setdefault(lease.lease_id, set()).add(job_id)

    def _requested_for(self, lease_id: int, job_id: int | None) -> None:
        """Note the job that a lease was requested for; None: it is for none, or no longer."""
        before = self._for_job.pop(lease_id, None)
        if before is not None:
            self._coming[before].discard(lease_id)
        if job_id is not None:
            self._for_job[lease_id] = job_id
            self._coming.setdefault(job_id, set()).add(lease_id)

    def _release(self, lease: Lease, save: bool) -> None:
        if not lease.is_open:
            return
        if not save or not self._provider.in_use(lease):
            self._end(lease)
            return
        if lease.lease_id in self._draining:
            return
        self._draining[lease.lease_id] = lease
        for job_id in sorted(self._jobs_on.get(lease.lease_id, ())):
            self._assign(job_id, [other for other in self.jobs[job_id].leases if other is not lease])

    def _end_drained(self) -> None:
        drained = [lease for lease in self._draining.values() if not self._provider.in_use(lease)]
        for lease in drained:
            self._end(lease)
        if drained and self._tells_of_drained:
            self._set_timer(self.now_s, Wake.TIMER)

    def _job_done(self, job_id: int) -> None:
        """Release the machines that were rented for the job alone."""
        # It may be told again after a restart.
        self._unfinished.discard(job_id)
        job = self.jobs[job_id]
        mine = {lease.lease_id for lease in job.leases} | self._coming.get(job_id, set())
        self._put_on(job_id, [])
        for lease_id in sorted(mine - self._kept):
            lease = self._leases[lease_id]
            if lease.is_open and not self._jobs_on.get(lease_id):
                self._end(lease)

    def _end(self, lease: Lease) -> None:
        """Give a machine back now; one that has ended by itself may not have been charged yet."""
        was_rented = lease.is_open
        if was_rented:
            self._provider.terminate(lease)
            self._steps_done = None
            if lease.is_open:
                return  # it is another controller's by now
        elif lease.lease_id not in self._open:
            return
        self._settle(lease)
        if self._record and was_rented:
            self._remember("released", lease.lease_id, -1, "")

    def _settle(self, lease: Lease) -> None:
        """Charge an ended lease and forget it.

        Who ended it is as it was in the end: a machine may have ended itself, or have been taken just before it
        was given back.
        """
        was_open = self._open.pop(lease.lease_id, None) is not None
        ending = _ending_of(lease)
        if was_open:
            self._accounts.settle(lease, ending)
        else:
            # Its end was refused at first, and came later.
            self._accounts.settle_anew(lease, ending)
        self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        self._requested_for(lease.lease_id, None)
        self._draining.pop(lease.lease_id, None)
        for job_id in self._jobs_on.pop(lease.lease_id, set()):
            job = self.jobs[job_id]
            job.leases = [other for other in job.leases if other is not lease]

    def _set_timer(self, time_s: float, wake: Wake, lease_id: int = -1) -> None:
        self._timers_set += 1
        heappush(self._timers, (max(time_s, self.now_s), self._timers_set, wake, lease_id))

    def _set_period_timer(self, lease: Lease) -> None:
        """Wake the policy shortly before the lease's next charge."""
        lead_s = getattr(self.policy, "period_lead_s", 0.0)
        period_s = self.billing.of(lease.market.cloud).period_s
        paid = math.floor((self.now_s + lead_s - lease.started_s) / period_s) + 1
        self._set_timer(lease.started_s + paid * period_s - lead_s, Wake.PERIOD_END, lease.lease_id)

    def _remember(self, what: str, lease_id: int, job_id: int, detail: str) -> None:
        if self._steps_done is None:
            self._provider.refresh()
            self._steps_done = sum(job.steps_done for job in self.jobs)
        self.timeline.add(Moment(self.now_s, str(what), lease_id, job_id, detail, self._steps_done))

    def _outcome(self, start_s: float) -> Outcome:
        finished = not self._unfinished
        self._provider.refresh()
        # As they stand now: ending what is still rented would count unsaved steps as lost.
        jobs = tuple(replace(job) for job in self.jobs)
        end_s = max(job.finished_s for job in self.jobs) if finished else self.now_s
        for lease in list(self._open.values()):
            self._end(lease)
        self._accounts.enter_transfers(self.jobs, self._leases)
        return Outcome(
            self.policy.name,
            start_s,
            end_s,
            finished,
            self._accounts.ledger.total_usd,
            self._accounts.ledger.refund_usd,
            sum(lease.state is LeaseState.REVOKED for lease in self._leases),
            sum(job.checkpoints for job in jobs),
            math.fsum(job.steps_lost for job in jobs),
            tuple(self._leases),
            jobs,
            self._accounts.ledger,
            self.timeline,
            self._decisions,
            self._gave_up,
            tuple(self.made),
        )


def run_policy(
    policy: Policy,
    jobs: Iterable[Job],
    provider: Provider,
    billing: Billing,
    *,
    catalogue: Catalogue | None = None,
    egress: EgressPrices | None = None,
    goals: Goals | None = None,
    seed: int = 0,
    record: bool = False,
) -> Outcome:
    """Run one policy once: see `Engine`."""
    engine = Engine(
        policy,
        list(jobs),
        provider,
        billing,
        catalogue=catalogue,
        egress=egress,
        goals=goals,
        seed=seed,
        record=record,
    )
    return engine.run()


def _ending_of(lease: Lease) -> LeaseEnding:
    return LeaseEnding.REVOKED if lease.state is LeaseState.REVOKED else LeaseEnding.RELEASED
