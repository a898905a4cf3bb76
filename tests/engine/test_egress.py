"""Data that move with a job are in the ledger, and within the budget."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import START_S, history

import ebbtide as eb
from ebbtide.engine.ledger import LineKind
from ebbtide.jobs.job import Checkpointing, Dataset
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.egress import GIB
from ebbtide.policies.api.actions import Request
from ebbtide.policies.api.events import Wake
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.testing.scripted import Scripted, replay

EAST = eb.Market("aws", "us-east-1", "us-east-1a", "g2.2xlarge")
NEXT_DOOR = eb.Market("aws", "us-east-1", "us-east-1b", "g2.2xlarge")
EUROPE = eb.Market("aws", "eu-west-1", "eu-west-1a", "g2.2xlarge")
AZURE = eb.Market("azure", "us-east", "us-east", "NC6")


def job(hours: int = 3, **more: object) -> eb.Job:
    return eb.Job(
        name="g",
        steps=3600 * hours,
        steps_per_hour={"g2.2xlarge": 3600.0, "NC6": 3600.0},
        checkpoint=Checkpointing(save_s=10.0, restore_s=10.0, size_bytes=2 * GIB),
        **more,
    )  # type: ignore[arg-type]


def moved(market: eb.Market, work: eb.Job) -> eb.types.Outcome:
    """From the east, where the price leaps after an hour, to another market."""
    policy = Scripted(
        {
            Wake.START: lambda *_: [Request(EAST, 0.5, job=0)],
            Wake.NOTICE: lambda *_: [Request(market, job=0)],
        }
    )
    return replay(policy, [work], history({EAST: [(0, 0.1), (3600, 0.6)], market: [(0, 0.1)]}))


def test_a_checkpoint_that_leaves_its_region_is_a_line() -> None:
    outcome = moved(EUROPE, job())
    assert outcome.finished
    (line,) = [line for line in outcome.ledger.lines if line.entry is LineKind.EGRESS]
    assert line.usd == pytest.approx(2 * 0.02)
    assert line.lease_id == 1
    assert line.start_s == line.end_s > START_S + 3600
    assert outcome.egress_usd == line.usd
    assert outcome.cost_usd == pytest.approx(math.fsum(line.usd for line in outcome.ledger.lines))
    assert outcome.cost_usd == pytest.approx(outcome.ledger.usd_of(0) + outcome.ledger.usd_of(1) + 0.04)
    assert set(outcome.ledger.to_frame().entry) == {LineKind.CHARGE, LineKind.EGRESS}


def test_next_door_it_costs_nothing() -> None:
    outcome = moved(NEXT_DOOR, job())
    assert outcome.finished
    assert outcome.egress_usd == 0


def test_to_another_cloud_the_dataset_goes_too_and_the_job_waits_for_it() -> None:
    dataset = Dataset(size_bytes=50 * GIB, cloud="aws", region="us-east-1", copy_s=600.0)
    outcome, without = moved(AZURE, job(dataset=dataset)), moved(AZURE, job())
    assert outcome.egress_usd == pytest.approx((50 + 2) * 0.09)
    assert without.egress_usd == pytest.approx(2 * 0.09)
    assert outcome.makespan_s == pytest.approx(without.makespan_s + 600.0)


def test_migrate_weighs_egress_and_best_price_does_not() -> None:
    """Half a cent an hour cheaper across the ocean, for four hours: not worth 20 GiB."""
    heavy = eb.Job(
        name="g",
        steps=4 * 3600,
        steps_per_hour={"g2.2xlarge": 3600.0},
        checkpoint=Checkpointing(save_s=10.0, restore_s=10.0, size_bytes=20 * GIB),
    )
    prices = history({EAST: [(0, 0.100), (1800, 0.110)], EUROPE: [(0, 0.105)]})
    moves = {}
    for when in (MoveWhen.CHEAPER, MoveWhen.PERIOD_END, MoveWhen.WORTHWHILE):
        policy = DeepSpotCloud(when)
        (outcome,) = eb.backtest(heavy, [policy], prices, billing="ec2-second", starts=[START_S]).outcomes[
            policy.name
        ]
        moves[when] = len(outcome.leases) - 1
        assert outcome.egress_usd == pytest.approx(0.40 * moves[when])
    assert moves == {MoveWhen.CHEAPER: 1, MoveWhen.PERIOD_END: 1, MoveWhen.WORTHWHILE: 0}


@cache
def six_days(seed: int) -> eb.PriceHistory:
    azure = eb.Market("azure", "us-east", "us-east", "NC6", "Linux")
    return eb.generate_prices([EAST, EUROPE, azure], days=6, seed=seed, kind="auction")


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(list(MoveWhen)), st.floats(0.05, 6.0), st.integers(0, 5), st.booleans())
def test_a_budget_is_not_passed_by_egress(when: MoveWhen, budget_usd: float, seed: int, overlap: bool) -> None:
    prices = six_days(seed)
    dataset = Dataset(size_bytes=10 * GIB, cloud="aws", region="us-east-1")
    policy = eb.policies.WithinBudget(DeepSpotCloud(when, overlap=overlap), budget_usd)
    found = eb.backtest(job(30, dataset=dataset), [policy], prices, starts=[prices.start_s + 3600])
    (outcome,) = found.outcomes[policy.name]
    assert outcome.cost_usd <= budget_usd
    assert outcome.finished or outcome.gave_up


US_EAST, US_WEST = (Bucket(cloud="aws", region=region) for region in ("us-east-1", "us-west-2"))


def uploads_and_downloads(outcome: eb.types.Outcome) -> list[tuple[int, float]]:
    """Lease and USD of each line of egress, in order."""
    return [
        (line.lease_id, pytest.approx(line.usd)) for line in outcome.ledger.lines if line.entry is LineKind.EGRESS
    ]


def test_through_a_bucket_each_save_and_restore_in_another_region_is_a_line() -> None:
    """2 GiB at 0.02 USD: saved at the notice, restored across the ocean, saved at the end."""
    elsewhere = moved(EUROPE, job(bucket=US_WEST))
    assert elsewhere.finished
    assert uploads_and_downloads(elsewhere) == [(0, 0.04), (1, 0.04), (1, 0.04)]
    # What is saved beside the bucket costs nothing.
    assert uploads_and_downloads(moved(EUROPE, job(bucket=US_EAST))) == [(1, 0.04), (1, 0.04)]
    assert uploads_and_downloads(moved(NEXT_DOOR, job(bucket=US_EAST))) == []
    # From another cloud to the bucket and back it is more.
    (there, back) = uploads_and_downloads(moved(AZURE, job(bucket=US_EAST)))
    assert (there, back) == ((1, 2 * 0.09), (1, 2 * 0.087))


def test_a_save_to_another_region_takes_the_time_of_its_upload() -> None:
    """Europe to the east of the US: 24.1 s a GB; back 12.9 s; from the east to itself 14.8 s."""
    slow = Checkpointing(save_s=10.0, restore_s=10.0, size_bytes=2 * 10**9, by_region=True)
    fast = slow.model_copy(update={"by_region": False})
    times = [
        moved(EUROPE, job().model_copy(update={"checkpoint": each, "bucket": US_EAST})).makespan_s
        for each in (slow, fast)
    ]
    # The save at the notice begins earlier by what it takes, the steps of that time are trained in Europe.
    assert times[0] - times[1] == pytest.approx(2 * (14.8 + 12.9 + 24.1), abs=1.0)


def test_every_periodic_save_is_charged() -> None:
    periodic = Checkpointing(save_s=10.0, restore_s=10.0, size_bytes=GIB, interval_s=1800.0)
    work = job().model_copy(update={"checkpoint": periodic, "bucket": US_EAST})
    outcome = replay(eb.policies.CheapestSpot(), [work], history({EUROPE: [(0, 0.1)]}))
    assert outcome.finished
    # Each half hour but for the first half minute, and at the end.
    assert outcome.checkpoints == 3 * 2 + 1
    assert uploads_and_downloads(outcome) == [(0, 0.02)] * 7


def test_migrate_counts_the_saves_to_come() -> None:
    """12 of 15 tenths of a cent an hour are saved across the ocean, and twelve saves of 0.1 GiB cost 24."""
    prices = history({EAST: [(0, 0.105), (1800, 0.120)], EUROPE: [(0, 0.1055)]})
    policy, moves = DeepSpotCloud(MoveWhen.WORTHWHILE), {}
    checkpoint = Checkpointing(save_s=10.0, restore_s=10.0, size_bytes=GIB // 10, interval_s=300.0)
    for name, bucket in {"none": None, "here": US_EAST, "there": Bucket(cloud="aws", region="eu-west-1")}.items():
        work = job(4).model_copy(update={"checkpoint": checkpoint, "bucket": bucket})
        result = eb.backtest(work, [policy], prices, billing="ec2-second", starts=[START_S])
        (outcome,) = result.outcomes[policy.name]
        moves[name] = len(outcome.leases) - 1
    assert moves == {"none": 1, "here": 0, "there": 1}


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(list(MoveWhen)),
    st.floats(0.02, 1.2),
    st.integers(0, 5),
    st.sampled_from(["us-east-1", "eu-west-1", "ap-northeast-1"]),
    st.sampled_from([None, 600.0, 5000.0]),
)
def test_a_budget_is_not_passed_by_uploads(
    when: MoveWhen, budget_usd: float, seed: int, region: str, interval_s: float | None
) -> None:
    prices = six_days(seed)
    checkpoint = Checkpointing(
        save_s=10.0, restore_s=10.0, size_bytes=2 * GIB, interval_s=interval_s, by_region=True
    )
    update = {"checkpoint": checkpoint, "bucket": Bucket(cloud="aws", region=region)}
    policy = eb.policies.WithinBudget(DeepSpotCloud(when), budget_usd)
    result = eb.backtest(job(6).model_copy(update=update), [policy], prices, starts=[prices.start_s + 3600])
    (outcome,) = result.outcomes[policy.name]
    assert outcome.cost_usd <= budget_usd
    assert outcome.finished or outcome.gave_up
    saved = sum(line.entry is LineKind.EGRESS for line in outcome.ledger.lines)
    assert saved <= outcome.checkpoints + sum(found.restores for found in outcome.jobs)
