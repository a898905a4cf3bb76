"""Decisions: what a policy did and when, what was offered then, what it weighed and why; kept with a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from typing import Any

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.job import UNKNOWN_STEPS
from ebbtide.market.markets import MARKET_FIELDS, Market
from ebbtide.policies.api.actions import Action, GiveUp, Hold, Release, Request, Stop
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.reasons import Alternative, Because, Reason
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View

# Offers that are kept of each decision to rent, those of least cost at prices of the moment.
OFFERS_KEPT = 8
# The same of what a policy weighed.
ALTERNATIVES_KEPT = 16
# Characters that are kept of each sentence of a reason.
TEXT_KEPT = 2000

# How the reason begins of a decision whose reason cannot be made.
NO_REASON = "its reason cannot be made"

REQUESTED, RELEASED, HELD, STOPPED, GAVE_UP = "requested", "released", "held", "stopped", "gave up"


@dataclass(frozen=True, slots=True)
class Offered:
    """A market that could run a job at the moment of a decision, at its prices of that moment.

    Attributes:
        market: The market.
        spot_usd_per_hour: Spot price of a machine, USD per hour.
        on_demand_usd_per_hour: List price of a machine, USD per hour; None: it is not known.
        work_h: Hours of pure work that are left there, on all machines that the job takes at most.
        spot_usd: What these hours cost at the spot price, USD.
        on_demand_usd: What they cost at the list price, USD; None: it is not known.
    """

    market: Market
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float | None
    work_h: float
    spot_usd: float
    on_demand_usd: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that a policy decided.

    Attributes:
        number: Number of the call of the policy in which it was decided, counted from 1.
        time_s: When, seconds since 1970.
        action: `requested`, `released`, `held`, `stopped` or `gave up`.
        job_id: The job that it is about; -1: of no one job.
        lease_ids: The machines that were requested or given back.
        market: Where machines were requested; else None.
        on_demand: Whether they were requested at the list price.
        max_price_usd_per_hour: The most to pay, USD per machine-hour; infinity: whatever the market asks.
        woken_by: The events that the policy was asked about, in words.
        steps_left: Steps of the job that were left; NaN: it is about no one job.
        spent_usd: What the run had spent until then, USD; NaN: prices were not known.
        why: The policy's reason, in a sentence; empty: it gave none.
        alternatives: What the policy weighed, in its own terms. Where the job's number of steps is not known, its
            costs, and those of `offered`, are for the work that what was chosen does in an hour.
        offered: Markets that could run the job, those of least spot cost first.
        markets: Number of markets that could run it, those kept in `offered` among them.
    """

    number: int
    time_s: float
    action: str
    job_id: int
    lease_ids: tuple[int, ...]
    market: Market | None
    on_demand: bool
    max_price_usd_per_hour: float
    woken_by: tuple[str, ...]
    steps_left: float
    spent_usd: float
    why: str
    alternatives: tuple[Alternative, ...]
    offered: tuple[Offered, ...]
    markets: int

    @property
    def chosen(self) -> Alternative | None:
        """Alternative that was chosen among those weighed; None: there is none."""
        return next((one for one in self.alternatives if one.is_chosen), None)

    @property
    def has_steps(self) -> bool:
        """True unless the job's number of steps is unknown, in which case costs are for an hour of work."""
        return not self.steps_left > UNKNOWN_STEPS / 2


def decided(view: View, number: int, action: Action, spent_usd: Callable[[], float]) -> Decision | None:
    """The decision that an action is; None: it is none to be kept. See `_decided` for the arguments."""
    found = _decided(view, number, action, spent_usd)
    return found if found is None or found.has_steps else _by_the_hour(view, found)


