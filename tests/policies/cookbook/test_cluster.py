"""Clusters by the hour on the engine: what the vectorised evaluation says, to the cent, trace by trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.billing import ON_DEMAND_HOURLY, billing_preset
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.actions import WakeAt
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cluster import RunCluster
from ebbtide.policies.cookbook.policy import elastic_job
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide_papers.cumulon.cluster_replays import Rules, play_cluster
from ebbtide_papers.cumulon.market import TICK_S, described_chain, rsvd_workflow
from ebbtide_papers.cumulon.study import by_the_hour

MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
MARKET = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
LIST_USD = 0.21
# A machine that comes initialises alone on the engine, while the cluster works on; in the fast path all wait.
WORK = rsvd_workflow().model_copy(update={"start_work_h": 0.0, "stop_work_h": 0.0})
# Taken at once, as the fast path has it.
BILLING = replace(billing_preset("ec2-hourly"), notice_s=0.0, on_demand=ON_DEMAND_HOURLY)


def on_the_engine(policy: RunCluster, trace: np.ndarray) -> eb.types.Outcome:
    times_s = MONDAY_S + np.arange(len(trace)) * TICK_S
    changed = np.append(True, np.diff(trace.astype(int)) != 0)
    series = PriceSeries(times_s[changed], described_chain().prices[trace][changed])
    prices = eb.PriceHistory({MARKET: series}, start_s=MONDAY_S, end_s=MONDAY_S + 30 * HOUR_S)
    job = elastic_job(WORK, "c3.xlarge")
    delay_s = getattr(policy, "policy", policy).delay_s
    scenario = Scenario((job,), prices, BILLING, delay=StartDelay(delay_s, 0.0))
    return scenario.run(policy, MONDAY_S)


@pytest.mark.parametrize("way", ["infinite", "skyline", "low", "fixed", "plus", "fixed plus"])
@pytest.mark.parametrize(
    ("delay", "runs"), [(0, 10), (2, 10), (5, 10), pytest.param(2, 200, marks=pytest.mark.exhaustive)]
)
def test_it_costs_what_the_fast_path_says(way: str, delay: int, runs: int) -> None:
    plus = way.endswith("plus")
    book = by_the_hour(described_chain(), WORK, delay, on_demand_usd=LIST_USD if plus else None)
    bids = {"infinite": Bids.infinite(book), "low": Bids.fixed(book, 0.3)}.get(way, Bids.skyline(book))
    size = 20 if way.startswith("fixed") else 0
    traces = described_chain().simulate(MONDAY_S, 0.2, 15 * 12, runs, seed=5)
    rules = Rules(delay_ticks=delay, fixed_size=size, on_demand_usd=LIST_USD if plus else np.inf)
    found = play_cluster(book, traces, bids, rules)
    policy = RunCluster(book, MARKET, bids, delay * TICK_S, on_demand=plus, fixed_size=size)
    for run, trace in enumerate(traces):
        outcome = on_the_engine(policy, trace)
        if np.isfinite(found.hours[run]):
            assert outcome.cost_usd == pytest.approx(found.cost_usd[run], abs=0.005)
            assert outcome.makespan_s / HOUR_S == pytest.approx(found.hours[run], abs=0.01)
        else:
            assert outcome.makespan_s > 15 * HOUR_S
    assert np.isfinite(found.hours).mean() > 0.9


def test_what_does_not_go_together_is_refused() -> None:
    book = by_the_hour(described_chain(), WORK, 2)
    with pytest.raises(InputError, match=r"bids of shape \(3, 4\) do not go with"):
        RunCluster(book, MARKET, Bids(np.zeros((3, 4))))
    with pytest.raises(InputError, match="must not be negative"):
        RunCluster(book, MARKET, Bids.infinite(book), delay_s=-1.0)


class Late:
    """A policy that is woken some time later than it asked for, as by a live clock."""

    def __init__(self, policy: RunCluster, late_s: float) -> None:
        self.policy, self.late_s = policy, late_s
        self.name, self.wakes_on = policy.name, policy.wakes_on

    def decide(self, view: Any) -> Iterator[Any]:
        for action in self.policy.decide(view):
            yield replace(action, time_s=action.time_s + self.late_s) if isinstance(action, WakeAt) else action


@pytest.mark.parametrize("late_s", [0.003, 0.5, 20.0])
def test_a_late_clock_releases_what_is_too_many_before_it_is_charged_again(late_s: float) -> None:
    """Ten machines are held at first, since the price is low, and given back when it has risen."""
    book = by_the_hour(described_chain(), WORK, 2)
    trace = np.concatenate([np.zeros(8, dtype=int), np.full(15 * 12 - 8, len(described_chain().prices) // 2)])
    policy = RunCluster(book, MARKET, Bids.infinite(book), 600.0, lead_s=60.0)
    exact, late = on_the_engine(policy, trace), on_the_engine(Late(policy, late_s), trace)  # type: ignore[arg-type]
    assert len({lease.ended_s for lease in exact.leases}) > 1
    assert late.cost_usd == pytest.approx(exact.cost_usd, rel=0.1)
    for outcome in (exact, late):
        for lease in outcome.leases:
            held_h = (lease.ended_s - lease.started_s) / HOUR_S
            # Just before it would be charged again, or when all was done.
            assert held_h % 1 > 1 - 61 / 3600 or lease.ended_s == outcome.end_s
