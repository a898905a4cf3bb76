"""Several zones on records: how tables are read, and what policies cost there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.conftest import TRACES

from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.forecasts.capacity.records import ZoneRecords, kind_of
from ebbtide.market.markets import Place
from ebbtide_papers.deadlines import zones
from ebbtide_papers.deadlines.claims import reproduce_deadlines
from ebbtide_papers.deadlines.inputs import read_inputs
from ebbtide_papers.deadlines.zone_rows import multi_claims, multi_rows
from ebbtide_papers.deadlines.zone_sets import read_capacity_rounds, read_probed_zones
from ebbtide_papers.deadlines.zones import ZonesStudy, study_zones

BEGINS = pd.Timestamp("2023-02-15 22:00", tz="UTC")


@pytest.fixture(scope="module")
def short_work() -> Iterator[None]:
    """Twelve hours of work in a day: tables of long work take long to solve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zones, "WORK_H", 12.0)
        patch.setattr(zones, "DEADLINE_H", 24.0)
        yield


@pytest.fixture(scope="module")
def gangs(short_work: None) -> dict[bool, ZonesStudy]:
    """Four machines in two zones, by whether there are runs on any number of them, too."""
    rng = np.random.default_rng(0)
    counts = rng.choice([0, 2, 4], p=[0.05, 0.05, 0.9], size=(2, 24 * 6 * 4))
    records = ZoneRecords(
        "two zones",
        "v100",
        ("us-east-1a", "us-west-2b"),
        (Place("aws", "us-east-1"), Place("aws", "us-west-2")),
        4,
        counts == 4,
        np.full(counts.shape, 4.0),
        4 * 3.06,
        600.0,
        BEGINS.timestamp(),
        counts=counts,
    )
    return {elastic: study_zones(records, 10**9, 2, 0, elastic=elastic) for elastic in (False, True)}


def probes(ticks: int = 30) -> pd.DataFrame:
    rows = [
        {
            "timestamp": BEGINS + pd.Timedelta(minutes=10 * tick),
            "cloud": "aws",
            "region": zone[:-1],
            "zone": zone,
            "instance_type": "p3.2xlarge",
            "gpu_type": "v100",
            "gpus_per_instance": 1,
            "interval_seconds": 600,
            "available": int((tick + place) % 3 > 0),
        }
        for tick in range(ticks)
        for place, zone in enumerate(("us-east-1a", "us-west-2b", "us-east-2c"))
    ]
    return pd.DataFrame(rows)


def prices() -> pd.DataFrame:
    rows = [
        {
            "timestamp": BEGINS + pd.Timedelta(minutes=minutes),
            "cloud": "aws",
            "region": zone[:-1],
            "zone": zone,
            "instance_type": "p3.2xlarge",
            "product": "Linux/UNIX",
            "price_usd_per_hour": usd,
        }
        for zone, minutes, usd in (
            ("us-east-1a", -60, 1.5),
            ("us-east-1a", 100, 1.6),
            ("us-west-2b", 20, 0.9),
            ("us-west-2b", 250, 0.95),
        )
    ]
    return pd.DataFrame(rows)


def test_probes_and_prices_are_laid_on_one_grid(tmp_path: Path) -> None:
    probes().to_parquet(tmp_path / "probes.parquet")
    prices().to_parquet(tmp_path / "prices.parquet")
    (found,) = read_probed_zones(tmp_path / "probes.parquet", [tmp_path / "prices.parquet"])
    # us-east-2c has no price; from the first time at which both have one to the last change that was seen.
    assert found.zones == ("us-east-1a", "us-west-2b")
    assert found.unpriced == ("us-east-2c",)
    assert found.places == (Place("aws", "us-east-1"), Place("aws", "us-west-2"))
    assert found.begins_s == (BEGINS + pd.Timedelta(minutes=20)).timestamp()
    assert found.ticks == 24
    assert found.spot_usd[:, 7].tolist() == [1.5, 0.9]
    assert found.spot_usd[:, -1].tolist() == [1.6, 0.95]
    assert found.available[0].tolist() == [tick % 3 > 0 for tick in range(2, 26)]
    assert (found.accelerator, found.on_demand_usd, found.tick_s) == ("v100", 3.06, 600.0)


