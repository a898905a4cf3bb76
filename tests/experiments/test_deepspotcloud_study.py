"""DeepSpotCloud's study, small: figures follow from the replays, availability from counting, every row is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.markets import history

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.experiments.deepspotcloud_reproduction import reproduce_deepspotcloud
from ebbtide.experiments.deepspotcloud_study import gpu_markets, migration_study, with_generated_regions
from ebbtide.policies.deepspotcloud import DeepSpotCloud, MoveWhen

HERE, THERE = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "g2.2xlarge") for zone in "ab")
# The list price is 0.65; for a tenth of the time one zone is above it.
PRICES = {
    HERE: [point for n in range(24) for point in ((n * 36_000.0, 0.10), (n * 36_000.0 + 32_400.0, 1.0))],
    THERE: [(0.0, 0.13)],
}


def test_the_study_by_hand() -> None:
    prices = history(PRICES, hours=240.0)
    found = migration_study(prices, starts=3, workers=1)
    assert list(found.replays) == ["4h", "1d", "3d"]
    assert found.available[str(HERE)] == pytest.approx(0.9)
    assert found.paid[str(HERE)] == pytest.approx((0.9 * 0.10 + 0.1 * 0.65) / 0.65)
    assert found.paid[str(THERE)] == pytest.approx(0.2)
    rows = {row.id: row for row in reproduce_deepspotcloud(found, None, inputs={}, seed=1).rows}
    assert len(rows) == 25
    week = rows["hourly_cost_vs_interrupt_1w"]
    assert week.ours is None
    assert not week.holds
    assert week.note == "the prices cover less than twice this length"
    day = found.replays["1d"]
    ratio = day["hourly"].cost_usd / day["interrupt"].cost_usd
    assert rows["hourly_cost_vs_interrupt_1d"].ours == pytest.approx(ratio)
    assert rows["hourly_cost_vs_interrupt_1d"].holds == (ratio <= 1.0)


def test_its_replays_are_those_of_a_backtest() -> None:
    prices = history(PRICES, hours=240.0)
    found = migration_study(prices, starts=4, workers=2).replays["4h"]["hourly"]
    work = eb.Job(
        name="g", steps=14_400, steps_per_hour={"g2.2xlarge": 3_600.0},
        checkpoint={"save_s": 25.0, "restore_s": 15.0, "size_bytes": 10**9},  # type: ignore[arg-type]
    )  # fmt: skip
    policy = DeepSpotCloud(MoveWhen.PERIOD_END)
    outcomes = eb.backtest([policy], work, prices, billing="ec2-hourly", starts=4, seed=1).outcomes[policy.name]
    assert found.cost_usd == pytest.approx(sum(outcome.cost_usd for outcome in outcomes) / 4)


def test_only_gpu_types_with_two_markets_can_move() -> None:
    with pytest.raises(InputError, match="nowhere to move"):
        gpu_markets(history({HERE: [(0, 0.1)]}), eb.default_catalogue())
    both = gpu_markets(eb.generate_prices(days=3, seed=1), eb.default_catalogue())
    assert {market.instance_type for market in both} == {"g2.2xlarge"}
    wider = with_generated_regions(both, eb.default_catalogue(), 1)
    assert len(wider) >= len(both)


def test_the_command_writes_the_same_bytes(tmp_path: Path) -> None:
    eb.generate_prices(days=12, seed=1).write(tmp_path / "prices.parquet")
    for name in ("one", "two"):
        with pytest.raises(SystemExit) as ended:
            main(["reproduce", "deepspotcloud", "--prices", str(tmp_path / "prices.parquet"), "--starts", "3", "--json",
                  str(tmp_path / f"{name}.json")])  # fmt: skip
        assert not ended.value.code
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    content = json.loads((tmp_path / "one.json").read_text())
    assert content["name"] == "deepspotcloud"
    assert len(content["rows"]) == 25
