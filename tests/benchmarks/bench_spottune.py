"""How fast sweeps are replayed under SpotTune, beside the same sweeps held on one machine each."""

from __future__ import annotations

import time

import pytest
from tests.benchmarks.floors import tell

import ebbtide as eb
from ebbtide.forecasts.learning_curves.methods import table_two_curves
from ebbtide.forecasts.revocation.minutes import minutes_of
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.spottune.offers import StepCost
from ebbtide.policies.spottune.policy import SpotTune
from ebbtide_papers.spottune.study import forecasts
from ebbtide_papers.spottune.sweeps import WorkloadTrials, sweeps_of

STARTS = 20


def replayed_s(
    sweeps: list[WorkloadTrials], policies: list[Policy], prices: eb.PriceHistory, starts: list[float]
) -> float:
    began = time.perf_counter()
    for sweep in sweeps:
        eb.backtest(sweep.jobs, policies, prices, starts=starts, seed=1, curves=sweep.curves)
    return time.perf_counter() - began


@pytest.mark.real_traces
def test_sixteen_trials_twenty_starts_six_workloads_four_policies(
    benchmark, auction_2015: eb.PriceHistory
) -> None:
    """The predictor is trained beforehand; its looks at the prices are part of what is timed."""
    minutes = minutes_of(auction_2015)
    known = forecasts(minutes, train_until=40 * 1440, stride=120, seed=1, tell=lambda _text: None)["revpred"]
    sweeps = sweeps_of(table_two_curves(), auction_2015, eb.default_catalogue())
    starts = [float(minutes.times_s[60 * 1440 + 4_000 * number]) for number in range(STARTS)]
    baselines: list[Policy] = [eb.policies.CheapestSpot(), eb.policies.FastestSpot()]
    ours: list[Policy] = [
        SpotTune(theta=1.0, provisioner=StepCost(known), name="spottune-full"),
        SpotTune(theta=0.7, provisioner=StepCost(known), name="spottune"),
    ]
    benchmark.pedantic(lambda: replayed_s(sweeps, [*baselines, *ours], auction_2015, starts), rounds=1)
    floor_s = replayed_s(sweeps, baselines, auction_2015, starts)
    told = f"{16 * STARTS * 6 * 4:,} trials; target 60 s; floor: the two baselines"
    tell("SpotTune and baselines", told, benchmark.stats.stats.median, floor_s)
