"""How fast DeepSpotCloud's table is made: 12,000 replays, with nothing compiled yet and with all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks.floors import tell

import ebbtide as eb
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import MeasuredStartDelay
from ebbtide.replay.starts import draw_starts
from ebbtide_papers.deepspotcloud.migration_replays import MigrationReplays
from ebbtide_papers.deepspotcloud.study import (
    LENGTHS_H,
    gpu_markets,
    migration_study,
    one_type_job,
    with_generated_regions,
)

STARTS = 1_000
PAPERS = [MoveWhen.NEVER, MoveWhen.CHEAPER, MoveWhen.PERIOD_END]


@pytest.fixture(scope="module")
def markets() -> eb.PriceHistory:
    """Two zones and five generated ones."""
    catalogue = eb.default_catalogue()
    whole = eb.generate_prices(days=130, seed=1, kind="auction")
    return with_generated_regions(gpu_markets(whole, catalogue), catalogue, 1)


def table(prices: eb.PriceHistory) -> int:
    """The paper's table; how many prices were set while the jobs ran."""
    catalogue = eb.default_catalogue()
    moments = 0
    times = np.sort(np.concatenate([series.times_s for series in prices.values()]))
    for hours in LENGTHS_H.values():
        job = one_type_job("g2.2xlarge", hours)
        starts = draw_starts(job, prices, STARTS, 1, catalogue)
        compiled = MigrationReplays(
            Scenario((job,), prices, eb.billing_preset("ec2-hourly"), delay=MeasuredStartDelay(1))
        )
        for when in PAPERS:
            ends = np.array(starts) + np.nan_to_num(compiled.run(DeepSpotCloud(when), starts).makespan_s)
            moments += int((np.searchsorted(times, ends) - np.searchsorted(times, starts)).sum())
    return moments


def test_twelve_thousand_replays(benchmark, markets: eb.PriceHistory) -> None:
    table(markets)
    benchmark.pedantic(lambda: table(markets), rounds=1)
    moments = table(markets)
    prices = np.random.default_rng(1).random(10**7)
    began = time.perf_counter()
    prices.sum()
    floor_s = (time.perf_counter() - began) * moments / len(prices)
    told = f"12,000 replays through {moments:,} prices; target 20 s; floor: reading each price once"
    tell("DeepSpotCloud's table, compiled", told, benchmark.stats.stats.median, floor_s)


def test_beside_the_engine(benchmark, markets: eb.PriceHistory) -> None:
    job = one_type_job("g2.2xlarge", LENGTHS_H["1d"])
    scenario = Scenario((job,), markets, eb.billing_preset("ec2-hourly"), delay=MeasuredStartDelay(1))
    starts = draw_starts(job, markets, 20, 1, eb.default_catalogue())
    compiled, policy = MigrationReplays(scenario), DeepSpotCloud(MoveWhen.CHEAPER)
    began = time.perf_counter()
    compiled.run(policy, starts)
    compiled_s = time.perf_counter() - began
    benchmark.pedantic(lambda: [scenario.run(policy, start_s) for start_s in starts], rounds=1)
    told = "20 replays of best-price over a day; floor: compiled"
    tell("the same on the engine", told, benchmark.stats.stats.median, compiled_s)


def test_with_nothing_compiled(benchmark, tmp_path: Path) -> None:
    """A fresh process with an empty cache: imports, compilation, and the table with `migrate`."""
    eb.generate_prices(days=130, seed=1, kind="auction").write(tmp_path / "prices.parquet")
    command = [
        sys.executable,
        "-m",
        "ebbtide.cli.main",
        "reproduce",
        "deepspotcloud",
        "--prices",
        str(tmp_path / "prices.parquet"),
        "--real-only",
    ]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run() -> float:
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return time.perf_counter() - began

    cold_s = benchmark.pedantic(run, rounds=1)
    tell(
        "16,000 replays from nothing",
        "one process, empty cache; target 20 s; floor: with the cache",
        cold_s,
        run(),
    )


def test_a_table_is_a_study(markets: eb.PriceHistory) -> None:
    """What is timed is what the study does."""
    found = migration_study(markets, lambda hours: one_type_job("g2.2xlarge", hours), starts=5)
    assert list(found.replays) == list(LENGTHS_H)
