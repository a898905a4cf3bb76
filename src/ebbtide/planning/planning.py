"""Plan a sweep: the machines it would rent now, and its cost and duration in backtests on recent prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ebbtide.backtesting.backtest import backtest
from ebbtide.backtesting.summary import models_note
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle, hazard_of
from ebbtide.forecasts.capacity.drawing import drawn_availability
from ebbtide.forecasts.capacity.fitting import UP
from ebbtide.forecasts.capacity.models import SpellModels, default_spell_models, fit_market_spells
from ebbtide.forecasts.capacity.probes import probes_of_capacity
from ebbtide.forecasts.champions import read_models
from ebbtide.forecasts.hazard.chances import evidence_of
from ebbtide.forecasts.hazard.evidence import Evidence
from ebbtide.forecasts.hazard.model import Hazard
from ebbtide.forecasts.hazard.observations import observations_of_probes
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.checkpoint_interval import fits_notice, saved_periodically
from ebbtide.jobs.common_fields import Decides
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_files import measured
from ebbtide.jobs.job_list import OneJob
from ebbtide.market.availability import Availability
from ebbtide.market.billing import Billing, Refund, billing_preset
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.lifetimes import Lifetimes, lifetimes
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.planning.feasibility import Search, cost_usd, duration_h, is_kept
from ebbtide.planning.plan import Estimate, Feasibility, Plan, PlanSpread, Quote
from ebbtide.planning.plan_places import PlanPlace, plan_places
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.baselines import CheapestSpot, OnDemand
from ebbtide.policies.deadline.gangs import sizes_of
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.for_job import policy_with
from ebbtide.policies.registry import DEFAULT_NAME
from ebbtide.policies.spottune.offers import Offer
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.stand_in_curves import stand_in_curves
from ebbtide.replay.starts import draw_starts

# Seconds from the request for a machine until it trains.
_START_S = 120.0

# Seconds between the probes into which recorded capacity is converted.
_PROBED_S = 600.0

# Probability of revocation within the hour from which the plan explains why such a market comes first.
_OFTEN = 0.2

# Minimum probability that a trial without checkpoints ends on its first machine.
_LEAST_CHANCE = 0.5


def plan(
    sweep: OneJob,
    prices: PriceHistory,
    *,
    runs: int = 30,
    days: float = 14.0,
    seed: int = 0,
    catalogue: Catalogue | None = None,
    availability: Availability | None = None,
    spells: SpellModels | None = None,
    models: ModelBundle | str | Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_infeasible: Callable[[], None] | None = None,
) -> Plan:
    """Plan a sweep on the newest prices.

    Args:
        sweep: The sweep to plan.
        prices: Price history up to now.
        runs: Number of backtests on the last days.
        days: Length of the history used, days.
        seed: Seed of the start times.
        catalogue: Instance types and their list prices; None: the built-in ones.
        availability: Recorded capacity, if capacity decides; None: drawn from the models.
        spells: Models of how capacity comes and goes; None: those of the bundle, else of the recorded capacity,
            else the default models.
        models: The bundle of learnt models for the policy, the path of its folder, or `champion`. The backtests
            may use days that it was trained on, since they estimate what the policy would do now.
        on_progress: Called with the number of backtests done, and their total.
        on_infeasible: Called once if budget and deadline are infeasible, before the search for feasible ones.

    Raises:
        InputError: No market is allowed or can run the sweep, the history is too short, or trials cannot be
            checkpointed and are longer than their machines are likely to live.
    """
    known = catalogue or default_catalogue()
    bundle = read_models(models)
    sweep = sweep if bundle is None else measured(sweep, bundle.speeds)
    allowed = sweep.allowed(prices)
    billing = billing_preset(sweep.billing)
    quotes = _quotes(allowed, known)
    trials = len(sweep.trials())
    if not sweep.is_measured:
        note = (
            "the speed of a trial is not measured: these are prices an hour, and how long it takes is not known; "
            "train some steps on a machine and put the rate into steps_per_hour"
        )
        return Plan(sweep.name, trials, allowed.end_s, quotes, (), None, (note,))
    jobs = sweep.jobs()
    recent = allowed.window(max(allowed.end_s - days * DAY_S, allowed.start_s), allowed.end_s)
    notes: list[str] = []
    by_capacity = sweep.decides is Decides.CAPACITY
    recorded = availability
    learnt = None if bundle is None else bundle.spells
    capacity = spells or learnt or _spells_of(availability, sizes_of(jobs[0]))
    if sweep.checkpoint is not None:
        jobs, notes = _saved_in_time(jobs, recent, billing, known, capacity if by_capacity else None)
    elif not by_capacity:
        check_lives(jobs[0], recent, billing, known)
    policy = _unlimited(sweep, capacity, bundle)
    # If capacity decides, there is no max price to choose: the plan shows only quotes.
    offers = () if by_capacity else _offers_now(policy, jobs, allowed, billing, known)
    if by_capacity and availability is None:
        machines = sum(job.most_machines for job in jobs)
        availability = drawn_availability(recent, capacity, machines, seed)
        notes.append(
            "how capacity comes and goes is drawn from models of its spells; with --availability it is as recorded"
        )
    replays = _Replays(
        tuple(jobs),
        recent,
        billing,
        known,
        draw_starts(jobs[0], recent, runs, seed, known),
        seed,
        availability,
        tuple(stand_in_curves(jobs, maximise=policy.maximise)),
    )

    def under(deadline_h: float | None) -> Ebbtide:
        return _unlimited(sweep.model_copy(update={"deadline_h": deadline_h}), capacity, bundle)

    fastest = _fastest(jobs[0], recent, known)
    search = Search(fastest, under, replays.some, runs)
    report_infeasible = on_infeasible or (lambda: None)
    try:
        estimate, outcomes = _estimate(sweep, policy, replays, on_progress)
        search.knows(sweep.deadline_h, outcomes)
    except InputError:
        # The policy refuses an impossible deadline.
        if sweep.deadline_h is None:
            raise
        report_infeasible()
        kept_h = search.least_deadline()
        if kept_h is None:
            raise
        estimate, outcomes = _estimate(sweep, under(kept_h), replays, None)
        search.knows(kept_h, outcomes)
        notes.append(f"cost and time are for the shortest feasible deadline, {kept_h:g} h")
    late = not is_kept([duration_h(outcome) for outcome in outcomes], sweep.deadline_h)
    if late or not is_kept([cost_usd(outcome) for outcome in outcomes], sweep.budget_usd):
        report_infeasible()
        feasibility = search.least(sweep.deadline_h, late=late, needs_deadline=by_capacity)
    else:
        feasibility = Feasibility(True, *fastest)
    notes += _offer_notes(offers, billing)
    notes += [models_note(bundle.versions)] if bundle else []
    places: tuple[PlanPlace, ...] = ()
    if by_capacity:
        hazard = hazard_of(bundle)
        places = plan_places(
            jobs[0],
            allowed,
            known,
            capacity,
            hazard=hazard,
            evidence=_evidence_of(hazard, recorded, allowed.end_s),
            deadline_h=sweep.deadline_h,
            start_s=_START_S,
            outcomes=outcomes,
        )
    return Plan(sweep.name, trials, allowed.end_s, quotes, offers, estimate, tuple(notes), feasibility, places)


def _spells_of(availability: Availability | None, sizes: Sequence[int]) -> SpellModels:
    """Fit models to recorded capacity, also of several machines at once; without a record, the default models."""
    if availability is None:
        return default_spell_models()
    several = {
        size: fit_market_spells(probes_of_capacity(availability, _PROBED_S, size)).by_market
        for size in sizes
        if size > 1
    }
    return replace(fit_market_spells(probes_of_capacity(availability, _PROBED_S)), of_several=several)


def _evidence_of(hazard: Hazard, recorded: Availability | None, now_s: float) -> Evidence:
    """Return what a record shows of capacity until now; capacity that is only drawn shows nothing."""
    observations = [] if recorded is None else observations_of_probes(probes_of_capacity(recorded, _PROBED_S))
    return evidence_of(hazard, observations, now_s)


def _unlimited(sweep: OneJob, spells: SpellModels, bundle: ModelBundle | None) -> Ebbtide:
    """Make the default policy for a sweep without its budget: the plan finds out if that suffices."""
    found = policy_with(sweep.model_copy(update={"budget_usd": None}), DEFAULT_NAME, {}, spells, bundle)
    assert isinstance(found, Ebbtide)
    return found


@dataclass(frozen=True)
class _Replays:
    """Backtests of one sweep under different policies, all from the same starts."""

    jobs: tuple[Job, ...]
    prices: PriceHistory
    billing: Billing
    catalogue: Catalogue
    starts_s: Sequence[float]
    seed: int
    availability: Availability | None
    curves: tuple[Curve, ...]

    def some(self, policy: Policy, numbers: Sequence[int]) -> Iterator[Outcome]:
        """Replay a policy from some of the starts, each only when it is consumed."""
        for number in numbers:
            yield self.of(policy, starts_s=[self.starts_s[number]])[0]

    def of(
        self,
        policy: Policy,
        jobs: Sequence[Job] | None = None,
        starts_s: Sequence[float] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Sequence[Outcome]:
        """Replay a policy.

        Args:
            policy: The policy to replay.
            jobs: Jobs in place of the sweep's, without metrics.
            starts_s: Starts in place of all, seconds since 1970.
            on_progress: Called with the number of backtests done.
        """
        result = backtest(
            jobs or self.jobs,
            [policy],
            self.prices,
            billing=self.billing,
            starts=self.starts_s if starts_s is None else starts_s,
            seed=self.seed,
            catalogue=self.catalogue,
            availability=self.availability,
            curves=() if jobs else self.curves,
            on_progress=on_progress,
        )
        return result.outcomes[policy.name]


def check_lives(job: Job, prices: PriceHistory, billing: Billing, catalogue: Catalogue) -> None:
    """Raise `InputError`, with the arithmetic, for a job that is longer than its machines are likely to live.

    The job cannot be checkpointed, so it must end on its first machine. Machines are rented at the list price,
    where it is known.
    """
    chances = []
    for market in prices:
        rate = job.steps_per_s(market, catalogue)
        if rate > 0:
            need_s = _START_S + job.steps / rate
            living = _lifetimes(market, prices, billing, catalogue)
            chance = _chance(living, need_s, prices.end_s - prices.start_s)
            chance = chance if need_s <= billing.max_lifetime_s else 0.0
            chances.append((chance, -need_s, market, living))
    if not chances:
        raise InputError(f"no allowed market has a rate for job {job.name}")
    chance, need_s, market, living = max(chances, key=lambda row: row[:2])
    if chance >= _LEAST_CHANCE:
        return
    arithmetic = (
        f"{job.steps} steps / {job.steps_per_s(market, catalogue) * HOUR_S:g} an hour "
        f"+ {_START_S / 60:g} min to start = {-need_s / HOUR_S:.1f} h"
    )
    if -need_s > billing.max_lifetime_s:
        lives = f"no machine lives longer than {billing.max_lifetime_s / HOUR_S:g} h under {billing.name}"
    else:
        lives = (
            f"by the last {(prices.end_s - prices.start_s) / HOUR_S:.0f} h of prices a machine there, at the list "
            f"price, lives that long with a chance of {chance:.0%} (half lived {living.median_s / HOUR_S:.1f} h)"
        )
    raise InputError(
        f"job {job.name} cannot be checkpointed and is longer than machines in its markets live: on {market}, "
        f"where its chances are best, it needs {arithmetic}, and {lives}; give it a checkpoint, or rent on demand"
    )


def _chance(living: Lifetimes, need_s: float, record_s: float) -> float:
    """Probability that a machine lives `need_s` seconds; beyond the record's length, by the exponential law."""
    share = living.share_living(need_s)
    return math.exp(-need_s / min(living.mean_s, record_s)) if math.isnan(share) else share


