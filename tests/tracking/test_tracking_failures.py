"""What MLflow refuses, or is not told since it is away, ends no run, and is told later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.tracking import MlflowClient
from tests.runs.sweeps import sweep
from tests.tracking.test_live_tracking import Live
from tests.waiting import eventually

from ebbtide.errors import CloudError, InputError
from ebbtide.tracking.live_tracking import (
    abandon_tracking,
    begin_tracking,
    end_tracking,
    followed,
    resume_tracking,
)

MAP = "metrics/mAP50(B)"


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return Live(tmp_path, sweep(tmp_path, trials=3, steps=30).model_copy(update={"metric": MAP}))


def refuse(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """Let MLflow refuse what has a metric whose name has a word."""
    log_batch = MlflowClient.log_batch

    def refusing(self: MlflowClient, run: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        if any(word in metric.key for metric in metrics):
            raise MlflowException(f"{word} is refused", INVALID_PARAMETER_VALUE)
        log_batch(self, run, metrics, params, tags)

    monkeypatch.setattr(MlflowClient, "log_batch", refusing)


def go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_given: Any, **_named: Any) -> None:
        raise ConnectionError("the server is away")

    for name in ("get_experiment_by_name", "search_experiments", "get_run", "log_batch", "set_terminated"):
        monkeypatch.setattr(MlflowClient, name, away)


def test_a_metric_whose_name_mlflow_refuses_has_another_there(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    live.begin()
    assert f"{MAP!r} is 'metrics/mAP50_B_'" in caplog.text
    live.trials[0]["metrics"] = [[5, 0.5], [10, 0.25]]
    live.end(done=3)
    assert live.statuses() == ["FINISHED"] * 4
    assert live.series(0, "metrics/mAP50_B_") == [(5, 0.5), (10, 0.25)]
    assert live.series(None, "best_metrics/mAP50_B_")[-1][1] == 0.25


def test_more_parameters_than_mlflow_takes_at_once_with_names_that_it_refuses(tmp_path: Path) -> None:
    values = {f"p({number})": number for number in range(250)}
    wanted = sweep(tmp_path, trials=1, steps=30)
    plain = wanted.model_dump(mode="json") | {
        "grid": None,
        "list": [values],
        "command": None,
        "entry_point": "package.module:function",
    }
    live = Live(tmp_path, type(wanted).parse(plain))
    live.begin()
    _, (only,) = live.runs()
    assert len(only.data.params) == 250
    assert only.data.params["p_7_"] == "7"


def test_what_is_refused_of_one_trial_loses_nothing_else(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live.begin()
    live.trials[0]["metrics"] = [[5, 0.5]]
    with monkeypatch.context() as patched:
        refuse(patched, "mAP50")
        live.end(done=3)
    assert "MLflow was not told of trial 0 of run run-1: mAP50 is refused" in caplog.text
    assert "`ebbtide resume run-1` tells it later" in caplog.text
    assert live.statuses() == ["FINISHED"] * 4
    parent, _ = live.runs()
    assert parent.data.metrics["revocations"] == 0.0
    end_tracking(live.folder)
    assert live.series(0, "metrics/mAP50_B_") == [(5, 0.5)]


def test_a_server_that_is_away_at_the_end_ends_no_run_and_is_told_later(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live.begin()
    live.trials[0]["metrics"] = [[5, 0.5]]
    with monkeypatch.context() as patched:
        go_away(patched)
        resume_tracking(live.folder)
        live.end(done=3)
        abandon_tracking(live.folder, "interrupted")
    assert caplog.text.count("the server is away") == 3
    assert live.statuses() == ["RUNNING"] * 4
    end_tracking(live.folder)
    assert live.statuses() == ["FINISHED"] * 4


def test_a_run_whose_tracking_cannot_begin_is_refused_before_anything_is_rented(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="nothing was rented"):
        begin_tracking(live.folder, "strange://host/x", live.path / "artifacts")
    go_away(monkeypatch)
    with pytest.raises(CloudError, match="the server is away; start it, or track nothing"):
        begin_tracking(live.folder, live.uri, live.path / "artifacts")


def test_a_server_that_comes_late_is_told_how_a_run_goes_on(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.begin()
    live.trials[0]["metrics"] = [[5, 0.5]]
    live.keep()
    with monkeypatch.context() as patched:
        go_away(patched)
        following = followed(live.folder, 0.05)
        following.__enter__()
    eventually(lambda: live.series(0, "metrics/mAP50_B_"), poll_s=0.05)
    following.__exit__(None, None, None)
