"""DeepSpotCloud's study, small: figures follow from the replays, availability from counting, every row is there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.markets import history

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen
from ebbtide.replay.start_delay import MeasuredStartDelay
from ebbtide_papers.deepspotcloud import study
from ebbtide_papers.deepspotcloud.claims import reproduce_deepspotcloud
from ebbtide_papers.deepspotcloud.price_analysis import by_type, hourly_ratio, standings
from ebbtide_papers.deepspotcloud.regions import region_study
from ebbtide_papers.deepspotcloud.study import (
    gpu_markets,
    migrate_on_the_other_half,
    migration_study,
    one_type_job,
    with_generated_regions,
)

HERE, THERE = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "g2.2xlarge") for zone in "ab")
# The list price is 0.65; for a tenth of the time one zone is above it.
PRICES = {
    HERE: [point for n in range(24) for point in ((n * 36_000.0, 0.10), (n * 36_000.0 + 32_400.0, 1.0))],
    THERE: [(0.0, 0.13)],
}


def one_type(hours: float) -> eb.Job:
    return one_type_job("g2.2xlarge", hours)


def test_rows_follow_from_the_replays() -> None:
    prices = history(PRICES, hours=240.0)
    found = migration_study(prices, one_type, starts=3)
    assert list(found.replays) == ["4h", "1d", "3d"]
    analysis = standings(prices, eb.default_catalogue())
    rows = {row.id: row for row in reproduce_deepspotcloud(found, None, analysis, {}, inputs={}, seed=1).rows}
    assert len(rows) == 22
    assert rows["migrate_cost_vs_interrupt_1w_unseen"].missing.startswith("half of the prices")
    week = rows["hourly_cost_vs_interrupt_1w"]
    assert week.ours is None
    assert not week.holds
    assert week.missing == "the prices cover less than twice this length"
    day = found.replays["1d"]
    ratio = day["hourly"].cost_usd / day["interrupt"].cost_usd
    assert rows["hourly_cost_vs_interrupt_1d"].ours == pytest.approx(ratio)
    assert rows["hourly_cost_vs_interrupt_1d"].holds == (ratio <= 0.99)
    assert rows["gpu_availability_below_on_demand"].ours == pytest.approx(0.95)


def test_numbers_chosen_on_one_half_are_scored_on_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one number to choose from it is the mean of both halves; of several, no luckier than the best on each."""
    prices = history(PRICES, hours=240.0)
    middle_s = (prices.start_s + prices.end_s) / 2.0
    halves = (prices.window(prices.start_s, middle_s), prices.window(middle_s, prices.end_s))
    by_half = [migration_study(half, one_type, starts=5).replays["1d"] for half in halves]
    plain = [found["migrate"].cost_usd / found["interrupt"].cost_usd for found in by_half]
    of_many = migrate_on_the_other_half(prices, one_type, 24.0, starts=5)
    monkeypatch.setattr(study, "_STAYS_H", (DeepSpotCloud().stay_h,))
    monkeypatch.setattr(study, "_MOVES", (DeepSpotCloud().moves_per_day,))
    of_one = migrate_on_the_other_half(prices, one_type, 24.0, starts=5)
    assert of_one == pytest.approx(sum(plain) / 2.0, rel=1e-6)
    assert 0.5 < of_many < 1.1
    assert math.isnan(migrate_on_the_other_half(prices, one_type, 61.0, starts=2))


def test_prices_beside_the_list_price_by_hand() -> None:
    prices = history(PRICES, hours=240.0)
    here, there = standings(prices, eb.default_catalogue())
    assert here.available == pytest.approx(0.9)
    assert here.paid == pytest.approx((0.9 * 0.10 + 0.1 * 0.65) / 0.65)
    assert here.interrupts_per_day == pytest.approx(2.4)
    assert (there.available, there.paid, there.interrupts_per_day) == pytest.approx((1.0, 0.2, 0.0))
    table = by_type([here, there])["g2.2xlarge"]
    assert table["available"] == pytest.approx(0.95)
    assert table["interrupts_per_day"] == pytest.approx([0.0, 0.6, 1.2, 1.8, 2.4])
    days, ratio = hourly_ratio(prices, HERE, 0.65)
    assert days[-1] == pytest.approx(239 / 24)
    assert ratio[:10] == pytest.approx([0.10 / 0.65] * 9 + [1.0])


