"""A night by schedule, with a real server and worker; its pages looked at in a browser, screenshots kept."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow.tracking import MlflowClient
from tests.pipelines.browser import browser
from tests.pipelines.project import ROOT, SMALL, Project
from tests.waiting import LIMIT_S, eventually

from ebbtide.forecasts.bundle import MODEL_PARTS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Not committed; CI keeps the folder.
SCREENSHOTS = Path(os.environ.get("EBBTIDE_SCREENSHOTS", ROOT / "reports" / "screenshots"))

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.long]

# What the pages of Prefect and MLflow tell of themselves: files that their servers do not have, such as an icon, and
# inputs of tasks that the new page does not know.
THEIRS = ("Failed to load resource", "Invalid TaskInputResponse")

# A page with a chart that is drawn.
CHART = "document.querySelector('svg.main-svg')"
PICTURE = "document.querySelector('.picture svg')"


def says(*words: str) -> str:
    """JavaScript that is true once a page says all of these."""
    return f"{json.dumps(words)}.every(word => document.body.innerText.includes(word))"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(what: Callable[[], Any], process: subprocess.Popen[bytes], limit_s: float = LIMIT_S) -> Any:
    def found() -> Any:
        assert process.poll() is None, "it has ended"
        with contextlib.suppress(OSError):
            return what()
        return None

    return eventually(found, limit_s=limit_s, poll_s=1.0)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("face"))
    # The pages show what all stages leave; without a browser the few that the jobs ask for are a night, too.
    targets = ["promote", "evaluate"] if CHROMIUM else ["interpolate"]
    made.set(SMALL | {"nightly.targets": targets, "nightly.jobs": "jobs"})
    return made


@pytest.fixture(scope="module")
def service(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server and a worker, with a night every minute, until the first has gone well."""
    port = free_port()
    environment = project.environment | {"PREFECT_HOME": str(tmp_path_factory.mktemp("prefect"))}
    command = [sys.executable, "-m", "pipelines", "serve", "--port", str(port), "--cron", "* * * * *"]
    serve = subprocess.Popen(
        command,
        cwd=project.folder,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: nights(url), serve, 3000)
        yield url, serve
    finally:
        serve.terminate()
        try:
            serve.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(serve.pid, signal.SIGKILL)
            for process in of_project(project):
                process.kill()


@pytest.fixture(scope="module")
def prefect(service: tuple[str, subprocess.Popen[bytes]]) -> str:
    return service[0]


def of_project(project: Project) -> list[psutil.Process]:
    """What the service has started, and that in turn."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("EBBTIDE_FOLDER") == str(project.folder):
                found.append(process)
    return found


def nights(url: str) -> list[str]:
    """States of nightly runs of the schedule that have ended; one that comes while another runs is cancelled."""
    ended = {
        "flow_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}},
        "deployments": {"name": {"any_": ["nightly"]}},
    }
    request = urllib.request.Request(
        f"{url}/api/flow_runs/filter", json.dumps(ended).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [run["state_type"] for run in json.loads(answer.read()) if run["auto_scheduled"]]


def night_of(url: str) -> str:
    """Id of a night that went well."""
    went_well = {
        "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
        "flows": {"name": {"any_": ["nightly"]}},
    }
    request = urllib.request.Request(
        f"{url}/api/flow_runs/filter", json.dumps(went_well).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.loads(answer.read())[0]["id"])


def test_the_schedule_runs_a_night_and_it_goes_well(prefect: str) -> None:
    assert set(nights(prefect)) == {"COMPLETED"}


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: on Debian, the package chromium")
def test_pages_are_whole_in_a_browser(prefect: str, project: Project, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    errors = {}
    night = f"runs/flow-run/{night_of(prefect)}"
    with browser(CHROMIUM, tmp_path / "profile") as window:

        def look(name: str, url: str, drawn: str) -> None:
            errors[name] = window.look_at(url, drawn, SCREENSHOTS / f"{name}.png")

        look("prefect-dashboard", f"{prefect}/dashboard", says("Flow Runs", "Task Runs"))
        for page in ("runs", "artifacts", "deployments"):
            look(f"prefect-{page}", f"{prefect}/{page}", says("nightly"))
        look("prefect-night", f"{prefect}/{night}", says("Completed", "Task Runs", "Subflow Runs"))
        look("report", (project.folder / "reports" / "report.html").as_uri(), PICTURE)
        look_at_mlflow(project, look)
    ours = {
        page: [one for one in found if page == "report" or not any(known in one for known in THEIRS)]
        for page, found in errors.items()
    }
    assert ours == {page: [] for page in errors}


def look_at_mlflow(project: Project, look: Callable[[str, str, str], None]) -> None:
    store = f"sqlite:///{project.folder}/.mlflow/mlflow.db"
    client = MlflowClient(store)
    homes = {each.name: each.experiment_id for each in client.search_experiments()}
    of_policies, of_trials = (
        client.search_runs([homes[name]], filter_string=f"tags.`ebbtide.kind` = '{kind}'")
        for name, kind in (("backtests", "policy"), ("live runs", "trial"))
    )
    trial = of_trials[0].info.run_id
    assert len(client.get_metric_history(trial, "ebbtide.cost_usd")) > 1
    assert {model.name for model in client.search_registered_models()} >= set(MODEL_PARTS)
    runs = urllib.parse.quote(json.dumps([run.info.run_id for run in of_policies[:4]]))
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "ui",
        "--backend-store-uri",
        store,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    ui = subprocess.Popen(
        command,
        cwd=project.folder,
        env=project.environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: urllib.request.urlopen(f"{url}/health", timeout=10).status == 200, ui, 3 * LIMIT_S)
        backtests = urllib.parse.quote(json.dumps([homes["backtests"]]))
        pages = {
            "compare": (f"compare-runs?runs={runs}&experiments={backtests}", says("cost_usd_mean")),
            "nights": (f"experiments/{homes['pipeline']}/runs?compareRunsMode=CHART", CHART),
            "trial": (f"experiments/{homes['live runs']}/runs/{trial}/model-metrics", CHART),
            "registry": ("models", says(*MODEL_PARTS)),
        }
        for name, (page, drawn) in pages.items():
            look(f"mlflow-{name}", f"{url}/#/{page}", drawn)
    finally:
        os.killpg(ui.pid, signal.SIGTERM)
        ui.wait(LIMIT_S)


@pytest.mark.exhaustive
def test_a_night_under_way_ends_with_the_service(
    service: tuple[str, subprocess.Popen[bytes]], project: Project
) -> None:
    """The last test of these."""
    _, serve = service
    wait_for(lambda: (project.folder / "data" / "nightly" / "dvc-process").exists(), serve, 600)
    assert any("dvc" in process.cmdline() for process in of_project(project))
    serve.terminate()
    assert serve.wait(LIMIT_S) == 0
    assert of_project(project) == []
