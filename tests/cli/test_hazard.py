"""`ebbtide hazard fit`, `evaluate` and `intervals`."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.cli.test_watching import ebbtide
from tests.forecasts.hazard.test_fitting import drawn

from ebbtide.forecasts.hazard.model import Hazard


def probes(path: Path) -> Path:
    """A file of probes of three markets."""
    tables = []
    for name, per_hour in (("a", 0.1), ("b", 0.4), ("c", 0.8)):
        own = drawn(name, per_hour, ord(name), 1500)
        where = {
            "cloud": "aws",
            "region": "r",
            "zone": f"r{name}",
            "instance_type": "p3.2xlarge",
            "gpu_type": "v100",
        }
        times = pd.to_datetime(own.times_s, unit="s", utc=True)
        about = {"interval_seconds": 600, "gpus_per_instance": 1, "available": own.is_up.astype(int)}
        tables.append(pd.DataFrame({"timestamp": times, **where, **about}))
    pd.concat(tables).to_parquet(path)
    return path


@pytest.mark.long
def test_fitted_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    record = probes(folder / "probes.parquet")
    pd.DataFrame({"x": [1]}).to_parquet(folder / "other.parquet")
    assert ebbtide("hazard", "fit", record, "--out", tmp_path / "hazard.json") == 0
    assert Hazard.read(tmp_path / "hazard.json").learnt_from[-1] == "probes"
    options = (
        "--prior",
        tmp_path / "hazard.json",
        "--json",
        tmp_path / "out.json",
        "--plot",
        tmp_path / "out.html",
    )
    assert ebbtide("hazard", "evaluate", "--traces", folder, *options) == 0
    assert "probes, zones left out" in " ".join(capsys.readouterr().out.split())
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert {row["estimate"] for row in rows} == {"hazard", "prices", "spells", "constant", "persistence"}
    assert {(row["event"], row["horizon_s"]) for row in rows} == {
        ("loss", 600.0),
        ("loss", 3600.0),
        ("loss", 21600.0),
        ("refusal", 600.0),
    }
    assert {"data", "log_loss", "brier", "calibration_error", "n"} <= rows[0].keys()
    assert "plotly" in (tmp_path / "out.html").read_text()[:200_000].lower()


def test_the_interval_that_a_record_implies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, out = probes(tmp_path / "probes.parquet"), tmp_path / "out.json"
    assert ebbtide("hazard", "intervals", "--traces", record, "--save", 120, "--json", out) == 0
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    assert (found["save_s"], found["restore_s"], row["data"]) == (120.0, 90.0, "probes")
    assert 1.0 <= row["ratio"] < 1.1
    assert "saves of 120 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("evaluate", "--traces", "none.parquet"), "does not exist"),
        (("evaluate", "--traces", "empty"), "holds no record of markets"),
        (("evaluate", "--traces", "probes.parquet", "--learnt-share", "2"), "a share between 0 and 1"),
        (("evaluate", "--traces", "probes.parquet", "--prior", "x.json"), "x.json"),
        (("intervals", "--traces", "probes.parquet", "--save", "0"), "positive numbers are needed"),
        (("fit", "other.parquet", "--out", "x.json"), "no observations of markets"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    probes(tmp_path / "probes.parquet")
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "other.parquet")
    assert ebbtide("hazard", *words) == 2
    assert told in " ".join(capsys.readouterr().err.split())