def test_rounds_count_any_machine_or_all(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": BEGINS + pd.Timedelta(minutes=10 * tick),
            "cloud": "gcp",
            "region": "us-east4",
            "zone": zone,
            "instance_type": "a3-highgpu-1g",
            "gpu_type": "h100",
            "gpus_per_instance": 1,
            "interval_seconds": 600,
            "requested": 16,
            "launched": launched,
            "capacity_errors": 16 - launched,
        }
        for zone, counts in (("us-east4-a", (0, 3, 16)), ("us-east4-b", (16, 15, 0)))
        for tick, launched in enumerate(counts)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "rounds.parquet")
    listed = [
        {
            "as_of": BEGINS + pd.Timedelta(days=day),
            "cloud": "gcp",
            "region": "us-east4",
            "accelerator": "NVIDIA H100",
            "accelerator_count": 8,
            "spot_usd_per_hour": usd,
        }
        for day, usd in ((1, 16.0), (0, 99.0))
    ]
    pd.DataFrame(listed).to_parquet(tmp_path / "catalogue.parquet")
    ((any_of, all_of),) = read_capacity_rounds(tmp_path / "rounds.parquet", [tmp_path / "catalogue.parquet"])
    assert any_of.available.tolist() == [[False, True, True], [True, True, False]]
    assert all_of.available.tolist() == [[False, False, True], [True, False, False]]
    # Sixteen at the newest list price of eight.
    assert any_of.spot_usd.tolist() == all_of.spot_usd.tolist() == [[32.0] * 3] * 2
    assert any_of.on_demand_usd == pytest.approx(2 * 82.53)
    assert any_of.reading == ""
    assert any_of.counts is not None
    assert any_of.counts.max() == 16
    halves = all_of.in_parts([16, 8])
    assert halves.zones[:2] == (f"16 x {all_of.zones[0]}", f"8 x {all_of.zones[0]}")
    assert (halves.available[0] == all_of.available[0]).all()
    assert (halves.available[1] == (any_of.counts[0] >= 8)).all()
    assert halves.spot_usd[:2, 0].tolist() == [32.0, 16.0]
    assert halves.speed == (1.0, 0.5) * 2
    assert halves.alone(1).speed == (0.5,)
    with pytest.raises(InputError, match="not known how many machines there were"):
        replace(all_of, counts=None).in_parts([16])
    with pytest.raises(InputError, match="spot prices of h100 are listed for 0 of its zones"):
        read_capacity_rounds(tmp_path / "rounds.parquet", [])


def test_rounds_are_read_once_more_with_the_prices_of_their_days(tmp_path: Path) -> None:
    """A cloud with one price for a region: both of its zones have it; a zone that has none yet is left out."""
    table = rounds()
    elsewhere = table[table["zone"] == "us-east4-a"].assign(region="us-west1", zone="us-west1-b")
    pd.concat([table, elsewhere]).to_parquet(tmp_path / "rounds.parquet")
    moved = [
        {
            "timestamp": BEGINS + pd.Timedelta(minutes=minutes),
            "cloud": "gcp",
            "region": region,
            "zone": region,
            "instance_type": "a3-highgpu-1g",
            "product": "Linux/UNIX",
            "price_usd_per_hour": usd,
        }
        for region, minutes, usd in (("us-east4", -60, 2.0), ("us-east4", 15, 3.0), ("us-west1", 5, 1.0))
    ]
    (tmp_path / "today").mkdir()
    pd.DataFrame(moved).to_parquet(tmp_path / "today" / "prices.parquet")
    given = read_inputs([tmp_path / "rounds.parquet"])
    ((any_of, all_of),) = given.rounds
    assert any_of.reading == all_of.reading == "real_prices"
    assert any_of.zones == ("us-east4-a", "us-east4-b")
    assert any_of.unpriced == ("us-west1-b",)
    assert any_of.spot_usd.tolist() == [[32.0, 32.0, 48.0]] * 2
    # The list price of February 2023, or the first that is known.
    assert any_of.on_demand_usd > 16 * 3.0
    assert {path.name for path in given.files} == {"rounds.parquet", "prices.parquet"}
    assert set(multi_claims("h100_real_prices", gang=True)) == {
        *(f"multi_h100_real_prices_whole_gang_cost_vs_{one}" for one in ("failover", "optimum", "best_zone")),
        "multi_h100_real_prices_whole_gang_cost_vs_uniform_progress",
        "multi_h100_real_prices_whole_gang_elastic_vs_whole",
        "multi_misses",
    }