def _by_the_hour(view: View, made: Decision) -> Decision:
    """A decision for a job without a number of steps: its costs for the work that what was chosen does in an hour.

    What the policy weighed it weighed for more steps than any job has: only the ratios mean something.
    """
    here = next((one for one in made.offered if one.market == made.market), next(iter(made.offered), None))
    offered = made.offered
    if here is not None:
        offered = tuple(
            replace(
                one,
                work_h=one.work_h / here.work_h,
                spot_usd=one.spot_usd / here.work_h,
                on_demand_usd=None if one.on_demand_usd is None else one.on_demand_usd / here.work_h,
            )
            for one in made.offered
        )
    costed = [one for one in made.alternatives if one.market is not None and 0.0 < one.expected_usd < math.inf]
    chosen = min(costed, key=lambda one: (not one.is_chosen, one.expected_usd), default=None)
    if chosen is None or chosen.market is None:
        return replace(made, offered=offered)
    price = view.on_demand_price(chosen.market) if "on demand" in chosen.choice else view.price(chosen.market)
    hour_usd = (price or math.nan) * view.jobs[made.job_id].job.most_machines
    weighed = (
        replace(one, expected_usd=one.expected_usd * hour_usd / chosen.expected_usd) for one in made.alternatives
    )
    return replace(made, offered=offered, alternatives=tuple(weighed))


def _decided(view: View, number: int, action: Action, spent_usd: Callable[[], float]) -> Decision | None:
    """The decision that an action is, as of the moment before it is done; None: it is none to be kept.

    A reason that cannot be made does not end a run: the decision says so in its place.

    Args:
        view: What the policy saw.
        number: Number of the call of the policy.
        action: What it answered.
        spent_usd: Gives what the run had spent when the policy was asked, USD; NaN: it is not known.
    """
    about = partial(_about, view, number, spent_usd)
    match action:
        case Request(market, price, on_demand, job_id):
            offered = offers(view, view.jobs[job_id]) if job_id is not None else []
            # The one that was asked for is kept in any case.
            kept = nsmallest(OFFERS_KEPT, offered, key=lambda one: (one.spot_usd, one.market))
            kept += [one for one in offered if one.market == market and one not in kept]
            most = math.inf if on_demand else float(price)
            return replace(
                about(REQUESTED, job_id, action.because),
                market=market,
                on_demand=bool(on_demand),
                max_price_usd_per_hour=most,
                offered=tuple(kept),
                markets=len(offered),
            )
        case Release(lease_id):
            job_id = next((job.job_id for job in view.jobs if _has(job, lease_id)), None)
            found = about(RELEASED, job_id, action.because)
            return replace(found, lease_ids=(lease_id,), market=view.lease(lease_id).market)
        case Hold(job_id):
            return about(HELD, job_id, action.because)
        case Stop(job_id):
            return about(STOPPED, job_id, action.because)
        case GiveUp(reason):
            return about(GAVE_UP, None, Reason(reason))
        case _:
            return None


def offers(view: View, job: JobView) -> list[Offered]:
    """Every market that can run a job, at its prices of the moment."""
    found: list[Offered] = []
    speedup = job.job.speedup_of(job.job.most_machines)
    for market in view.markets:
        rate = view.steps_per_s(job.job, market) * speedup
        if rate <= 0.0:
            continue
        try:
            price, listed = view.price(market), view.on_demand_price(market)
        except (CloudError, InputError):
            continue  # prices are not known at the moment
        if math.isnan(price):
            continue
        work_h = job.steps_left / rate / HOUR_S
        machine_h = work_h * job.job.most_machines
        listed_usd = None if listed is None else listed * machine_h
        found.append(Offered(market, price, listed, work_h, price * machine_h, listed_usd))
    return found


def decision_values(decision: Decision) -> dict[str, Any]:
    """A decision as plain values."""
    values = {name: getattr(decision, name) for name in Decision.__slots__}
    return values | {
        "lease_ids": list(decision.lease_ids),
        "market": _plain(decision.market),
        "woken_by": list(decision.woken_by),
        "alternatives": [_values(one) for one in decision.alternatives],
        "offered": [_values(one) for one in decision.offered],
    }


