"""What a move saves, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

import ebbtide as eb
from ebbtide.jobs.job import Checkpointing
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Bucket
from ebbtide.market.billing import Billing, billing_preset
from ebbtide.market.egress import EgressPrices
from ebbtide.market.leases import Lease
from ebbtide.market.markets import Place
from ebbtide.policies.deepspotcloud.policy import MovePlan

HERE = eb.Market("aws", "us-east-1", "us-east-1a", "g2.2xlarge")
THERE = eb.Market("aws", "us-east-1", "us-east-1b", "g2.2xlarge")
FAR = eb.Market("aws", "eu-west-1", "eu-west-1a", "g2.2xlarge")


@dataclass
class Now:
    """As much of a view as a move needs."""

    now_s: float
    billing: Billing
    prices: dict[eb.Market, float]
    catalogue: eb.types.Catalogue = field(default_factory=eb.default_catalogue)

    def price(self, market: eb.Market) -> float:
        return self.prices[market]

    def steps_per_s(self, job: eb.Job, market: eb.Market) -> float:
        return job.steps_per_s(market, self.catalogue)

    def machine(self, market: eb.Market) -> Any:
        return self.catalogue.instance_type(market.cloud, market.instance_type)

    def egress_usd(self, size_bytes: int, source: Place, destination: Place) -> float:
        return EgressPrices().usd(size_bytes, source, destination)


def saving(
    billing: str,
    left_s: float,
    *,
    to: eb.Market = THERE,
    there: float = 0.36,
    bucket: Bucket | None = None,
    interval_s: float | None = None,
    **plan: Any,
) -> float:
    """At 3,500 s of a lease at 0.72 USD an hour; saving takes 20 s, restoring 30 s, booting 100 s."""
    work = eb.Job(
        name="g",
        steps=10**6,
        steps_per_hour={"g2.2xlarge": 3600.0},
        checkpoint=Checkpointing(save_s=20.0, restore_s=30.0, size_bytes=2**31, interval_s=interval_s),
        bucket=bucket,
    )
    progress = JobProgress(0, work, steps_done=10**6 - left_s)
    lease = Lease(0, HERE, math.inf, False, 0.0, started_s=0.0, running_s=100.0)
    view = Now(3_500.0, billing_preset(billing), {HERE: 0.72, THERE: there, FAR: there})
    full = {"overlap": False, "lead_s": 0.0, "boot_s": 100.0, "horizon_s": 7_200.0, "moves_per_day": 8.0} | plan
    return MovePlan(**full).saving_usd(view, progress, lease, to)  # type: ignore[arg-type]


def test_by_the_second_the_time_of_setting_up_is_paid_for() -> None:
    # Two hours at half the price, less 130 s; a period of one second has no room in it.
    assert saving("per-second", 50_000.0) == pytest.approx(0.0001 * 7_200 - 0.0001 * 130 - 0.0002 * 20, abs=1e-6)
    # Near the end it counts what is left: 1,000 s and a save here, the same and setting up there.
    assert saving("per-second", 1_000.0) == pytest.approx(0.0002 * 1_020 - 0.0001 * 1_150 - 0.0002 * 20)


def test_to_another_region_egress_is_taken_off() -> None:
    assert saving("per-second", 50_000.0, to=FAR) == pytest.approx(saving("per-second", 50_000.0) - 2 * 0.02)


def test_by_the_hour_what_is_begun_is_paid_whole() -> None:
    # 1,000 s: one more hour either way.
    assert saving("ec2-hourly", 1_000.0) == pytest.approx(0.72 - 0.36)
    # 3,650 s: here 100 s of them are paid already, so one hour; there two.
    assert saving("ec2-hourly", 3_650.0) == pytest.approx(0.72 - 2 * 0.36)
    # It ends within the hour that is paid.
    assert saving("ec2-hourly", 70.0) == -math.inf


def test_room_in_the_last_hour_makes_moving_free() -> None:
    # Twenty hours and ten minutes are left: fifty minutes of room for some seven moves of 230 s.
    work_s = 100.0 - 20.0 + 20 * 3600 + 600
    assert saving("ec2-hourly", work_s) == pytest.approx(2 * (0.72 - 0.36))
    # One minute of room: it is all but paid for.
    full = saving("ec2-hourly", work_s + 49 * 60)
    moving_s = 8 * (work_s + 49 * 60 - 100 + 20) / 86_400 * 230
    assert full == pytest.approx(2 * (0.72 - 0.36) - 0.0001 * 230 * (1 - 60 / moving_s))


def test_with_overlap_the_old_machine_may_begin_another_hour() -> None:
    # Asked for 100 s before the end of the hour, the new one comes too late.
    plain, late = saving("ec2-hourly", 1_000.0), saving("ec2-hourly", 1_000.0, overlap=True, lead_s=180.0)
    assert late == pytest.approx(plain - 0.72)


def test_through_a_bucket_the_move_s_own_way_and_the_saves_to_come_count() -> None:
    """Eight moves a day are two thirds of one in two hours; 2 GiB cost 0.04 USD each time."""
    same = saving("per-second", 50_000.0)
    east, europe, west = (Bucket(cloud="aws", region=region) for region in ("us-east-1", "eu-west-1", "us-west-2"))
    # Beside the bucket: the save is free and the restore not; each save to come costs.
    assert saving("per-second", 50_000.0, to=FAR, bucket=east) == pytest.approx(same - 0.04 - 0.04 * 2 / 3)
    # To the bucket: the other way round.
    assert saving("per-second", 50_000.0, to=FAR, bucket=europe) == pytest.approx(same - 0.04 + 0.04 * 2 / 3)
    # It lies elsewhere: both cost, and nothing changes afterwards.
    assert saving("per-second", 50_000.0, to=FAR, bucket=west) == pytest.approx(same - 0.08)
    # Even next door it is uploaded and downloaded.
    assert saving("per-second", 50_000.0, bucket=west) == pytest.approx(same - 0.08)
    assert saving("per-second", 50_000.0, bucket=east) == pytest.approx(same)


def test_periodic_saves_over_the_horizon_count_and_at_the_end_the_last_one() -> None:
    east = Bucket(cloud="aws", region="us-east-1")
    long, short = saving("per-second", 50_000.0), saving("per-second", 1_000.0)
    found = saving("per-second", 50_000.0, to=FAR, bucket=east, interval_s=600.0)
    assert found == pytest.approx(long - 0.04 - 0.04 * (12 + 2 / 3))
    # 1,000 s in the same place for the rest: ten saves, and the last.
    found = saving("per-second", 1_000.0, to=FAR, bucket=east, interval_s=100.0)
    assert found == pytest.approx(short - 0.04 - 0.04 * 11)
