"""Jobs of every kind, replayed on days that no model has seen, with the models and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tracking.small_bundle import runs, section, solved, trained

from ebbtide.backtesting.record import (
    BacktestRecord,
    metrics_of,
    outcomes_frame,
    read_records,
    typical_start,
)
from ebbtide.backtesting.report import render
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.registry import ASK_MODELS
from ebbtide.tracking.execute_stage import WITHOUT, JobRun, prepared

# All of them share the records of every job.
pytestmark = pytest.mark.long

# One start each, but for the cookbook, whose starts are a day apart.
RUNS = {name: replace(run, starts=1 + (name == "workflow")) for name, run in runs().items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("executed")


@pytest.fixture(scope="module")
def models(folder: Path) -> ModelBundle:
    return solved(trained(folder), section("solve"))


@pytest.fixture(scope="module")
def prices(models: ModelBundle, folder: Path) -> PriceHistory:
    assert models.folder.parent == folder
    return PriceHistory.read(folder / "prices.parquet")


@pytest.fixture(scope="module")
def later(prices: PriceHistory, models: ModelBundle) -> PriceHistory:
    return prices.window(models.trained_until_s, prices.end_s)


@pytest.fixture(scope="module")
def records(models: ModelBundle, later: PriceHistory) -> dict[str, BacktestRecord]:
    return {run.name: executed(run, models, later) for run in RUNS.values()}


def executed(run: JobRun, models: ModelBundle, prices: PriceHistory) -> BacktestRecord:
    ready, names = prepared(run, models, prices), run.names(models)
    outcomes = outcomes_frame([row for name in names for row in ready.rows(name)])
    start_s = ready.starts_s[typical_start(outcomes)]
    return ready.record(outcomes, {one.policy: one for one in (ready.shown(name, start_s) for name in names)})


def test_the_policies_of_all_five_systems_are_executed_each_beside_on_demand() -> None:
    named = {name for run in RUNS.values() for name in run.policies}
    assert {"spottune", "dynamic-pricing-cost", "exosphere", "cookbook", "deadline"} <= named
    assert all("on-demand" in run.policies for run in RUNS.values())


@pytest.mark.parametrize("name", RUNS)
def test_a_start_in_days_that_a_part_was_trained_on_is_refused(
    name: str, models: ModelBundle, prices: PriceHistory
) -> None:
    run = RUNS[name]
    # Some of twenty starts fall into the first third of the days.
    with pytest.raises(InputError, match=r"was trained on prices until .*; start at .* or later"):
        prepared(replace(run, starts=20), models, prices)


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_policies_that_ask_models_run_without_them_too_from_the_same_starts(
    name: str, records: dict[str, BacktestRecord], models: ModelBundle
) -> None:
    told = records[name].summary()
    # No policy asks the hazard where the price takes machines.
    parts = models.parts.keys() - {"hazard"}
    asking = {name for name in told if set(ASK_MODELS.get(name, ())) & parts}
    assert {each for each in told if each.endswith(WITHOUT)} == {each + WITHOUT for each in asking}
    starts = records[name].outcomes.groupby("policy", observed=True)["start"].apply(tuple)
    assert len(set(starts)) == 1
    assert records[name].about["models"] == models.versions


def test_deadlines_are_kept_and_counted(records: dict[str, BacktestRecord]) -> None:
    assert {name for name, record in records.items() if "deadline_h" in record.about} == {
        "sweep",
        "by-morning",
        "workflow",
    }
    for name in ("by-morning", "workflow"):
        for policy, row in records[name].summary().items():
            # It knows no deadline.
            assert row["missed"] == 0 or policy == "cheapest-spot"
    late = replace(records["workflow"], about=records["workflow"].about | {"deadline_h": 1.0})
    assert all(row["missed"] == 2 for row in late.summary().values())
    assert "missed" not in records["one-day"].summary()["reactive"]


def test_the_cookbook_plays_beside_the_least_cluster_that_keeps_its_deadline(
    records: dict[str, BacktestRecord], models: ModelBundle, later: PriceHistory
) -> None:
    record = records["workflow"]
    assert [name for name in record.summary() if not name.endswith(WITHOUT)] == list(RUNS["workflow"].policies)
    ready = prepared(RUNS["workflow"], models, later)
    assert ready.book is not None
    workflow, (job,) = ready.book.problem.workflow, ready.scenario.jobs
    assert workflow.finish_h(33.0, 0, job.machines) < 15.0 <= workflow.finish_h(33.0, 0, job.machines - 1)
    # It begins at the hour of the day for which it was solved.
    starts = {row.start.timestamp() for row in record.outcomes.itertuples()}
    assert starts == {models.trained_until_s, models.trained_until_s + 86_400.0}


@pytest.mark.long
def test_records_are_one_folder_each_and_one_report(
    records: dict[str, BacktestRecord], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, record in records.items():
        record.write(tmp_path / name)
    again = read_records(tmp_path)
    assert set(again) == set(RUNS)
    told = metrics_of(again)
    assert set(told) == {"models", "jobs"}
    assert {name: each["starts"] for name, each in told["jobs"].items()} == {
        name: run.starts for name, run in RUNS.items()
    }
    assert told["models"] == records["sweep"].about["models"]
    for name, record in again.items():
        assert told["jobs"][name]["policies"] == record.summary()
    page = render(again)
    assert all(f'<section id="job-{name}">' in page for name in RUNS)
    assert all(f"<li>{name}: " in page for name in RUNS)
    assert render(again) == page
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path), "--out", str(tmp_path / "report.html")])
    assert not ended.value.code
    assert (tmp_path / "report.html").read_text() == page
    printed = capsys.readouterr().out
    assert all(f"{name}: " in printed for name in RUNS)


def test_one_record_is_read_by_its_title(records: dict[str, BacktestRecord], tmp_path: Path) -> None:
    records["array"].write(tmp_path)
    assert list(read_records(tmp_path)) == [records["array"].title]
    with pytest.raises(InputError, match="is not the record of a backtest"):
        read_records(tmp_path / "nowhere")


def test_a_workflow_needs_the_cookbook_of_its_market(
    models: ModelBundle, later: PriceHistory, tmp_path: Path
) -> None:
    run = RUNS["workflow"]
    with pytest.raises(InputError, match="give the market that its cookbook is for"):
        prepared(replace(run, market=None), models, later)
    with pytest.raises(InputError, match="is not for us-east-1b c3.xlarge"):
        prepared(replace(run, market="us-east-1b c3.xlarge"), models, later)
    other = tmp_path / "other.yaml"
    other.write_text(run.job.read_text().replace("work_h: 33", "work_h: 30"))
    with pytest.raises(InputError, match="is for another workflow, rsvd-1"):
        prepared(replace(run, job=other), models, later)


def test_starts_of_every_day_leave_room_for_the_deadline(models: ModelBundle, later: PriceHistory) -> None:
    run: JobRun = replace(RUNS["workflow"], starts=100)
    assert len(prepared(run, models, later).starts_s) == 14
    with pytest.raises(InputError, match="hold back more days"):
        prepared(run, models, later.window(later.start_s, later.start_s + 3600.0))


@pytest.mark.long
def test_an_own_policy_stands_under_its_own_name(models: ModelBundle, later: PriceHistory, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import ebbtide as eb\n\nclass Own:\n    name, wakes_on = 'own', eb.policies.Reactive().wakes_on\n"
        "    def decide(self, view):\n        return eb.policies.Reactive().decide(view)\n"
    )
    run = replace(RUNS["one-day"], policies=(f"{file}:Own", "default"), starts=1)
    record = executed(run, models, later)
    assert record.about["policy"] == "own"
    assert list(dict.fromkeys(record.outcomes["policy"])) == ["own", "ebbtide"]
    assert set(record.leases["policy"]) == {"own", "ebbtide"}
    assert "<li>own-job: start with 1 " in render({"own-job": record, "other": record})