def decision_of(values: Mapping[str, Any]) -> Decision:
    """A decision from plain values."""
    return Decision(
        **{
            **values,
            "lease_ids": tuple(values["lease_ids"]),
            "market": _market(values["market"]),
            "woken_by": tuple(values["woken_by"]),
            "alternatives": tuple(
                Alternative(**{**one, "market": _market(one["market"])}) for one in values["alternatives"]
            ),
            "offered": tuple(Offered(**{**one, "market": Market(*one["market"])}) for one in values["offered"]),
        }
    )


def _about(
    view: View, number: int, spent_usd: Callable[[], float], action: str, job_id: int | None, because: Because
) -> Decision:
    reason = _made(because)
    return Decision(
        number,
        view.now_s,
        action,
        -1 if job_id is None else job_id,
        (),
        None,
        False,
        math.inf,
        tuple(_words(view.events)),
        math.nan if job_id is None else float(view.jobs[job_id].steps_left),
        spent_usd(),
        reason.why,
        tuple(_kept(reason.alternatives)),
        (),
        0,
    )


def _made(because: Because) -> Reason:
    """A reason, made if it is yet to be; what cannot be made, or is none that can be kept, says so."""
    if because is None:
        return Reason("")
    try:
        reason: Any = because() if callable(because) else because
        if not isinstance(reason, Reason):
            raise TypeError(f"it is {type(reason).__name__}; it is a Reason, or a function that makes one")
        return Reason(_text(reason.why), [_checked(one) for one in reason.alternatives])
    except MemoryError:
        raise
    except Exception as error:
        try:
            words = _text(str(error))
        except Exception:
            words = "what is wrong cannot be said"
        return Reason(f"{NO_REASON}: {type(error).__name__}: {words}")


def _checked(one: Any) -> Alternative:
    """An alternative whose values are what a journal keeps."""
    if not isinstance(one, Alternative):
        raise TypeError(f"an alternative is {type(one).__name__}; it is an Alternative")
    if not (one.market is None or isinstance(one.market, Market)):
        raise TypeError(f"the market of an alternative is {type(one.market).__name__}; it is a Market, or None")
    usd = float(one.expected_usd)
    return Alternative(_text(one.choice), usd, _text(one.how), one.market, bool(one.is_chosen))


def _text(words: Any) -> str:
    """A sentence of a reason, no longer than anybody reads."""
    if not isinstance(words, str):
        raise TypeError(f"what it says is {type(words).__name__}; it is a str")
    plain = words.encode("utf-8", "replace").decode("utf-8")
    return plain if len(plain) <= TEXT_KEPT else f"{plain[: TEXT_KEPT - 3]}..."


def _kept(weighed: Sequence[Alternative]) -> list[Alternative]:
    """Alternatives to keep of many: the chosen one, and those of least cost, in that order."""
    ranked = sorted(weighed, key=lambda one: (not one.is_chosen, math.isnan(one.expected_usd), one.expected_usd))
    return ranked[:ALTERNATIVES_KEPT]


def _words(events: Iterable[Event]) -> Iterable[str]:
    """Events in words; of many price changes, how many."""
    prices = 0
    for event in events:
        if event.wake is Wake.PRICE:
            prices += 1
            continue
        about = f" of lease {event.lease_id}" if event.lease_id >= 0 else ""
        about += f" of job {event.job_id}" if event.job_id >= 0 else ""
        detail = f": {event.detail}" if event.detail else ""
        yield f"{str(event.wake).replace('_', ' ')}{about}{detail}"
    if prices:
        yield "price" if prices == 1 else f"{prices} prices"


def _has(job: JobView, lease_id: int) -> bool:
    return any(lease.lease_id == lease_id for lease in job.leases)


def _values(one: Alternative | Offered) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in type(one).__slots__}
    return values | {"market": _plain(one.market)}


def _plain(market: Market | None) -> list[str] | None:
    return None if market is None else [getattr(market, name) for name in MARKET_FIELDS]


def _market(values: list[str] | None) -> Market | None:
    return None if values is None else Market(*values)
