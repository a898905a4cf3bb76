"""Nights as they come: the first, one without anything new, one with a new day, one that is killed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest
from mlflow.tracking import MlflowClient
from tests.pipelines.project import SMALL, STAGES, Project
from tests.runs.sweeps import PROGRAM, due_job, flapping, total
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.base.files import only_one
from ebbtide.base.utc import DAY_S
from ebbtide.clouds.local.server import bills_of
from ebbtide.clouds.settings import RunFolder, known_runs
from ebbtide.market.price_series import PriceSeries
from ebbtide.runs.start_local import end_local
from ebbtide.runs.status import standing_of
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import object_store

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.exhaustive]

TARGETS = ["interpolate", "promote", "evaluate"]
# A new day of prices changes all but the learning curves.
DAILY = [name for name in STAGES if name not in ("measure_curves", "calibrate_earlycurve", "measure_speeds")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Project:
    made = Project(tmp_path_factory.mktemp("nightly") / "main", prefect_server)
    made.set(SMALL | {"nightly.targets": TARGETS})
    return made


def night(project: Project) -> tuple[list[str], str]:
    """One: the stages that it ran, and its summary."""
    done = project.run("pipelines", "nightly")
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
        "revpred",
        "earlycurve",
        "price-chains",
        "spells",
        "hazard",
        "speeds",
        "promotion",
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
    assert "- revpred: version 1 is the first champion of its kind: there was none." in summary
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
    assert "- **set aside** `bad.csv`: is in no format known" in summary
    assert list(incoming.iterdir()) == []
    assert len(list((project.folder / "data" / "set-aside").glob("*.csv"))) == 1
    # The other is killed while it looks at batches, and then in one stage after the other.
    for what in ("data/nightly/lock", "stage:ingest", "stage:train_revpred", "stage:promote", "stage:execute"):
        process = other.start("pipelines", "nightly")
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


# How often a night is killed: while it checks, in DVC, while jobs train, at its end.
KILLS = 10


def two_jobs(folder: Path, server: str) -> Project:
    """A project with two jobs that are due, on a market that revokes every few seconds."""
    made = Project(folder, server)
    made.set(SMALL | {"nightly.targets": ["interpolate"], "nightly.push": False, "nightly.jobs": "jobs"})
    shutil.rmtree(made.folder / "jobs")
    (made.folder / "jobs").mkdir()
    flapping(hours=100.0).write(made.folder / "jobs" / "prices.parquet")
    (made.folder / "jobs" / "program.py").write_text(PROGRAM)
    for name, rate in (("first", 0.1), ("second", 0.2)):
        (made.folder / "jobs" / f"{name}.yaml").write_text(due_job(steps=1200, lr=rate))
    return made


def trained(project: Project) -> dict[str, list[float]]:
    """The newest checkpoint of each job: steps, and what they added up to. No machine is left."""
    found = {}
    for run in known_runs(project.folder / ".ebbtide" / "runs"):
        (trial,) = {path.name for path in (run.path / "objects" / "trials").iterdir()}
        with tempfile.TemporaryDirectory() as place:
            CheckpointStore(object_store(run.settings.store), trial).restore(Path(place) / "c")
            found[run.path.name.split("-")[0]] = json.loads((Path(place) / "c" / "state.json").read_text())
        assert not (run.path / "cloud" / "cloud.json").exists()
    return found


def check_money(project: Project) -> None:
    """Every machine is charged once: our ledger has what the cloud has, and the report has their sum."""
    report = json.loads((project.folder / "reports" / "nightly.json").read_text())
    whole_usd = 0.0
    for run in known_runs(project.folder / ".ebbtide" / "runs"):
        bills = bills_of(run.path / "cloud")
        assert len({bill["token"] for bill in bills}) == len(bills)
        billed_usd = math.fsum(bill["usd"] for bill in bills)
        found = standing_of(run, run.catalogue)
        assert found.money.paid_usd == pytest.approx(billed_usd, abs=1e-9)
        assert found.revoked >= 5
        whole_usd += billed_usd
    assert report["cost_usd"] == pytest.approx(whole_usd, abs=1e-9)
    assert report["jobs_done"] == 2
    assert report["revocations"] >= 10
    assert report["on_demand_usd"] > 0.0
    assert (report["models"], report["promoted"]) == ({}, [])
    assert report["seconds"] > 0.0


def check_tracked(project: Project) -> None:
    """One run for each job and one for its trial, below the night's; no value of a series twice."""
    client = MlflowClient(f"sqlite:///{project.folder}/.mlflow/mlflow.db")
    found = {
        experiment.name: client.search_runs([experiment.experiment_id])
        for experiment in client.search_experiments()
    }
    (night,) = found["pipeline"]
    assert night.info.status == "FINISHED"
    assert night.data.metrics["jobs_done"] == 2.0
    parents = [run for run in found["live runs"] if run.data.tags["ebbtide.kind"] == "live"]
    trials = [run for run in found["live runs"] if run.data.tags["ebbtide.kind"] == "trial"]
    assert sorted(run.data.tags["ebbtide.job"] for run in parents) == ["first", "second"]
    assert {run.data.tags["mlflow.parentRunId"] for run in parents} == {night.info.run_id}
    assert len(trials) == 2
    for run in trials:
        assert run.info.status == "FINISHED"
        for name in ("loss", "ebbtide.cost_usd", "ebbtide.refund_usd", "ebbtide.moves"):
            steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
            assert steps, name
            assert len(set(steps)) == len(steps)
        assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"moves.csv", "checkpoints.csv"}


