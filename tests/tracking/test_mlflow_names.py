"""Names that MLflow takes: every one is taken by MLflow itself, and no two become one."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from ebbtide.tracking.mlflow_names import allowed_name, allowed_names, renamed

NAMES = [
    "loss",
    "val/loss",
    "mAP50(B)",
    "metrics/mAP50(B)",
    "metrics/mAP50[B]",
    "loss@1",
    "loss_1",
    "/loss",
    "loss/",
    "a//b",
    "a/b",
    "../loss",
    "..loss",
    ".",
    "..",
    "./a",
    "a/../b",
    "",
    "Genauigkeit (%)",
    "精度",
    "x" * 251,
    "x" * 260,
    "train's l2",
    "a\nb",
    "a\\b",
]


def test_mlflow_takes_every_name_and_none_twice(tmp_path: Path) -> None:
    allowed = allowed_names(NAMES)
    assert len(set(allowed.values())) == len(set(NAMES))
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.create_run(client.create_experiment("names")).info.run_id
    client.log_batch(
        run,
        metrics=[Metric(name, 1.0, 0, 0) for name in allowed.values()],
        params=[Param(name, "1") for name in allowed.values()],
        tags=[RunTag(name, "1") for name in allowed.values()],
    )
    assert set(client.get_run(run).data.metrics) == set(allowed.values())


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("val/loss", "val/loss"),
        ("loss 2.-_", "loss 2.-_"),
        ("metrics/mAP50(B)", "metrics/mAP50_B_"),
        ("loss@1", "loss_1"),
        ("/loss", "loss"),
        ("../loss", "__/loss"),
    ],
)
def test_a_name_is_changed_as_little_as_is_needed(name: str, allowed: str) -> None:
    assert allowed_name(name) == allowed


def test_a_name_that_is_allowed_stays_though_another_would_become_it() -> None:
    found = allowed_names(["loss_1", "loss@1", "loss#1"])
    assert found["loss_1"] == "loss_1"
    assert all(name.startswith("loss_1_") for name in (found["loss@1"], found["loss#1"]))


def test_what_is_renamed_is_said_in_one_line() -> None:
    assert renamed(["loss", "lr"]) == ""
    assert renamed(["loss@1", "lr"]).endswith(": 'loss@1' is 'loss_1'")
