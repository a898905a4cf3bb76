"""Markets of a plan: the price, the capacity, and the expected cost of the work in each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.forecasts.hazard.chances import MarketChances
from ebbtide.forecasts.hazard.evidence import Evidence
from ebbtide.forecasts.hazard.model import Hazard
from ebbtide.jobs.checkpoint_interval import steps_per_s_with_saves
from ebbtide.jobs.job import Job
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.deadline.costs import zones_problem
from ebbtide.policies.deadline.gangs import sizes_of
from ebbtide.policies.deadline.table import solve_zones


@dataclass(frozen=True)
class PlanPlace:
    """A market in which a trial could train.

    Attributes:
        market: The market.
        usd_per_hour: The current spot price of all machines that a trial needs, USD per hour.
        on_demand_usd_per_hour: Their list price, USD per hour; None: unknown.
        work_h: Hours of work of a trial there, periodic saves included.
        available: Share of time for which the market has a machine, by the spell models.
        lasts_h: Mean hours that a machine lasts, once it is rented.
        granted: Chance that a request for a machine is granted now, by the hazard.
        kept_1h: Chance that a machine that is granted is kept for an hour, by the hazard.
        kept: Chance that it is kept for `work_h`, by the hazard.
        alone_usd: Expected cost of a trial there alone, USD, on demand if the deadline needs it; None: there is no
            deadline, it is too short there, or the list price is not known.
        share: Share of the backtests' machine hours that were spent there.
    """

    market: Market
    usd_per_hour: float
    on_demand_usd_per_hour: float | None
    work_h: float
    available: float
    lasts_h: float
    granted: float
    kept_1h: float
    kept: float
    alone_usd: float | None
    share: float


def plan_places(
    job: Job,
    prices: PriceHistory,
    catalogue: Catalogue,
    spells: SpellModels,
    *,
    hazard: Hazard,
    evidence: Evidence,
    deadline_h: float | None,
    start_s: float,
    outcomes: Sequence[Outcome],
) -> tuple[PlanPlace, ...]:
    """Return the markets that can run a trial, lowest expected cost first.

    Args:
        job: A trial.
        prices: Price history up to now.
        catalogue: Instance types and their list prices.
        spells: Models of how capacity comes and goes.
        hazard: Gives the chances that a machine is granted and kept.
        evidence: What has been seen of capacity.
        deadline_h: Hours until the deadline; None: there is none.
        start_s: Seconds from the request for a machine until it trains, without restoring.
        outcomes: The backtests of the plan.
    """
    spent = _hours(outcomes)
    whole_h = math.fsum(spent.values())
    found = []
    for market, series in prices.items():
        rate = steps_per_s_with_saves(job, market, catalogue) * job.speedup_of(job.most_machines)
        usd = series.at(prices.end_s) * job.most_machines
        if not rate > 0 or math.isnan(usd):
            continue
        listed = catalogue.on_demand_usd_per_hour(market, prices.end_s)
        listed = None if listed is None else listed * job.most_machines
        model = spells.of(market, sizes_of(job)[0])
        vcpus = catalogue.machine_of(market).vcpus
        work_h = job.steps / rate / HOUR_S
        restart_h = (start_s + job.restore_s(vcpus, market.place)) / HOUR_S
        alone = None
        if listed is not None and deadline_h is not None:
            alone = _alone_usd(job, market, usd, listed, model, work_h, deadline_h, restart_h)
        found.append(
            PlanPlace(
                market,
                usd,
                listed,
                work_h,
                model.share_up,
                model.mean_left_s(UP, 0.0) / HOUR_S,
                **asdict(MarketChances.of(hazard, evidence, market, prices.end_s, work_h * HOUR_S)),
                alone_usd=alone,
                share=spent[market] / whole_h if whole_h else 0.0,
            )
        )
    return tuple(sorted(found, key=_cost_first))


def _cost_first(place: PlanPlace) -> tuple[bool, float, Market]:
    unknown = place.alone_usd is None
    return unknown, place.usd_per_hour * place.work_h if unknown else place.alone_usd or 0.0, place.market


def _alone_usd(
    job: Job,
    market: Market,
    usd_per_hour: float,
    listed_usd_per_hour: float,
    model: SpellModel,
    work_h: float,
    deadline_h: float,
    restart_h: float,
) -> float | None:
    size_bytes = 0 if job.checkpoint is None else job.checkpoint.size_bytes
    try:
        problem = zones_problem(
            [(str(market), market.place)],
            [usd_per_hour],
            listed_usd_per_hour,
            work_h=work_h,
            deadline_h=deadline_h,
            restart_h=restart_h,
            checkpoint_bytes=size_bytes,
        )
    except InputError:
        # No on-demand machine is fast enough for the deadline.
        return None
    chances, usd = solve_zones(problem, [model]).beginnings()
    return float(chances @ usd)


def _hours(outcomes: Sequence[Outcome]) -> Counter[Market]:
    """Machine hours by market."""
    found: Counter[Market] = Counter()
    for outcome in outcomes:
        for lease in outcome.leases:
            if not math.isnan(lease.started_s):
                ended_s = outcome.end_s if math.isnan(lease.ended_s) else lease.ended_s
                found[lease.market] += max(ended_s - lease.started_s, 0.0) / HOUR_S  # type: ignore[assignment]
    return found
