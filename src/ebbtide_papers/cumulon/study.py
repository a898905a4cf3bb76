"""Cümülön-D's evaluation (6) of RSVD-1 and GNMF, on the market that it describes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.forecasts.price_chain import PriceChain
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.price_series import Floats
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide_papers.cumulon.cluster_replays import Rules, play_cluster
from ebbtide_papers.cumulon.cookbook_replays import CookbookCosts, play_dynamically, play_strictly
from ebbtide_papers.cumulon.market import (
    ON_DEMAND_USD_PER_HOUR,
    TICK_S,
    described_chain,
    gnmf_workflow,
    rsvd_workflow,
)
from ebbtide_papers.cumulon.oracle import least_costs

DEADLINE_H = 15
MOST = 100
DELAY_TICKS = 2
STARTS = {"s020": 0.20, "s002": 0.02}

_MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
TICKS = round(HOUR_S / TICK_S)

# Figures 4 to 8.
_DEADLINES_H = (1, 2, 4, 8, 15, 30)
_GNMF_UNIT_H = 0.1
_GAMMAS = (0.0, 0.1, 0.25, 0.5, 1.0)
_DELAYS = (0, 1, 2, 4, 6)
_BIDS = (0.10, 0.15, 0.20, 0.30, 0.40, 0.50, 0.75, 1.00, 1.25, 1.50)
SIZES = (5, 10, 20, 40, 60, 80)
_FIXED_BIDS = (0.05, 0.10, 0.20, 0.50, 1.00)
_AHEAD = (0, 1, 2, 4)

# 6.7: sixty machines do RSVD-1 within an hour.
_DBA_SIZE = 60

# A bidding rule keeps the deadline if at most this share of the runs misses it.
FEW_MISSED = 0.01

OnProgress = Callable[[str], None]
Table = dict[str, dict[str, float]]


@dataclass(frozen=True, eq=False)
class RunCounts:
    """Number of runs by their end and cost.

    Attributes:
        hours: Edges of the columns, hours.
        usd: Edges of the rows, USD.
        runs: Number of runs in each cell, shape (rows, columns).
    """

    hours: Floats
    usd: Floats
    runs: Floats

    @classmethod
    def of(cls, found: CookbookCosts) -> RunCounts:
        """Counts of finished runs: columns of half hours, and forty rows up to the highest cost."""
        ended = np.isfinite(found.hours)
        columns = np.arange(0.0, DEADLINE_H + 0.6, 0.5)
        rows = np.linspace(0.0, float(found.cost_usd[ended].max(initial=1.0)), 41)
        runs, _, _ = np.histogram2d(found.cost_usd[ended], found.hours[ended], bins=(rows, columns))
        return cls(columns, rows, runs)


@dataclass(frozen=True, eq=False)
class CumulonStudy:
    """The results of the study: means over traces, in USD and hours.

    Attributes:
        figures: Our figure for each row of the reproduction.
        tables: Data of each figure of the paper.
        counts: Data of Figure 2: runs by end and cost.
        missed: Share of missed deadlines under cookbooks, with infinite and with skyline bids.
        solved_s: Time to solve one cookbook, seconds.
    """

    figures: Mapping[str, float]
    tables: Mapping[str, Table]
    counts: Mapping[str, RunCounts]
    missed: int
    solved_s: float


def best_on_demand_size(workflow: Workflow, deadline_h: float) -> int:
    """The cluster size with the fewest whole machine-hours that keeps the deadline; ties: the smallest."""
    hours = {n: workflow.finish_h(workflow.work_h, n, n) for n in range(1, MOST + 1)}
    return min((n for n in hours if hours[n] <= deadline_h), key=lambda n: (n * math.ceil(hours[n]), n))


def on_demand_only_usd(workflow: Workflow, usd_per_hour: float, deadline_h: float) -> float:
    """The cost of that cluster, USD, charged by whole hours."""
    size = best_on_demand_size(workflow, deadline_h)
    return size * math.ceil(workflow.finish_h(workflow.work_h, size, size)) * usd_per_hour


def cumulon_study(*, traces: int = 100_000, seed: int = 1, on_progress: OnProgress | None = None) -> CumulonStudy:
    """Figures 2 and 4 to 8 and Table 2, on the market that the paper describes.

    Args:
        traces: Number of simulated traces for each figure's main runs; a tenth for each point of a sweep.
        seed: Seed of all random numbers.
        on_progress: Called with the current activity.
    """
    report = on_progress or (lambda _: None)
    workflow, chain = rsvd_workflow(), described_chain()
    few = max(traces // 10, 1)

    def drawn(price: float, number: int, part: int, hours: int = DEADLINE_H) -> np.ndarray:
        return chain.simulate(_MONDAY_S, price, hours * TICKS, number, seed * 1000 + part)

    report("Figure 2: dynamic, strict, oracle")
    by_second = _by_second(chain, workflow)
    began = time.perf_counter()
    by_second = _by_second(chain, workflow)
    solved_s = time.perf_counter() - began
    whole = drawn(STARTS["s020"], traces, 1)
    dynamic, strict = play_dynamically(by_second, whole, TICK_S), play_strictly(by_second, whole, TICK_S)
    oracle = least_costs(workflow, chain.prices, whole, TICK_S, MOST)
    figures = {
        "dynamic_mean_cost": mean_usd(dynamic),
        "strict_mean_cost": mean_usd(strict),
        "oracle_mean_cost": float(oracle.mean()),
        "on_demand_only_cost": on_demand_only_usd(workflow, ON_DEMAND_USD_PER_HOUR, DEADLINE_H),
    }
    least = {"mean_usd": float(oracle.mean()), "deviation_usd": float(oracle.std())}
    tables = {"fig2": {"dynamic": _row(dynamic), "strict": _row(strict), "oracle": least}}
    counts = {"dynamic": RunCounts.of(dynamic), "strict": RunCounts.of(strict)}
    missed = dynamic.missed + strict.missed

    report("Figures 4 and 5: deadlines and risk, GNMF")
    gnmf = gnmf_workflow()
    tables["fig4"], tables["fig5"] = {}, {}
    for hours in _DEADLINES_H:
        book = _by_second(chain, gnmf, hours=hours, gamma=0.1, unit_h=_GNMF_UNIT_H)
        part = drawn(STARTS["s002"], few, 4, hours)
        tables["fig4"][f"{hours}"] = _row(play_dynamically(book, part, TICK_S)) | {
            "strict_mean_usd": mean_usd(play_strictly(book, part, TICK_S))
        }
    for gamma in _GAMMAS:
        book = _by_second(chain, gnmf, gamma=gamma, unit_h=_GNMF_UNIT_H)
        tables["fig5"][f"{gamma:g}"] = _row(play_dynamically(book, drawn(STARTS["s020"], few, 5), TICK_S))

    report("Figures 6 and 7: delays and bids")
    tables["fig6"] = {}
    for delay in _DELAYS:
        book, rules = by_the_hour(chain, workflow, delay), Rules(delay_ticks=delay)
        part = drawn(STARTS["s002"], few, 6)
        tables["fig6"][f"{delay * TICK_S / 60:g}"] = {
            "skyline": mean_usd(play_cluster(book, part, Bids.skyline(book), rules)),
            "infinity": mean_usd(play_cluster(book, part, Bids.infinite(book), rules)),
        }
    book = by_the_hour(chain, workflow, DELAY_TICKS)
    # The look-ahead is selected on other traces.
    practice = drawn(STARTS["s020"], few, 7)
    ahead = min(_AHEAD, key=lambda steps: mean_usd(play_cluster(book, practice, Bids.skyline(book, steps))))
    played = {}
    parts = {name: drawn(STARTS[name], traces, number) for name, number in (("s020", 8), ("s002", 9))}
    for name, part in parts.items():
        skyline = play_cluster(book, part, Bids.skyline(book, ahead))
        infinite = play_cluster(book, part, Bids.infinite(book))
        by_bid = {usd: play_cluster(book, part, Bids.fixed(book, usd)) for usd in _BIDS}
        best = min(by_bid.values(), key=mean_usd)
        figures[f"skyline_mean_cost_{name}"] = mean_usd(skyline)
        for bids, rival in (("infinity_bid", infinite), ("best_fixed_bid", best)):
            # On the same traces, so that what they have in common falls out.
            more = rival.cost_usd - skyline.cost_usd
            figures[f"{bids}_mean_cost_{name}"] = mean_usd(rival)
            figures[f"{bids}_minus_skyline_error_{name}"] = float(more.std() / math.sqrt(len(more)))
        missed += infinite.missed + skyline.missed
        played[name] = {f"{usd:g}": _row(found) for usd, found in by_bid.items()}
        played[name]["skyline"] = {**_row(skyline), "steps_ahead": float(ahead)}
    # The paper's figure is from 0.02 USD.
    tables |= {"fig7": played["s002"], "fig7_s020": played["s020"]}

    report("Figure 8: fixed sizes and bids, DBA")
    part = parts["s020"][:few]
    grid = {
        (size, usd): play_cluster(book, part, Bids.fixed(book, usd), Rules(fixed_size=size))
        for size in SIZES
        for usd in _FIXED_BIDS
    }
    dba = play_cluster(book, part, dba_bids(book, chain), Rules(fixed_size=_DBA_SIZE))
    kept = [found for found in grid.values() if found.missed <= FEW_MISSED * len(part)]
    figures["fixed_mean_cost"] = min((mean_usd(found) for found in kept), default=float("nan"))
    figures["dba_mean_cost"] = mean_usd(dba)
    tables["fig8"] = {f"{size} at {usd:g}": _row(found) for (size, usd), found in grid.items()}
    tables["fig8"]["dba"] = _row(dba)

    report("Table 2: on demand beside spot")
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
        figures |= {f"plus_mean_cost_{name}": mean_usd(both), f"fixed_plus_mean_cost_{name}": mean_usd(surrogate)}
        tables["table2"][name] = {
            "spot": mean_usd(spot),
            "plus": mean_usd(both),
            "fixed_plus": mean_usd(surrogate),
        }
        missed += spot.missed + both.missed
    return CumulonStudy(figures, tables, counts, missed, solved_s)


def by_the_hour(
    chain: PriceChain,
    workflow: Workflow,
    delay_ticks: int,
    *,
    start_s: float = _MONDAY_S,
    on_demand_usd: float | None = None,
) -> Cookbook:
    """A cookbook for whole hours, charged at their starting price and decided ahead by the delay."""
    steps = chain.steps(start_s - delay_ticks * TICK_S, DEADLINE_H, HOUR_S, charged_at=delay_ticks)
    market = ChargeModel(chain.prices, *steps)
    if on_demand_usd is not None:
        market = market.with_on_demand(on_demand_usd)
    return solve(CookbookProblem(workflow, market, most=MOST))


def dba_bids(book: Cookbook, chain: PriceChain) -> Bids:
    """DBA's bids (6.7) by the prices of traces of the chain."""
    seen = chain.simulate(_MONDAY_S, float(chain.prices[0]), 30 * 24 * TICKS, 20, 99)
    return Bids.dba(book, chain.prices[seen].ravel())


def _by_second(
    chain: PriceChain, workflow: Workflow, *, hours: int = DEADLINE_H, gamma: float = 0.0, unit_h: float = 1.0
) -> Cookbook:
    market = ChargeModel(chain.prices, *chain.steps(_MONDAY_S, hours, HOUR_S))
    return solve(CookbookProblem(workflow, market, most=MOST, work_unit_h=unit_h, risk_aversion=gamma))


def mean_usd(found: CookbookCosts) -> float:
    """Mean cost over all runs, USD, including those that missed the deadline."""
    return float(found.cost_usd.mean())


def _row(found: CookbookCosts) -> dict[str, float]:
    ended = np.isfinite(found.hours)
    return {
        "mean_usd": mean_usd(found),
        "deviation_usd": float(found.cost_usd.std()),
        "mean_h": float(found.hours[ended].mean()) if np.any(ended) else float("nan"),
        "missed": float(found.missed) / len(found.hours),
    }
