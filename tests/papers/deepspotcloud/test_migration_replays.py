"""Compiled replays against the engine: the same cost to the cent, the same time, the same machines."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import START_S, history

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.jobs.job import Checkpointing, Dataset
from ebbtide.jobs.transfers import Bucket
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import MeasuredStartDelay, StartDelay
from ebbtide.replay.starts import draw_starts
from ebbtide_papers.deepspotcloud.migration_replays import MigrationReplays
from ebbtide_papers.deepspotcloud.study import LENGTHS_H, gpu_markets, one_type_job, with_generated_regions

MARKETS = (
    eb.Market("aws", "us-east-1", "us-east-1a", "g2.2xlarge"),
    eb.Market("aws", "eu-west-1", "eu-west-1a", "g2.2xlarge"),
    eb.Market("azure", "us-east", "us-east", "NC6"),
)
# The compiled replays know prices alone, as published.
POLICIES = [DeepSpotCloud(when, overlap=overlap, capacity=False) for when in MoveWhen for overlap in (False, True)]


def check(scenario: Scenario, policy: DeepSpotCloud, starts: list[float]) -> None:
    found = MigrationReplays(scenario).run(policy, starts)
    for n, start_s in enumerate(starts):
        outcome = scenario.run(policy, start_s)
        assert outcome.finished == (not math.isnan(found.makespan_s[n]))
        if outcome.finished:
            assert found.cost_usd[n] == pytest.approx(outcome.cost_usd, abs=1e-6)
            assert found.egress_usd[n] == pytest.approx(outcome.egress_usd, abs=1e-9)
            assert found.makespan_s[n] == pytest.approx(outcome.makespan_s, abs=1e-3)
            assert found.machines[n] == sum(lease.is_charged for lease in outcome.leases)
            assert found.revocations[n] == outcome.revocations
            assert found.steps_lost[n] == pytest.approx(outcome.steps_lost, abs=1e-2)


POINTS = st.lists(
    st.tuples(st.integers(0, 30 * 3600), st.sampled_from([0.05, 0.1, 0.2, 0.64, 0.66, 0.9, 1.2])),
    min_size=1,
    max_size=25,
    unique_by=lambda point: point[0],
)


@settings(max_examples=150, deadline=None)
@given(
    points=st.tuples(POINTS, POINTS, POINTS),
    billing=st.sampled_from(sorted(set(eb.market.billing.PRESETS) - {"on-demand", "by-cloud"})),
    policy=st.sampled_from(POLICIES),
    measured=st.booleans(),
    save_s=st.sampled_from([0.0, 5.0, 25.0, 110.0, 130.0]),
    dataset=st.booleans(),
    minutes=st.integers(1, 600),
    start_s=st.integers(0, 8 * 3600),
)
def test_they_agree_on_any_prices(
    points: tuple[list[tuple[int, float]], ...],
    billing: str,
    policy: DeepSpotCloud,
    measured: bool,
    save_s: float,
    dataset: bool,
    minutes: int,
    start_s: int,
) -> None:
    prices = history({market: sorted(own) for market, own in zip(MARKETS, points, strict=True)}, hours=40.0)
    work = eb.Job(
        name="g",
        steps=minutes * 60,
        steps_per_hour={"g2.2xlarge": 3600.0, "NC6": 5000.0},
        checkpoint=Checkpointing(save_s=save_s, restore_s=12.0, size_bytes=3 * 10**9, by_region=True),
        dataset=Dataset(size_bytes=5 * 10**9, cloud="aws", region="us-east-1", copy_s=45.0) if dataset else None,
    )
    delay = MeasuredStartDelay(7) if measured else StartDelay()
    scenario = Scenario((work,), prices, eb.billing_preset(billing), delay=delay)
    check(scenario, policy, [START_S + start_s, START_S + 3 * 3600])


@pytest.mark.long
@pytest.mark.real_traces
def test_they_agree_on_forty_replays_of_real_prices(auction_2015: eb.PriceHistory) -> None:
    catalogue = eb.default_catalogue()
    prices = with_generated_regions(gpu_markets(auction_2015, catalogue), catalogue, 1)
    # Fewer of the longer ones, which take the engine long.
    numbers = {"4h": 5, "1d": 3, "3d": 1, "1w": 1}
    assert sum(numbers.values()) * len(MoveWhen) == 40
    for name, number in numbers.items():
        work = one_type_job("g2.2xlarge", LENGTHS_H[name])
        scenario = Scenario((work,), prices, eb.billing_preset("ec2-hourly"), delay=MeasuredStartDelay(1))
        starts = list(draw_starts(work, prices, number, 11, catalogue))
        for when in MoveWhen:
            check(scenario, DeepSpotCloud(when), starts)


@pytest.mark.real_traces
def test_they_agree_at_the_scale_of_a_region(traces: object) -> None:
    catalogue = eb.default_catalogue()
    prices = eb.PriceHistory.read(f"{traces}/ec2-sa-east-1-2020.parquet").select(
        lambda market: market.instance_type.endswith((".xlarge", ".2xlarge"))
    )
    assert len(prices) > 150
    work = eb.Job(name="cpu", steps=6_000, steps_per_hour={}, other_steps_per_hour_per_vcpu=100.0)
    scenario = Scenario((work,), prices, eb.billing_preset("ec2-second"), delay=MeasuredStartDelay(1))
    starts = list(draw_starts(work, prices, 2, 3, catalogue))
    check(scenario, DeepSpotCloud(MoveWhen.PERIOD_END), starts)


def test_a_thousand_workers_or_one_find_the_same() -> None:
    prices = eb.generate_prices([*MARKETS[:2]], days=6, seed=3, kind="auction")
    scenario = Scenario((one_type_job("g2.2xlarge", 4.0),), prices, eb.billing_preset("ec2-hourly"))
    starts = np.floor(np.linspace(prices.start_s, prices.end_s - 40_000, 60)).tolist()
    runs = [MigrationReplays(scenario).run(DeepSpotCloud(MoveWhen.CHEAPER), starts, workers=n) for n in (1, 5)]
    np.testing.assert_array_equal(runs[0].cost_usd, runs[1].cost_usd)


def test_scenarios_that_they_do_not_cover_are_refused() -> None:
    prices = eb.generate_prices([*MARKETS[:2]], days=2, seed=3, kind="auction")
    work = one_type_job("g2.2xlarge", 1.0)
    billing = eb.billing_preset("ec2-hourly")
    for other in ({"checkpoint": None}, {"bucket": Bucket(cloud="aws", region="us-east-1")}):
        with pytest.raises(InputError, match="can be saved, is saved only to move, and has no bucket"):
            MigrationReplays(Scenario((work.model_copy(update=other),), prices, billing))
    with pytest.raises(InputError, match="no capacity"):
        MigrationReplays(Scenario((work,), prices, eb.billing_preset("on-demand")))