def test_what_is_given_is_known_by_its_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probes().to_parquet(tmp_path / "probes.parquet")
    prices().to_parquet(tmp_path / "prices.parquet")
    assert kind_of(tmp_path / "probes.parquet") == "probes"
    assert kind_of(tmp_path / "prices.parquet") == "prices"
    given = read_inputs([tmp_path / "probes.parquet"])
    assert [one.name for one in given.probed] == ["p3.2xlarge 2023-02-15"]
    assert {path.name for path in given.files} == {"probes.parquet", "prices.parquet"}
    assert read_inputs([tmp_path]).files == given.files
    with pytest.raises(InputError, match="nothing there tells of availability"):
        read_inputs([tmp_path / "prices.parquet"])
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "deadlines", "--traces", str(tmp_path / "none.parquet")])
    assert ended.value.code == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_record_that_is_too_short_is_refused() -> None:
    places = (Place("aws", "a-1"), Place("aws", "b-1"))
    up = np.ones((2, 400), dtype=bool)
    short = ZoneRecords("short", "v100", ("a", "b"), places, 1, up, np.ones((2, 400)), 3.0, 600.0, 0.0)
    with pytest.raises(InputError, match="short: a record of 67 h is too short for a past of a day"):
        study_zones(short, 10**9, 3, 0)


def test_every_policy_runs_from_the_same_starts_and_none_beats_the_optimum(short_work: None) -> None:
    """Three days of two drawn zones: too short a past to choose the interval on."""
    model = default_spell_models().otherwise
    random = np.random.default_rng(1)
    up = np.stack([model.drawn(433, 600.0, random) for _ in range(2)])
    usd = np.repeat(np.array([[1.0], [1.1]]), 433, axis=1)
    places = (Place("aws", "us-east-1"), Place("aws", "us-west-2"))
    days = ZoneRecords("days", "v100", ("a", "b"), places, 1, up, usd, 3.0, 600.0, BEGINS.timestamp())
    study = study_zones(days, 50 * 10**9, 12, 0)
    assert study.ask_every_s == 7200.0
    best = study.runs["optimum"].usd
    for runs in study.runs.values():
        assert runs.late_h.max() == 0.0
        assert (runs.usd >= best - 0.05).all()
    assert study.runs["deadline"].usd.mean() < study.runs["next-cheapest failover"].usd.mean()
    rows = {row.id: row for row in multi_rows([study], [])}
    assert rows["multi_misses"].holds
    assert rows["multi_v100_cost_vs_optimum"].ours == pytest.approx(
        study.runs["deadline"].usd.mean() / best.mean()
    )


@pytest.mark.exhaustive
@pytest.mark.real_traces
def test_on_real_zones_it_is_near_the_optimum_and_never_late(tmp_path: Path) -> None:
    out = tmp_path / "deadlines.json"
    files = ("ec2-gpu-availability-2022-2023.parquet", "gcp-h100-capacity-2025.parquet")
    options = [part for name in files for part in ("--traces", str(TRACES / name))]
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "deadlines", *options, "--starts", "20", "--json", str(out)])
    assert ended.value.code in (0, None)
    content = json.loads(out.read_text())
    rows = {row["id"]: row["ours"] for row in content["rows"]}
    assert rows["multi_misses"] == 0
    assert 1.0 <= rows["multi_v100_cost_vs_optimum"] <= 1.10
    assert 1.0 <= rows["multi_h100_cost_vs_optimum"] <= 1.06
    assert rows["multi_v100_cost_vs_failover"] < 1.0
    assert rows["multi_h100_cost_vs_failover"] < 1.0
    for study in content["tables"]["several_zones"]:
        usd = {name: row["mean_usd"] for name, row in study["policies"].items()}
        # A job on any number of machines may cost less than the best that needs all: each has its own optimum.
        elastic = {name: cost for name, cost in usd.items() if "any number" in name}
        assert usd["optimum"] == min(cost for name, cost in usd.items() if name not in elastic)
        if elastic:
            assert elastic["optimum, any number of machines"] == min(usd.values())


def ticks(hours: float) -> pd.DataFrame:
    """One zone, probed every ten minutes: there for an hour, gone for twenty minutes."""
    data = [int(tick % 8 < 6) for tick in range(int(hours * 6))]
    return pd.DataFrame(
        [
            {
                "kind": "availability",
                "nodes": 1,
                "zone": "us-east-1a",
                "device": "V100",
                "device_count": 1,
                "start": BEGINS,
                "gap_seconds": 600,
                "data": data,
            }
        ]
    )


def rounds() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "timestamp": BEGINS + pd.Timedelta(minutes=10 * tick),
                "cloud": "gcp",
                "region": "us-east4",
                "zone": zone,
                "instance_type": "a3-highgpu-1g",
                "gpu_type": "h100",
                "gpus_per_instance": 1,
                "interval_seconds": 600,
                "requested": 16,
                "launched": 16,
            }
            for zone in ("us-east4-a", "us-east4-b")
            for tick in range(3)
        ]
    )


