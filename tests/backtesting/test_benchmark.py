"""The benchmark: records of any files, regrets worked out by hand, and the real records."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.conftest import TRACES

import ebbtide as eb
from ebbtide.backtesting.benchmark import Cell, _with_regrets, benchmark
from ebbtide.backtesting.benchmark_records import BenchmarkRecord, read_benchmark_records
from ebbtide.backtesting.benchmark_work import (
    CLUSTER,
    JOBS_WITH_SLOS,
    KINDS,
    ONE_JOB,
    ONE_JOB_DEADLINE,
    SWEEP,
    works_of,
)
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.policies.registry import DEFAULT_NAME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Prices of twelve days, capacity of two zones in the same days, and a file of something else."""
    traces = tmp_path / "traces"
    (traces / "deep").mkdir(parents=True)
    eb.generate_prices(days=12, seed=3, kind="auction").write(traces / "prices.parquet")
    times = pd.date_range("2023-02-15T22:00:00Z", periods=6 * 24 * 8, freq="10min")
    rows = [
        pd.DataFrame(
            {
                "timestamp": times,
                "cloud": "aws",
                "region": zone[:-1],
                "zone": zone,
                "instance_type": "p3.2xlarge",
                "gpu_type": "v100",
                "gpus_per_instance": 1,
                "interval_seconds": 600,
                "available": (np.arange(len(times)) // 30 + k) % 3 > 0,
            }
        ).astype({"available": int})
        for k, zone in enumerate(("us-east-1a", "us-west-2a"))
    ]
    pd.concat(rows).to_parquet(traces / "deep" / "probes.parquet")
    pd.DataFrame({"step": [1], "loss": [2.0]}).to_parquet(traces / "curves.parquet")
    return traces


def named(records: list[BenchmarkRecord], text: str) -> BenchmarkRecord:
    return next(record for record in records if text in record.name)


def test_records_of_any_files(folder: Path) -> None:
    records, left_out = read_benchmark_records(folder)
    priced, probed = named(records, "prices "), named(records, "probes")
    assert priced.availability is None
    assert {record.billing.name for record in records if "prices " in record.name} == {"ec2-second", "ec2-hourly"}
    assert probed.billing.name == "ec2-second"
    assert probed.most_machines == 1
    # No file has the prices of these days: spot at the usual share of the list price.
    (east, _) = probed.prices
    assert probed.prices[east].prices.tolist() == pytest.approx([0.318 * 3.06])
    assert {one.what: one.why for one in left_out} == {
        "curves.parquet": "tells neither prices nor capacity of zones"
    }
    # A training runs on cores and on accelerators at speeds of its own.
    assert set(probed.steps_per_hour) == {"p3.2xlarge"}
    assert priced.begins_s >= priced.prices.start_s


def test_machines_nobody_knows_and_short_files_are_left_out_with_the_reason(folder: Path) -> None:
    frame = eb.generate_prices(days=12, seed=3, kind="auction").to_frame().astype({"instance_type": str})
    frame.loc[frame["instance_type"] == "m3.medium", "instance_type"] = "z9.tiny"
    frame.to_parquet(folder / "prices.parquet")
    eb.generate_prices(days=2, seed=3, kind="auction").write(folder / "short.parquet")
    records, left_out = read_benchmark_records(folder)
    assert all("m3.medium" not in record.steps_per_hour for record in records)
    told = {one.what: one.why for one in left_out}
    assert "z9.tiny" in told["prices.parquet"]
    assert "5 are needed" in told["short.parquet"]


def test_a_folder_without_records_is_refused_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file there holds prices or capacity of 5 days or more$"):
        read_benchmark_records(tmp_path)
    (tmp_path / "broken.parquet").write_text("no table")
    with pytest.raises(InputError, match=r"broken\.parquet: is not a readable Parquet file"):
        read_benchmark_records(tmp_path)


def test_a_file_that_cannot_be_used_is_named_and_the_others_are_replayed(folder: Path) -> None:
    prices = eb.generate_prices(days=12, seed=3, kind="auction").to_frame()
    prices.drop(columns="product").to_parquet(folder / "no_system.parquet")
    prices.drop(columns="zone").to_parquet(folder / "no_zone.parquet")
    one = prices[(prices["zone"] == prices["zone"].iloc[0]) & (prices["instance_type"] == "m3.medium")]
    one.to_parquet(folder / "one_market.parquet")
    prices.assign(price_usd_per_hour=np.nan).to_parquet(folder / "no_prices.parquet")
    (folder / "broken.parquet").write_text("no table")
    (folder / "gone.parquet").symlink_to(folder / "nowhere.parquet")
    (folder / "folder.parquet").mkdir()
    listed = {"cloud": "aws", "region": "us-east-1", "instance_type": "p3.2xlarge"}
    for name, more in {
        "no_time": {"on_demand_usd_per_hour": 3.0},
        "no_number": {"on_demand_usd_per_hour": "x", "as_of": pd.Timestamp("2023-01-01", tz="UTC")},
    }.items():
        pd.DataFrame([listed | more]).to_parquet(folder / f"{name}.parquet")
    records, left_out = read_benchmark_records(folder)
    assert {record.name.split()[0] for record in records} == {"prices", "probes"}
    told = {one.what: one.why for one in left_out}
    assert "'product'" in told["no_system.parquet"]
    assert "neither prices nor capacity" in told["no_zone.parquet"]
    assert "fewer than two markets" in told["one_market.parquet"]
    assert "needs a price" in told["no_prices.parquet"]
    assert "not a readable Parquet file" in told["broken.parquet"]
    assert "no such file" in told["gone.parquet"]
    assert "is a folder" in told["folder.parquet"]
    assert "without their time" in told["no_time.parquet"]
    assert told["no_number.parquet"] == "row 1, field on_demand_usd_per_hour: is 'x'; a price is needed"


def test_work_is_sized_by_the_machines(folder: Path) -> None:
    records, _ = read_benchmark_records(folder)
    probed = named(records, "probes")
    works = works_of(probed, KINDS, 2, 0)
    # One machine at a time: no cluster.
    assert [work.kind for work in works] == [ONE_JOB, ONE_JOB_DEADLINE, SWEEP, JOBS_WITH_SLOS]
    one, due, sweep, listed = works
    assert one.jobs[0].steps / one.jobs[0].steps_per_hour["p3.2xlarge"] == pytest.approx(24.0)
    assert due.due_h == (36.0,)
    assert due.asked.budget_usd == pytest.approx(1.25 * 24 * 3.06)
    assert (len(sweep.jobs), len(sweep.curves)) == (8, 8)
    assert listed.due_h == (8.0, 12.0, 24.0, 20.0)
    assert {work.starts_s for work in works} == {one.starts_s}
    assert CLUSTER in {work.kind for work in works_of(named(records, "prices "), KINDS, 1, 0)}


def test_regret_is_over_the_cheapest_that_missed_nothing() -> None:
    cells = [
        Cell("d", "k", "slow", 1.0, 90.0, misses=1, over_budget=0, starts=2),
        Cell("d", "k", "good", 2.0, 30.0, misses=0, over_budget=0, starts=2),
        Cell("d", "k", "dear", 3.0, 20.0, misses=0, over_budget=0, starts=2),
        Cell("d", "other", "slow", 1.0, 90.0, misses=2, over_budget=0, starts=2),
        Cell("d", "other", "good", 4.0, 90.0, misses=1, over_budget=1, starts=2),
    ]
    found = {(cell.kind, cell.policy): cell.regret for cell in _with_regrets(cells)}
    assert found["k", "good"] == 0.0
    assert found["k", "dear"] == pytest.approx(0.5)
    # To miss is not to save.
    assert found["k", "slow"] == 0.0
    # Where all missed something, those that missed least are the measure.
    assert found["other", "slow"] == 0.0


def test_where_the_cheapest_paid_nothing_regrets_are_numbers() -> None:
    cells = [
        Cell("d", "k", "free", 0.0, 90.0, misses=0, over_budget=0, starts=2),
        Cell("d", "k", "dear", 3.0, 20.0, misses=0, over_budget=0, starts=2),
        Cell("d", "other", "free", 0.0, 90.0, misses=0, over_budget=0, starts=2),
    ]
    found = {(cell.kind, cell.policy): cell.regret for cell in _with_regrets(cells)}
    assert found == {("k", "free"): 0.0, ("k", "dear"): pytest.approx(99.0), ("other", "free"): 0.0}


def test_who_fails_has_missed(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def decide(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(type(eb.policy(DEFAULT_NAME)), "decide", decide)
    command = [
        "benchmark",
        "--traces",
        str(folder),
        "--only",
        "probes",
        "--workers",
        "1",
        "--policies",
        "reactive",
    ]
    with pytest.raises(SystemExit):
        main(command)
    told = capsys.readouterr()
    assert "failed, which counts as missed: probes" in told.err
    assert f"{DEFAULT_NAME}, the default: mean regret nan, worst nan, 4 missed" in told.out


@pytest.mark.parametrize(("words", "told"), [(["--json", "."], "is a folder"), (["--seed", "-1"], "'--seed'")])
def test_what_would_fail_at_the_end_is_told_before_anything_runs(
    words: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("ebbtide.cli.benchmarking.benchmark", lambda *_, **__: pytest.fail("it has begun"))
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", "--traces", str(folder), *words])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("processes")
@pytest.mark.exhaustive
def test_the_same_in_two_processes_and_by_the_command(folder: Path, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    names = ["reactive", "on-demand"]
    alone = benchmark(folder, policies=names, quick=True, only="probes")
    assert {cell.policy for cell in alone.cells} == {*names, DEFAULT_NAME}
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("benchmark", "--traces", str(folder), "--only", "probes", "--quick", "--workers", "2"),
                *("--policies", ",".join(names), "--json", str(tmp_path / "b.json")),
            ]
        )
    assert not ended.value.code
    told = json.loads((tmp_path / "b.json").read_text())
    assert told["cells"] == json.loads(json.dumps([asdict(cell) for cell in alone.cells]))
    assert set(told["cells"][0]) >= {"data", "kind", "policy", "cost_usd", "hours", "misses", "regret"}
    assert told["default"]["name"] == DEFAULT_NAME
    assert set(told["default"]) >= {"mean_regret", "worst_regret", "misses"}
    assert math.isclose(told["default"]["mean_regret"], alone.judged(DEFAULT_NAME).mean_regret)
    assert f"{DEFAULT_NAME}, the default: mean regret" in capsys.readouterr().out


@pytest.mark.long
def test_a_policy_that_cannot_serve_a_kind_is_left_out_and_named(folder: Path) -> None:
    found = benchmark(folder, policies=["spottune"], kinds=[CLUSTER], starts=1, only="prices ")
    assert {cell.policy for cell in found.cells} == {DEFAULT_NAME}
    assert any("spottune" in one.what and "one machine" in one.why for one in found.unserved)


def test_an_unknown_name_is_told_before_anything_runs(folder: Path) -> None:
    with pytest.raises(InputError, match="unknown policy 'reactiv'"):
        benchmark(folder, policies=["reactiv"], starts=1)
    with pytest.raises(InputError, match="has 'nowhere' in its name"):
        benchmark(folder, only="nowhere")


@pytest.mark.exhaustive
@pytest.mark.real_traces
@pytest.mark.usefixtures("processes")
def test_quick_on_the_real_records_the_default_misses_nothing() -> None:
    found = benchmark(TRACES, policies=["reactive", "next-cheapest"], quick=True, workers=2)
    own = found.judged(DEFAULT_NAME)
    assert (own.misses, own.over_budget) == (0, 0)
    assert own.mean_regret < 0.05
    assert own.worst_regret < 0.3