def test_two_due_jobs_are_trained_once_though_the_night_is_killed_ten_times(
    tmp_path: Path, prefect_server: str
) -> None:
    quiet = two_jobs(tmp_path / "quiet", prefect_server)
    killed = two_jobs(tmp_path / "killed", prefect_server)
    try:
        night(quiet)
        random, kills, is_over = Random(7), 0, False
        while kills < KILLS and not is_over:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipelines", "nightly"],
                cwd=killed.folder,
                env=killed.environment,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            # At any moment: in its start, in its stages, in a training.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(random.uniform(1.0, 14.0))
            # On a fast machine the night may be over before it was killed so often.
            is_over = process.poll() is not None
            kills += not is_over
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert kills >= KILLS // 2
        if not is_over:
            night(killed)
        for project in (quiet, killed):
            check_money(project)
            check_tracked(project)
        assert trained(killed) == trained(quiet)
        assert trained(killed)["second"] == [1200, pytest.approx(total(0.2, 1200))]
        assert killed.outputs() == quiet.outputs()
        # All is done: nothing is due, and nothing is trained or charged again.
        night(killed)
        assert json.loads((killed.folder / "reports" / "nightly.json").read_text())["jobs_done"] == 0
        assert trained(killed) == trained(quiet)
    finally:
        for project in (quiet, killed):
            for path in (project.folder / ".ebbtide" / "runs").glob("*/run.json"):
                end_local(RunFolder(path.parent))


def wait_for(project: Project, what: str, process: subprocess.Popen[str]) -> None:
    """Wait until a file is there, or a stage's process."""

    def has_come() -> bool:
        if what.startswith("stage:"):
            return stage_runs(project, what.removeprefix("stage:"))
        return (project.folder / what).exists()

    def is_over() -> bool:
        return process.poll() is not None

    seen = eventually(
        lambda: next((look for look in (has_come, is_over) if look()), None), limit_s=5 * LIMIT_S, message=what
    )
    if seen is is_over:
        # A stage that a night before it has finished is not run again.
        assert process.poll() == 0, process.stderr.read() if process.stderr else ""


def stage_runs(project: Project, stage: str) -> bool:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            if {b"pipelines", stage.encode()} <= set(words) and (place / "cwd").resolve() == project.folder:
                return True
        except OSError:
            continue
    return False


def test_two_nights_at_once_are_one(project: Project) -> None:
    with only_one(project.folder / "data" / "nightly" / "lock", "nightly run"):
        second = project.run("pipelines", "nightly")
    assert second.returncode == 2
    assert "another nightly run or collection is under way in data/nightly" in second.stderr
    assert "Traceback" not in second.stderr
