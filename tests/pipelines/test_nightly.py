"""Nights as they come: the first, one without anything new, one with a new day, one that is killed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tests.pipelines.project import SMALL, STAGES, Project

import ebbtide as eb
from ebbtide._files import only_one
from ebbtide._utc import DAY_S
from ebbtide.market.price_series import PriceSeries

pytestmark = [pytest.mark.pipeline, pytest.mark.long]

TARGETS = ["interpolate", "train_revpred", "evaluate"]
# A new day of prices changes all but the learning curves.
DAILY = ["ingest", "interpolate", "train_revpred", "fit_price_model", "bundle", "solve", "execute", "evaluate"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Project:
    made = Project(tmp_path_factory.mktemp("nightly") / "main", prefect_server)
    made.set(SMALL | {"nightly.targets": TARGETS})
    return made


def night(project: Project) -> tuple[list[str], str]:
    """One: the stages that it ran, and its summary."""
    done = project.run("pipelines.nightly")
    assert done.returncode == 0, done.stderr
    told = re.search("Stages run: (.*)[.]", done.stdout)
    assert told is not None
    return [name for name in STAGES if name in told.group(1).split(", ")], done.stdout


def a_new_day(project: Project) -> None:
    """The last day once more, a day later."""
    prices = eb.PriceHistory.read(project.folder / "data" / "prices.parquet")
    series = {
        market: PriceSeries(one.times_s[1:] + DAY_S, one.prices[1:])
        for market, one in prices.window(prices.end_s - DAY_S, prices.end_s).items()
        if len(one) > 1
    }
    later = eb.PriceHistory(series, start_s=prices.end_s, end_s=prices.end_s + DAY_S)
    later.write(project.folder / "data" / "incoming" / "day.parquet")


def test_the_first_night_makes_all_and_the_next_nothing(project: Project) -> None:
    stages, summary = night(project)
    assert stages == STAGES
    assert (project.folder / "reports" / "nightly.md").read_text() == summary.rstrip("\n") + "\n"
    client = MlflowClient(f"sqlite:///{project.folder}/.mlflow/mlflow.db")
    home = client.get_experiment_by_name("pipeline").experiment_id
    (parent,) = client.search_runs([home])
    children = [
        run
        for experiment in client.search_experiments()
        for run in client.search_runs([experiment.experiment_id])
        if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    assert {run.data.tags["ebbtide.kind"] for run in children} == {
        "backtest",
        "revocation",
        "learning-curve",
        "earlycurve-calibration",
        "price-chain",
        "model-bundle",
        "cookbook",
        "bids",
        "allocation",
        "portfolio",
        "deadline",
    }
    before = project.outputs()
    stages, summary = night(project)
    assert stages == []
    assert "none, all is up to date" in summary
    assert "Champion among revocation models: version 1, as before." in summary
    assert project.outputs() == before


def test_a_bad_batch_is_set_aside_and_a_good_one_added_though_killed_at_any_stage(project: Project) -> None:
    a_new_day(project)
    incoming = project.folder / "data" / "incoming"
    (incoming / "bad.csv").write_text("a,b\n1,2\n")
    other = object.__new__(Project)
    other.folder, other.server = project.folder.parent / "other", project.server
    shutil.copytree(project.folder, other.folder)
    stages, summary = night(project)
    assert stages == DAILY
    assert re.search(r"- added `day.parquet`: \d+ rows", summary)
    assert "- **set aside** `bad.csv`: its first line is not recognised as a header" in summary
    assert list(incoming.iterdir()) == []
    assert len(list((project.folder / "data" / "set-aside").glob("*.csv"))) == 1
    # The other is killed while it looks at batches, and then in one stage after the other.
    for what in ("data/nightly/lock", "stage:ingest", "stage:train_revpred", "stage:bundle", "stage:execute"):
        process = other.start("pipelines.nightly")
        wait_for(other, what, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    night(other)
    assert other.outputs() == project.outputs()
    first, second = (
        json.loads((one.folder / "data" / "nightly" / "accepted.json").read_text()) for one in (project, other)
    )
    assert second["costs"] == first["costs"]
    assert second["models"] == first["models"]


def wait_for(project: Project, what: str, process: subprocess.Popen[str]) -> None:
    """Until a file is there, or a stage's process."""
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s and process.poll() is None:
        if what.startswith("stage:"):
            if stage_runs(project, f"pipelines.{what.removeprefix('stage:')}"):
                return
        elif (project.folder / what).exists():
            return
        time.sleep(0.02)
    # A stage that a night before it has finished is not run again.
    assert process.poll() == 0, process.stderr.read() if process.stderr else ""


def stage_runs(project: Project, module: str) -> bool:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            if module.encode() in words and (place / "cwd").resolve() == project.folder:
                return True
        except OSError:
            continue
    return False


def test_two_nights_at_once_are_one(project: Project) -> None:
    with only_one(project.folder / "data" / "nightly" / "lock", "nightly run"):
        second = project.run("pipelines.nightly")
    assert second.returncode == 2
    assert "another nightly run is under way in data/nightly" in second.stderr
    assert "Traceback" not in second.stderr
