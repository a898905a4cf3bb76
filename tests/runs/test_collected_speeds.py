"""Measured speeds of past runs, by job."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.base.cores import usable_cores
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.journal.journal import Journal
from ebbtide.controller.kinds.measured_speed import SpeedRecords
from ebbtide.runs.collected_speeds import CollectedSpeeds, rates_of, speeds_of_runs

FAST: SpeedRecords = {"0": {"a": {"steps": 9, "duration_s": 90.0, "told": True}}}
SLOW: SpeedRecords = {
    "0": {"a": {"steps": 3, "duration_s": 70.0, "told": True}},
    "1": {"b": {"steps": 1, "duration_s": 5.0, "told": False}},
}


SWEEP = {"name": "net", "command": "x {n}", "grid": {"n": [1, 2]}, "metric": "m", "max_trial_steps": 9}


def kept(
    runs: Path, run: str, speeds: SpeedRecords, *, job: str = "net", problem: str = "", local: bool = False
) -> RunFolder:
    folder = RunFolder(runs / run)
    provider, options = ("local", {"speed": 60.0}) if local else ("ec2", {})
    folder.begin(LiveSettings(run, provider, "reactive", SWEEP | {"name": job}, "/code", "/store", options))
    snapshot = {
        "engine": {"leases": [], "jobs": []},
        "provider": {"trials": [{"problem": problem}], "speeds": speeds},
    }
    Journal(folder.journal).keep({"run": snapshot})
    return folder


@pytest.fixture(autouse=True)
def _as_it_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_checked", lambda _self, run: run)


def test_rented_machines_are_measured_by_their_type(tmp_path: Path) -> None:
    runs = [kept(tmp_path, "r1", FAST), kept(tmp_path, "r2", SLOW)]
    # Twelve steps in 160 s of both; on b too little was measured.
    assert rates_of(runs, "net") == CollectedSpeeds({"a": 270.0})
    assert rates_of([], "net") == CollectedSpeeds()
    assert CollectedSpeeds({"a": 270.0}).to_dict() == {"steps_per_hour": {"a": 270.0}}


def test_here_every_type_is_this_machine_and_time_is_the_market_s(tmp_path: Path) -> None:
    found = rates_of([kept(tmp_path, "r1", FAST, local=True)], "net")
    # Nine steps in a real second and a half.
    assert found == CollectedSpeeds({}, 9 / 1.5 * 3600 / usable_cores())
    assert list(found.to_dict()) == ["other_steps_per_hour_per_vcpu"]


def test_runs_are_gathered_by_job_and_those_that_failed_or_cannot_be_read_left_out(tmp_path: Path) -> None:
    kept(tmp_path, "r1", FAST)
    kept(tmp_path, "r2", FAST, job="other")
    kept(tmp_path, "r3", SLOW, job="failing", problem="failed 5 times")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert speeds_of_runs(tmp_path) == {
        "net": CollectedSpeeds({"a": 360.0}),
        "other": CollectedSpeeds({"a": 360.0}),
    }
    assert speeds_of_runs(tmp_path / "nowhere") == {}


def test_jobs_of_a_list_are_measured_by_their_names(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r1")
    one, other = ({"work": {"name": name, "command": "x"}} for name in ("one", "other"))
    folder.begin(
        LiveSettings("r1", "ec2", "default", {"name": "all", "listed": [one, other]}, "/code", "/store", {})
    )
    speeds: SpeedRecords = {"0": FAST["0"], "1": {"b": {"steps": 100, "duration_s": 50.0, "told": True}}}
    trials = [{"problem": ""}, {"problem": ""}]
    snapshot = {"engine": {"leases": [], "jobs": []}, "provider": {"trials": trials, "speeds": speeds}}
    Journal(folder.journal).keep({"run": snapshot})
    assert speeds_of_runs(tmp_path) == {
        "all/one": CollectedSpeeds({"a": 360.0}),
        "all/other": CollectedSpeeds({"b": 7200.0}),
    }
