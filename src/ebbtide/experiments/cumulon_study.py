"""Cümülön-D's evaluation (6) of RSVD-1, on the market that it describes and on a real one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ebbtide.errors import InputError
from ebbtide.experiments.cluster_replays import Rules, play_cluster
from ebbtide.experiments.cookbook_replays import Played, play_dynamically, play_strictly
from ebbtide.experiments.cumulon_market import ON_DEMAND_USD_PER_HOUR, TICK_S, described_chain, rsvd_workflow
from ebbtide.market.markets import Market
from ebbtide.market.price_chain import PriceChain, nearest_level
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.oracle import cheapest_charge, least_costs
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.workloads.workflow import Workflow

DEADLINE_H = 15
MOST = 100
DELAY_TICKS = 2
STARTS = {"s020": 0.20, "s002": 0.02}

_MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
_TICKS = round(HOUR_S / TICK_S)

# Figures 4 to 8.
_DEADLINES_H = (4, 6, 8, 10, 15, 20)
_GAMMAS = (0.0, 0.1, 0.25, 0.5, 1.0)
_DELAYS = (0, 1, 2, 4, 6)
_BIDS = (0.10, 0.15, 0.20, 0.30, 0.40, 0.50, 0.75, 1.00, 1.25, 1.50)
_SIZES = (5, 10, 20, 40, 60, 80)
_FIXED_BIDS = (0.05, 0.10, 0.20, 0.50, 1.00)
_AHEAD = (0, 1, 2, 4)

# 6.7: sixty machines do RSVD-1 within an hour.
_DBA_SIZE = 60

# A way of bidding counts as one that keeps the deadline if no more runs miss it.
_FEW_MISSED = 0.01

Told = Callable[[str], None]
Table = dict[str, dict[str, float]]


@dataclass(frozen=True, eq=False)
class CumulonStudy:
    """What came out: means over traces; USD, hours.

    Attributes:
        figures: By row of the reproduction.
        tables: By figure of the paper.
        missed: Deadlines missed under cookbooks whose bids are infinite.
        outbid: Deadlines missed under skyline bids: machines were taken when others came too late.
        solved_s: How long one cookbook took.
    """

    figures: Mapping[str, float]
    tables: Mapping[str, Table]
    missed: int
    outbid: int
    solved_s: float


def best_on_demand_size(workflow: Workflow, deadline_h: float) -> int:
    """The cluster of the fewest whole machine-hours that keeps the deadline; of equals the smallest."""
    hours = {n: workflow.finish_h(workflow.work_h, n, n) for n in range(1, MOST + 1)}
    return min((n for n in hours if hours[n] <= deadline_h), key=lambda n: (n * math.ceil(hours[n]), n))


def on_demand_only_usd(workflow: Workflow, usd_per_hour: float, deadline_h: float) -> float:
    """What that cluster costs, charged by whole hours."""
    size = best_on_demand_size(workflow, deadline_h)
    return size * math.ceil(workflow.finish_h(workflow.work_h, size, size)) * usd_per_hour


def cumulon_study(*, traces: int = 100_000, seed: int = 1, on_progress: Told | None = None) -> CumulonStudy:
    """Figures 2 and 4 to 8 and Table 2, on the market that the paper describes.

    Args:
        traces: Simulated ones for each figure's main runs; a tenth for each point of a sweep.
        seed: Of all chance.
        on_progress: Told what is being done.
    """
    told = on_progress or (lambda _: None)
    workflow, chain = rsvd_workflow(), described_chain()
    few = max(traces // 10, 1)

    def drawn(price: float, number: int, part: int, hours: int = DEADLINE_H) -> np.ndarray:
        return chain.simulate(_MONDAY_S, price, hours * _TICKS, number, seed * 1000 + part)

    told("Figure 2: dynamic, strict, oracle")
    by_second = _by_second(chain, workflow)
    began = time.perf_counter()
    by_second = _by_second(chain, workflow)
    solved_s = time.perf_counter() - began
    whole = drawn(STARTS["s020"], traces, 1)
    dynamic, strict = play_dynamically(by_second, whole, TICK_S), play_strictly(by_second, whole, TICK_S)
    oracle = least_costs(workflow, chain.prices, whole, TICK_S, MOST)
    figures = {
        "dynamic_mean_cost": _mean(dynamic),
        "strict_mean_cost": _mean(strict),
        "oracle_mean_cost": float(oracle.mean()),
        "on_demand_only_cost": on_demand_only_usd(workflow, ON_DEMAND_USD_PER_HOUR, DEADLINE_H),
    }
    tables = {"fig2": {"dynamic": _row(dynamic), "strict": _row(strict)}}
    missed = dynamic.missed + strict.missed

    told("Figures 4 and 5: deadlines and risk")
    tables["fig4"], tables["fig5"] = {}, {}
    for hours in _DEADLINES_H:
        book = _by_second(chain, workflow, hours=hours, gamma=0.1)
        tables["fig4"][f"{hours}"] = _row(play_dynamically(book, drawn(STARTS["s002"], few, 4, hours), TICK_S))
    for gamma in _GAMMAS:
        book = _by_second(chain, workflow, gamma=gamma)
        tables["fig5"][f"{gamma:g}"] = _row(play_dynamically(book, drawn(STARTS["s020"], few, 5), TICK_S))

    told("Figures 6 and 7: delays and bids")
    tables["fig6"] = {}
    for delay in _DELAYS:
        book, rules = by_the_hour(chain, workflow, delay), Rules(delay_ticks=delay)
        part = drawn(STARTS["s002"], few, 6)
        tables["fig6"][f"{delay * TICK_S / 60:g}"] = {
            "skyline": _mean(play_cluster(book, part, Bids.skyline(book), rules)),
            "infinity": _mean(play_cluster(book, part, Bids.infinite(book), rules)),
        }
    book = by_the_hour(chain, workflow, DELAY_TICKS)
    # How far to look ahead is chosen on other traces.
    practice = drawn(STARTS["s020"], few, 7)
    ahead = min(_AHEAD, key=lambda steps: _mean(play_cluster(book, practice, Bids.skyline(book, steps))))
    part = drawn(STARTS["s020"], traces, 8)
    skyline = play_cluster(book, part, Bids.skyline(book, ahead))
    infinite = play_cluster(book, part, Bids.infinite(book))
    by_bid = {usd: play_cluster(book, part, Bids.fixed(book, usd)) for usd in _BIDS}
    figures |= {
        "skyline_mean_cost": _mean(skyline),
        "infinity_bid_mean_cost": _mean(infinite),
        "best_fixed_bid_mean_cost": min(_mean(found) for found in by_bid.values()),
    }
    missed += infinite.missed
    outbid = skyline.missed
    tables["fig7"] = {f"{usd:g}": _row(found) for usd, found in by_bid.items()}
    tables["fig7"]["skyline"] = {**_row(skyline), "steps_ahead": float(ahead)}

    told("Figure 8: fixed sizes and bids, DBA")
    part = part[:few] if few < len(part) else part
    grid = {
        (size, usd): play_cluster(book, part, Bids.fixed(book, usd), Rules(fixed_size=size))
        for size in _SIZES
        for usd in _FIXED_BIDS
    }
    dba = play_cluster(book, part, dba_bids(book, chain), Rules(fixed_size=_DBA_SIZE))
    kept = [found for found in grid.values() if found.missed <= _FEW_MISSED * len(part)]
    figures["fixed_mean_cost"] = min((_mean(found) for found in kept), default=float("nan"))
    figures["dba_mean_cost"] = _mean(dba)
    tables["fig8"] = {f"{size} at {usd:g}": _row(found) for (size, usd), found in grid.items()}
    tables["fig8"]["dba"] = _row(dba)

    told("Table 2: on demand beside spot")
    plus = by_the_hour(chain, workflow, DELAY_TICKS, on_demand_usd=ON_DEMAND_USD_PER_HOUR)
    size = best_on_demand_size(workflow, DEADLINE_H)
    tables["table2"] = {}
    for number, (name, price) in enumerate(STARTS.items()):
        part = drawn(price, traces, 20 + number)
        hybrid = Rules(on_demand_usd=ON_DEMAND_USD_PER_HOUR)
        fixed_plus = Rules(fixed_size=size, on_demand_usd=ON_DEMAND_USD_PER_HOUR)
        spot = play_cluster(book, part, Bids.skyline(book, ahead))
        both = play_cluster(plus, part, Bids.skyline(plus, ahead), hybrid)
        surrogate = play_cluster(book, part, Bids.fixed(book, ON_DEMAND_USD_PER_HOUR), fixed_plus)
        figures |= {f"plus_mean_cost_{name}": _mean(both), f"fixed_plus_mean_cost_{name}": _mean(surrogate)}
        tables["table2"][name] = {"spot": _mean(spot), "plus": _mean(both), "fixed_plus": _mean(surrogate)}
        outbid += spot.missed + both.missed
    return CumulonStudy(figures, tables, missed, outbid, solved_s)


def real_market_study(
    prices: PriceHistory, market: Market, *, every_s: float = 6 * HOUR_S, on_progress: Told | None = None
) -> dict[str, float]:
    """RSVD-1 on a real market's later days, by what was learned of its earlier ones; charges by the hour, delays.

    The first three fifths of the record teach the chain and choose Fixed's size and bid; the rest is played.

    Args:
        prices: The record.
        market: Which of its markets.
        every_s: From start to start.
        on_progress: Told what is being done.

    Raises:
        InputError: The record leaves no start.
    """
    told = on_progress or (lambda _: None)
    series, workflow = prices[market], rsvd_workflow()
    split_s = prices.start_s + 0.6 * (prices.end_s - prices.start_s)
    chain = PriceChain.fit(series, prices.start_s, split_s, tick_s=TICK_S)
    room_s = DEADLINE_H * HOUR_S + TICK_S

    def starts(low_s: float, high_s: float) -> np.ndarray:
        first_s = np.ceil(max(low_s, float(series.times_s[0])) / DAY_S) * DAY_S
        return np.arange(first_s, high_s - room_s, every_s)

    def trace(start_s: float) -> np.ndarray:
        times_s = start_s + np.arange(DEADLINE_H * _TICKS, dtype=np.float64) * TICK_S
        return nearest_level(chain.prices, series.at_each(times_s)).astype(np.uint16)

    later, earlier = starts(split_s, prices.end_s), starts(prices.start_s, split_s)
    if not len(later) or not len(earlier):
        raise InputError(f"{market}: the record is too short for runs of {DEADLINE_H} h in both its parts")
    told(f"{market}: choosing a fixed size and bid")
    any_book = by_the_hour(chain, workflow, DELAY_TICKS, start_s=float(earlier[0]))
    practice = np.array([trace(start_s) for start_s in earlier])
    best = _best_fixed(any_book, practice, chain.prices)
    told(f"{market}: a cookbook for each hour of the week")
    slots = {float(start_s % (7 * DAY_S)): start_s for start_s in later}
    books = {slot: by_the_hour(chain, workflow, DELAY_TICKS, start_s=start_s) for slot, start_s in slots.items()}
    costs: dict[str, list[float]] = {"dynamic": [], "oracle": [], "fixed": []}
    for start_s in later:
        one, book = trace(start_s)[None], books[float(start_s % (7 * DAY_S))]
        dynamic = play_cluster(book, one, Bids.skyline(book))
        fixed = play_cluster(book, one, Bids.fixed(book, best[1]), Rules(fixed_size=best[0]))
        costs["dynamic"].append(float(dynamic.cost_usd[0]))
        costs["fixed"].append(float(fixed.cost_usd[0]))
        bound = least_costs(workflow, chain.prices, cheapest_charge(one, _TICKS), TICK_S, MOST)
        costs["oracle"].append(float(bound[0]))
    return {name: float(np.mean(usd)) for name, usd in costs.items()} | {
        "runs": float(len(later)), "fixed_size": float(best[0]), "fixed_bid": best[1]
    }  # fmt: skip


def _best_fixed(book: Cookbook, practice: np.ndarray, prices: np.ndarray) -> tuple[int, float]:
    """The size and bid that cost least of those that keep the deadline, on practice traces."""
    bids = sorted({float(np.quantile(prices, share)) for share in (0.25, 0.5, 0.75, 0.9)})
    found = {
        (size, usd): play_cluster(book, practice, Bids.fixed(book, usd), Rules(fixed_size=size))
        for size in _SIZES
        for usd in bids
    }
    kept = {key: _mean(one) for key, one in found.items() if one.missed <= _FEW_MISSED * len(practice)}
    means = kept or {key: _mean(one) for key, one in found.items()}
    return min(means, key=lambda key: means[key])


def by_the_hour(
    chain: PriceChain,
    workflow: Workflow,
    delay_ticks: int,
    *,
    start_s: float = _MONDAY_S,
    on_demand_usd: float | None = None,
) -> Cookbook:
    """A cookbook for whole hours charged at the price at their beginning, decided on the delay before."""
    steps = chain.steps(start_s - delay_ticks * TICK_S, DEADLINE_H, HOUR_S, charged_at=delay_ticks)
    market = ChargeModel(chain.prices, *steps)
    if on_demand_usd is not None:
        market = market.with_on_demand(on_demand_usd)
    return solve(CookbookProblem(workflow, market, most=MOST))


def dba_bids(book: Cookbook, chain: PriceChain) -> Bids:
    """DBA's (6.7): bid what waiting is expected to cost, were each hour's price drawn anew from all of them.

    With an hour left any price is taken; with more, none above what the hours after it are expected to cost.
    """
    steps = len(book.actions)
    seen = chain.simulate(_MONDAY_S, float(chain.prices[0]), 30 * 24 * _TICKS, 20, 99)
    prices = chain.prices[seen].ravel()
    bids, waiting = np.full(steps, np.inf), float(prices.mean())
    for step in reversed(range(steps - 1)):
        bids[step] = waiting
        waiting = float(np.minimum(prices, waiting).mean())
    return Bids.by_step(book, bids)


def _by_second(chain: PriceChain, workflow: Workflow, *, hours: int = DEADLINE_H, gamma: float = 0.0) -> Cookbook:
    market = ChargeModel(chain.prices, *chain.steps(_MONDAY_S, hours, HOUR_S))
    return solve(CookbookProblem(workflow, market, most=MOST, risk_aversion=gamma))


def _mean(found: Played) -> float:
    """Over all runs, those that missed the deadline included."""
    return float(found.cost_usd.mean())


def _row(found: Played) -> dict[str, float]:
    ended = np.isfinite(found.hours)
    return {
        "mean_usd": _mean(found),
        "deviation_usd": float(found.cost_usd.std()),
        "mean_h": float(found.hours[ended].mean()) if np.any(ended) else float("nan"),
        "missed": float(found.missed) / len(found.hours),
    }
