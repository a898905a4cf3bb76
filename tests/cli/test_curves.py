"""`ebbtide curves`: answers, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ebbtide.cli.main import main
from ebbtide.forecasts.learning_curves.curves import write_curves
from ebbtide.forecasts.learning_curves.methods import table_two_curves


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    """Two runs of 70 steps, the second better in the end."""
    steps = np.arange(1, 71)
    rows = [
        pd.DataFrame({"run": name, "step": steps, "metric": 1 / (0.1 * steps + 0.3) + floor})
        for name, floor in (("worse", 0.5), ("better", 0.4))
    ]
    path = tmp_path / "losses.csv"
    pd.concat(rows).to_csv(path, index=False)
    return path


def test_predict_ranks_runs(losses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("curves", "predict", str(losses), "--max-steps", "100", "--json", str(tmp_path / "p.json")) == 0
    found = json.loads((tmp_path / "p.json").read_text())["runs"]
    assert [row["run"] for row in found] == ["better", "worse"]
    assert found[0]["predicted"] == pytest.approx(1 / 10.3 + 0.4, rel=0.05)
    assert "better" in capsys.readouterr().out


def test_evaluate_writes_the_agreed_json(tmp_path: Path) -> None:
    some = [curve for curve in table_two_curves() if curve.workload == "svm"]
    write_curves(some, tmp_path / "c.parquet")
    out = tmp_path / "out.json"
    assert run("curves", "evaluate", "--curves", str(tmp_path / "c.parquet"), "--json", str(out)) == 0
    content = json.loads(out.read_text())
    for name in ("earlycurve", "slaq", "last-value", "power-law"):
        scores = content["methods"][name]["by_theta"]["0.7"]
        assert {"relative_error_mean", "top1", "top3"} <= set(scores)
    again = tmp_path / "again.json"
    run("curves", "evaluate", "--curves", str(tmp_path / "c.parquet"), "--json", str(again))
    assert again.read_bytes() == out.read_bytes()


def test_profile_reckons_table_three(tmp_path: Path) -> None:
    out = tmp_path / "m.json"
    assert run("curves", "profile", "svm", "--setting", "1", "--seconds", "0.1", "--json", str(out)) == 0
    told = json.loads(out.read_text())
    assert len(told["estimated"]) == 6
    assert told["estimated"]["m4.4xlarge"] <= told["estimated"]["r4.large"]
    assert all(found["seconds_per_step"] > 0 for found in told["measured"].values())
    assert run("curves", "profile", "svm", "--setting", "16") == 2


@pytest.mark.parametrize(
    ("content", "arguments", "problem"),
    [
        ("step,loss\n1,2\n", ["--max-steps", "9"], "has no column metric"),
        ("step,metric\n1,2\n2,oops\n", ["--max-steps", "9"], "row 3"),
        ("step,metric\n1,2\n", [], "--max-steps"),
        ("step,metric\n10,2\n", ["--max-steps", "9"], "beyond max_steps"),
        ("step,metric\n1,2\n", ["--max-steps", "9", "--theta", "1.5"], "theta is 1.5"),
    ],
)
def test_bad_input_is_one_line(
    content: str, arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "losses.csv"
    path.write_text(content)
    assert run("curves", "predict", str(path), *arguments) == 2
    told = capsys.readouterr().err
    assert problem in told
    assert told.count("\n") == 1


def test_what_is_unknown_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("curves", "evaluate", "--methods", "slaqq") == 2
    assert "slaq" in capsys.readouterr().err
    assert run("curves", "measure", "--workloads", "resnett", "--into", str(tmp_path / "c.parquet")) == 2
    assert "resnet" in capsys.readouterr().err
    assert not (tmp_path / "c.parquet").exists()
