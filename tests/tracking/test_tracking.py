"""Tracked runs, in a real MLflow database."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

import ebbtide as eb
from ebbtide.policies.registry import policies
from ebbtide.tracking import tracking as tracking_module
from ebbtide.tracking.tracking import log_record, tracking


def test_a_backtest_is_a_run_with_one_under_it_for_each_policy(tmp_path: Path, one_day: eb.Job) -> None:
    from mlflow.tracking import MlflowClient

    result = eb.backtest(
        one_day, policies("on-demand,reactive"), eb.generate_prices(days=15, kind="auction"), starts=3
    )
    uri = f"sqlite:///{tmp_path}/deep/mlflow.db"
    note = tmp_path / "note.txt"
    note.write_text("kept")
    parent = log_record(
        result.record(),
        uri=uri,
        experiment="tests",
        artifacts=tmp_path / "artifacts",
        parameters={"billing": "ec2-second"},
        files=(note,),
    )
    client = MlflowClient(uri)
    runs = {run.info.run_name: run for run in client.search_runs([client.get_run(parent).info.experiment_id])}
    assert set(runs) == {"on-demand", "reactive", result.record().title}
    reactive = runs["reactive"]
    assert reactive.data.tags["mlflow.parentRunId"] == parent
    assert reactive.data.params == {"policy": "reactive", "billing": "ec2-second"}
    told = result.summary()["reactive"]
    assert reactive.data.metrics["cost_usd_mean"] == pytest.approx(told["cost_usd"]["mean"])
    for metric in ("makespan_h_mean", "revocations_mean", "refund_usd_mean", "unfinished"):
        assert metric in reactive.data.metrics
    assert all(run.info.status == "FINISHED" for run in runs.values())
    whole = runs[result.record().title].data
    assert whole.params["best policy"] == "reactive"
    costs = {name: row["cost_usd"]["mean"] for name, row in result.summary().items()}
    assert whole.metrics["saving"] == pytest.approx(1.0 - costs["reactive"] / costs["on-demand"])
    assert [file.path for file in client.list_artifacts(parent)] == ["note.txt"]


def test_a_log_that_breaks_is_marked_failed(tmp_path: Path, one_day: eb.Job) -> None:
    from mlflow.tracking import MlflowClient

    record = eb.backtest(
        one_day, [eb.policies.Reactive()], eb.generate_prices(days=15, kind="auction"), starts=1
    ).record()
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(Exception, match="none"):
        log_record(
            record, uri=uri, experiment="tests", artifacts=tmp_path, parameters={}, files=(tmp_path / "none",)
        )
    client = MlflowClient(uri)
    home = client.get_experiment_by_name("tests").experiment_id
    assert {run.info.run_name: run.info.status for run in client.search_runs([home])}[record.title] == "FAILED"


def test_a_database_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, file = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlflow.db"
    with monkeypatch.context() as patch:
        patch.setattr(tracking_module.os, "link", _killed)
        with pytest.raises(KeyboardInterrupt), tracking_module.tracking(uri, "e", tmp_path):
            pass
    assert not file.exists()
    with tracking_module.tracking(uri, "e", tmp_path) as client:
        assert client.get_experiment_by_name("e") is not None
    assert file.exists()


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_experiment_that_another_run_makes_meanwhile_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with tracking(uri, "shared", tmp_path / "artifacts") as client:
        made = client.get_experiment_by_name("shared").experiment_id
    found, asked = MlflowClient.get_experiment_by_name, []

    def not_yet(self: MlflowClient, name: str) -> object:
        asked.append(name)
        return None if len(asked) == 1 else found(self, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", not_yet)
    with tracking(uri, "shared", tmp_path / "artifacts") as client:
        assert client.get_experiment_by_name("shared").experiment_id == made