def test_its_replays_are_those_of_a_backtest() -> None:
    prices = history(PRICES, hours=240.0)
    found = migration_study(prices, one_type, starts=4).replays["4h"]["hourly"]
    policy = DeepSpotCloud(MoveWhen.PERIOD_END)
    outcomes = eb.backtest(
        one_type(4.0), [policy], prices, billing="ec2-hourly", starts=4, seed=1, delay=MeasuredStartDelay(1)
    ).outcomes[policy.name]
    assert found.cost_usd == pytest.approx(sum(outcome.cost_usd for outcome in outcomes) / 4)
    assert found.makespan_h == pytest.approx(sum(outcome.makespan_s for outcome in outcomes) / 4 / 3600)


def test_a_region_has_jobs_for_gpus_and_for_cores() -> None:
    zones = ("us-east-1a", "us-east-1b")
    types = ("p2.xlarge", "p3.2xlarge", "m4.xlarge", "m4.4xlarge", "t1.micro")
    markets = [eb.Market("aws", "us-east-1", zone, name) for zone in zones for name in types]
    prices = history({market: [(0, 0.1 * (1 + n))] for n, market in enumerate(markets)}, hours=120.0)
    found = region_study(prices, eb.default_catalogue(), starts=2, seed=1)
    assert {kind: one.study.markets for kind, one in found.items()} == {"gpu": 4, "cpu": 4}
    # A V100 does 9.6 times the steps of a K80: 0.2 / 9.6 against 0.1, 0.6 and 0.7 / 9.6; the median of four.
    usd = sorted([0.1, 0.6, 0.2 / 9.6, 0.7 / 9.6])
    assert found["gpu"].choice.median_market == pytest.approx((usd[1] + usd[2]) / 2 / usd[0])
    assert found["gpu"].choice.median_zone == pytest.approx((0.2 + 0.7) / 2 / 0.2)
    # Nothing moves where no price does.
    assert found["cpu"].study.replays["4h"]["migrate"].moves == 0
    with pytest.raises(InputError, match="no two markets that suit"):
        region_study(history({markets[-1]: [(0, 0.1)]}), eb.default_catalogue(), starts=2, seed=1)


def test_only_gpu_types_with_two_markets_can_move() -> None:
    with pytest.raises(InputError, match="nowhere to move"):
        gpu_markets(history({HERE: [(0, 0.1)]}), eb.default_catalogue())
    both = gpu_markets(eb.generate_prices(days=3, seed=1, kind="auction"), eb.default_catalogue())
    assert {market.instance_type for market in both} == {"g2.2xlarge"}
    wider = with_generated_regions(both, eb.default_catalogue(), 1)
    assert len(wider) > len(both)
    # Also in the image of markets whose price never changes.
    still = history({HERE: [(0, 0.1)], THERE: [(0, 0.2)]})
    assert len(with_generated_regions(still, eb.default_catalogue(), 1)) > 2


def test_the_command_writes_the_same_bytes(tmp_path: Path) -> None:
    eb.generate_prices(days=12, seed=1, kind="auction").write(tmp_path / "prices.parquet")
    for name in ("one", "two"):
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "reproduce",
                    "deepspotcloud",
                    "--prices",
                    str(tmp_path / "prices.parquet"),
                    "--starts",
                    "3",
                    "--json",
                    str(tmp_path / f"{name}.json"),
                ]
            )
        assert not ended.value.code
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    content = json.loads((tmp_path / "one.json").read_text())
    assert content["name"] == "deepspotcloud"
    assert len(content["rows"]) == 22