def _quotes(prices: PriceHistory, catalogue: Catalogue) -> tuple[Quote, ...]:
    end_s = prices.end_s
    found = [
        Quote(
            market,
            series.at(end_s),
            series.mean(end_s - HOUR_S, end_s),
            catalogue.on_demand_usd_per_hour(market, end_s),
        )
        for market, series in prices.items()
        if not math.isnan(series.at(end_s))
    ]
    return tuple(sorted(found, key=lambda quote: (quote.usd_per_hour, quote.market)))


def _lifetimes(market: Market, prices: PriceHistory, billing: Billing, catalogue: Catalogue) -> Lifetimes:
    """Lifetimes of machines at the list price; if prices do not revoke or it is unknown, none is revoked."""
    listed = catalogue.on_demand_usd_per_hour(market, prices.end_s)
    most = listed if listed is not None and billing.price_revokes else math.inf
    return lifetimes(prices[market], prices.start_s, prices.end_s, most)


def _saved_in_time(
    jobs: Sequence[Job],
    prices: PriceHistory,
    billing: Billing,
    catalogue: Catalogue,
    spells: SpellModels | None,
) -> tuple[tuple[Job, ...], list[str]]:
    """Return the jobs, with periodic saves if some machine's notice is too short for a save, and a note about it.

    Machines' lifetimes come from prices or, if capacity decides, from the spell models.
    """
    job = jobs[0]
    short = []
    for market in prices:
        vcpus = catalogue.instance_type(market.cloud, market.instance_type).vcpus
        able = job.steps_per_s(market, catalogue) > 0
        if able and not fits_notice(job, billing.notice_s, vcpus, market.place):
            lives_s = _lifetimes(market, prices, billing, catalogue).mean_s
            short.append(
                (spells.of(market, job.least_machines).mean_left_s(UP, 0.0) if spells else lives_s, vcpus, market)
            )
    if not short:
        return tuple(jobs), []
    lives_s, vcpus, market = min(short, key=lambda row: (row[0], row[2]))
    saved = tuple(saved_periodically(each, vcpus, lives_s, market.place) for each in jobs)
    checkpoint = saved[0].checkpoint
    assert checkpoint is not None
    note = (
        f"saving takes {job.save_s(vcpus, market.place):.0f} s on {market.instance_type}, longer than the notice "
        f"of {billing.notice_s:g} s leaves: trials are saved every {(checkpoint.interval_s or 0.0) / 60:.0f} min, "
        "and a revoked machine loses what was trained since"
    )
    return saved, [note]