@pytest.mark.long
def test_what_cannot_be_computed_is_a_row_that_does_not_hold_with_the_reason(tmp_path: Path) -> None:
    """Probes without prices and rounds without list prices, beside a record of one zone that is long enough."""
    ticks(73.0).to_parquet(tmp_path / "ticks.parquet")
    probes().to_parquet(tmp_path / "probes.parquet")
    rounds().to_parquet(tmp_path / "rounds.parquet")
    told: list[tuple[str, float, float]] = []
    given = read_inputs([tmp_path])
    found = reproduce_deadlines(given, starts=1, on_progress=lambda *row: told.append(row))
    rows = {row.id: row for row in found.rows}
    assert len(rows) == len(found.rows)
    assert rows["misses"].holds
    for name in ("multi_v100", "multi_h100", "multi_h100_whole_gang"):
        row = rows[f"{name}_cost_vs_failover"]
        assert not row.holds
        assert row.ours is None
        assert row.missing
    assert "0 zones of p3.2xlarge" in rows["multi_v100_cost_vs_optimum"].missing
    assert "rounds.parquet: spot prices of h100 are listed for 0" in rows["multi_h100_cost_vs_best_zone"].missing
    assert not rows["multi_misses"].holds
    assert "no record is longer than 142 h" in rows["gap_closed_own_past"].missing
    assert json.loads(found.to_json())["rows"][-1]["ours"] is None
    assert told == [("record of us-east-1a V100x1 2023-02-15", 0, 1)]


def test_where_nothing_can_be_computed_all_reasons_are_told(tmp_path: Path) -> None:
    ticks(5.0).to_parquet(tmp_path / "ticks.parquet")
    probes().to_parquet(tmp_path / "probes.parquet")
    with pytest.raises(InputError, match="2 are needed.*no single-node record longer than 71 h"):
        reproduce_deadlines(read_inputs([tmp_path]))


@pytest.mark.long
def test_the_claims_of_rows_not_computed_are_those_of_rows_that_are(gangs: dict[bool, ZonesStudy]) -> None:
    """Ids and words of both kinds of rows come from two places; they must not drift apart."""
    one, whole = gangs[False], gangs[True]
    assert whole.runs["optimum, any number of machines"].usd.mean() <= whole.runs["optimum"].usd.mean() + 1e-6
    for gang, rows in ((False, multi_rows([one], [])), (True, multi_rows([], [whole]))):
        claims = multi_claims("v100", gang=gang)
        assert set(claims) == {row.id for row in rows}
        for row in rows:
            claim = claims[row.id]
            assert row.claim.startswith(claim.text)
            assert (row.paper, row.unit) == (claim.paper, claim.unit)


@pytest.mark.long
def test_every_claim_is_a_row_whatever_is_given(tmp_path: Path) -> None:
    """Records of single zones alone: those of several zones are there, without figures."""
    ticks(73.0).to_parquet(tmp_path / "ticks.parquet")
    found = reproduce_deadlines(read_inputs([tmp_path]), starts=1)
    assert len({row.id for row in found.rows}) == len(found.rows) == 46
    rows = {row.id: row for row in found.rows}
    assert rows["multi_h100_cost_vs_optimum"].paper == pytest.approx(606 / 571)
    assert "several zones of v100" in rows["multi_v100_cost_vs_failover"].missing
    assert "rounds of capacity" in rows["multi_h100_whole_gang_cost_vs_failover"].missing


@pytest.mark.long
def test_a_zone_that_is_always_there_has_no_gap_to_close(tmp_path: Path) -> None:
    table = ticks(73.0)
    table["data"] = [[1] * len(table["data"][0])]
    table.to_parquet(tmp_path / "ticks.parquet")
    rows = {row.id: row for row in reproduce_deadlines(read_inputs([tmp_path]), starts=1).rows}
    assert rows["gap_closed_overall"].missing == "Uniform Progress costs no more than the optimum on these records"
    # As cheap as Uniform Progress is not cheaper.
    assert rows["cost_vs_uniform_progress_52h_0.1"].ours == pytest.approx(1.0)
    assert not rows["cost_vs_uniform_progress_52h_0.1"].holds


def test_two_sets_of_one_accelerator_are_rows_of_their_own(gangs: dict[bool, ZonesStudy]) -> None:
    study = gangs[False]
    ids = [row.id for row in multi_rows([study, study], [])]
    assert len(ids) == len(set(ids)) == 9
    assert "multi_v100_2_cost_vs_optimum" in ids
