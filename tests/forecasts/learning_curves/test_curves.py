"""Curves on disk: ours round, others' layouts, and files that are neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Curve, read_curves, write_curves


def test_curves_come_back_as_they_were(tmp_path: Path) -> None:
    curves = [
        Curve("a", "00", np.array([1.0, 2.0]), np.array([0.5, 0.25]), 4.0, {"lr": 0.1}, np.array([0.1, 0.2])),
        Curve("b", "00", np.array([3.0]), np.array([9.0]), 3.0),
    ]
    write_curves(curves, tmp_path / "c.parquet")
    first, second = read_curves(tmp_path / "c.parquet")
    assert (first.workload, first.name, first.max_steps, first.hyperparameters) == ("a", "00", 4.0, {"lr": 0.1})
    np.testing.assert_array_equal(first.metric, [0.5, 0.25])
    np.testing.assert_array_equal(first.train_seconds, [0.1, 0.2])
    assert second.final == 9.0


def test_training_logs_with_a_loss(tmp_path: Path) -> None:
    rows = [
        ("t", "r", "x", 0, step, split, loss)
        for step, split, loss in [
            (0, "val", 10.0),
            (0, "train", 11.0),
            (20, "val", 4.0),
            (10, "val", 5.0),
            (10, "val", 6.0),
        ]
    ]
    names = ["track", "record", "run", "part", "step", "split", "loss"]
    pd.DataFrame(rows, columns=names).to_parquet(tmp_path / "l.parquet")
    (curve,) = read_curves(tmp_path / "l.parquet")
    assert curve.workload == "t/r"
    np.testing.assert_array_equal(curve.steps, [0, 10, 20])
    # Of two at one step, the later in the file.
    np.testing.assert_array_equal(curve.metric, [10.0, 6.0, 4.0])
    assert curve.max_steps == 20


def test_logs_with_an_accuracy_become_error_rates(tmp_path: Path) -> None:
    rows = [
        ("n", "cifar", epoch, split, "accuracy", value)
        for epoch, split, value in [(0, "val", 0.5), (1, "val", 0.75), (1, "train", 0.9)]
    ]
    names = ["run", "dataset", "epoch", "split", "metric", "value"]
    pd.DataFrame(rows, columns=names).to_parquet(tmp_path / "a.parquet")
    (curve,) = read_curves(tmp_path / "a.parquet")
    np.testing.assert_array_equal(curve.metric, [0.5, 0.25])
    np.testing.assert_array_equal(curve.steps, [1, 2])


def test_theta_is_a_share_of_the_whole_run() -> None:
    curve = Curve("a", "0", np.arange(1.0, 11.0), np.arange(10.0), 10.0)
    assert [len(curve.until(theta)[0]) for theta in (0.01, 0.3, 0.7, 1.0)] == [1, 3, 7, 10]


def test_other_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_curves(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("step,metric\n")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read_curves(tmp_path / "text.parquet")
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no known layout: it has x"):
        read_curves(tmp_path / "other.parquet")