def _offers_now(
    policy: Ebbtide, jobs: Sequence[Job], prices: PriceHistory, billing: Billing, catalogue: Catalogue
) -> tuple[Offer, ...]:
    view = Scenario(tuple(jobs), prices, billing, catalogue=catalogue).at_end(policy)
    return tuple(sorted(policy.offers(view, view.jobs[0]), key=lambda offer: (offer.usd_per_step, offer.market)))


def _offer_notes(offers: Sequence[Offer], billing: Billing) -> list[str]:
    """Explain why often revoked markets may come first, if there are some."""
    if billing.refund is not Refund.WITHIN_FIRST_HOUR or not any(offer.revoked >= _OFTEN for offer in offers):
        return []
    return [
        f"a market that is often revoked can be the best: under {billing.name} a machine that is revoked in its "
        "first hour costs nothing, and what it trained until then is saved"
    ]


def _fastest(job: Job, prices: PriceHistory, catalogue: Catalogue) -> tuple[float, Market]:
    """Return hours of a trial on the fastest machine, start included, and its market; trials run in parallel."""
    rates = {market: job.steps_per_s(market, catalogue) for market in prices}
    best = max(rates, key=lambda market: rates[market])
    return (_START_S + job.steps / rates[best]) / HOUR_S, best


def _estimate(
    sweep: OneJob, policy: Ebbtide, replays: _Replays, on_progress: Callable[[int, int], None] | None
) -> tuple[Estimate, Sequence[Outcome]]:
    rivals: list[Policy] = [CheapestSpot()]
    listed = (
        replays.catalogue.on_demand_usd_per_hour(market, replays.starts_s[0]) is not None
        for market in replays.prices
    )
    if all(listed):
        rivals.append(OnDemand())
    ended_early = _ended_early(policy, replays.jobs)
    # Progress counts only the policy's own backtests: those of the rivals are fast.
    runs = len(replays.starts_s)
    outcomes = replays.of(policy, on_progress=(lambda done: on_progress(done, runs)) if on_progress else None)
    done = [outcome for outcome in outcomes if outcome.finished]
    if not done:
        span_h = (replays.prices.end_s - replays.prices.start_s) / HOUR_S
        raise InputError(f"none of {runs} backtests ended within {span_h:.0f} h of prices; give more days")
    estimate = Estimate(
        runs,
        runs - len(done),
        PlanSpread.of([outcome.cost_usd for outcome in done]),
        PlanSpread.of([outcome.makespan_s / HOUR_S for outcome in done]),
        _share_over([cost_usd(outcome) for outcome in outcomes], sweep.budget_usd),
        _share_over([duration_h(outcome) for outcome in outcomes], sweep.deadline_h),
        {rival.name: _mean_usd(replays.of(rival)) for rival in rivals},
        {rival.name: _mean_usd(replays.of(rival, ended_early)) for rival in rivals} if ended_early else {},
        tuple(outcome.cost_usd for outcome in done),
        tuple(outcome.makespan_s / HOUR_S for outcome in done),
    )
    return estimate, outcomes


def _ended_early(policy: Ebbtide, jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Return the jobs if all but the chosen trials end at theta; empty: all are trained to their end.

    Rivals get these jobs, to do the same work as the policy. They need not wait for the selection, which favours
    them.
    """
    can_wait = all(job.checkpoint is not None for job in jobs)
    if policy.theta >= 1.0 or len(jobs) <= policy.mcnt or not can_wait:
        return ()
    return tuple(
        job
        if number < policy.mcnt
        else job.model_copy(update={"steps": max(math.ceil(policy.theta * job.steps), 1)})
        for number, job in enumerate(jobs)
    )


def _share_over(values: Sequence[float], limit: float | None) -> float | None:
    """Return the share of runs above a limit; NaN, an unfinished run, is above any."""
    return None if limit is None else float(np.mean([not value <= limit for value in values]))


def _mean_usd(outcomes: Sequence[Outcome]) -> float | None:
    done = [outcome.cost_usd for outcome in outcomes if outcome.finished]
    return float(np.mean(done)) if done else None
