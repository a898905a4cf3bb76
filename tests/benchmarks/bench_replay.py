"""How fast replays are, beside a bare event queue."""

from __future__ import annotations

import time
from heapq import heappop, heappush

import pytest
from tests.benchmarks.floors import tell

import ebbtide as eb
from ebbtide.base.utc import to_epoch_s
from ebbtide.engine.engine import run_policy
from ebbtide.policies.api.events import Wake
from ebbtide.policies.registry import policies
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket

BILLING = eb.billing_preset("ec2-hourly")


def bare_queue_s(events: int) -> float:
    """Seconds that pushing and popping so many events takes with nothing else done."""
    began = time.perf_counter()
    queue: list[tuple[float, int]] = []
    for number in range(16):
        heappush(queue, (float(number), number))
    for number in range(events):
        moment, _ = heappop(queue)
        heappush(queue, (moment + 1.0, number))
    return time.perf_counter() - began


class Watching(eb.policies.Reactive):
    """Reactive, woken by every price: the most events a replay can have."""

    wakes_on = frozenset({Wake.PRICE})


@pytest.mark.real_traces
def test_events_a_second(benchmark, auction_2015: eb.PriceHistory, one_day: eb.Job) -> None:
    start_s = to_epoch_s("2015-04-20T00:00:00Z")
    moments = 0

    def replay() -> None:
        nonlocal moments
        provider = ReplayProvider(ReplayedMarket(auction_2015, start_s, BILLING))
        run_policy(Watching(wakes_on=frozenset({Wake.PRICE})), [one_day], provider, BILLING)
        moments = provider.moments

    benchmark.pedantic(replay, rounds=10, warmup_rounds=1)
    seconds = benchmark.stats.stats.median
    tell("replay, woken by every price", f"{moments / seconds:,.0f} events/s", seconds, bare_queue_s(moments))


@pytest.mark.real_traces
def test_the_backtest_of_the_documentation(benchmark, auction_2015: eb.PriceHistory, one_day: eb.Job) -> None:
    names = "on-demand,cheapest-spot,fastest-spot,reactive"

    def backtest() -> None:
        eb.backtest(one_day, policies(names), auction_2015, billing="ec2-hourly", starts=200, seed=1)

    benchmark.pedantic(backtest, rounds=5, warmup_rounds=1)
    began = time.perf_counter()
    for series in auction_2015.values():
        series.prices.max()
    floor_s = time.perf_counter() - began
    tell("4 policies x 200 starts", "target 10 s", benchmark.stats.stats.median, floor_s)
