"""The server of the page: what it says is what `status --json` says; it answers this machine alone, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.test_running import command
from tests.postgres import free_port
from tests.ui.made_run import made_run

from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.run_state import controlling
from ebbtide.ui.server import app_for


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ui") / "runs"
    made_run(folder, 4)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{}")
    return folder


@pytest.fixture
def client(runs: Path) -> TestClient:
    return TestClient(app_for(runs), base_url="http://127.0.0.1:8787")


def test_it_says_what_status_says(runs: Path, client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(command(capsys, "status", "made", "--json", "--runs", runs)[1])
    found = client.get("/api/runs/made").json()
    # Estimates that move with the clock aside.
    moving = {"elapsed_s", "rest_s", "money"}
    assert {name: value for name, value in found.items() if name not in moving} == {
        name: value for name, value in told.items() if name not in moving
    }
    assert found["money"]["refund_usd"] == told["money"]["refund_usd"] > 0
    why = json.loads(command(capsys, "why", "made", "--json", "--runs", runs)[1])
    assert client.get("/api/runs/made/decisions").json() == why


def test_a_damaged_run_hides_no_other(client: TestClient) -> None:
    found = {one["run"]: one["state"] for one in client.get("/api/runs").json()}
    assert found == {"damaged": "cannot be read", "made": "controller gone"}


def test_a_run_whose_journal_s_server_is_away_is_there_later(tmp_path: Path) -> None:
    address = f"postgresql://127.0.0.1:{free_port()}/runs"
    RunFolder(tmp_path / "away").begin(
        LiveSettings("away", "local", "reactive", {}, "/", "/", {}, journal=address)
    )
    client = TestClient(app_for(tmp_path), base_url="http://localhost")
    for path in ("/api/runs/away", "/api/runs/away/curves"):
        found = client.get(path)
        assert (found.status_code, "does not answer" in found.json()["error"]) == (503, True)
    assert [one["state"] for one in client.get("/api/runs").json()] == ["cannot be read"]


def test_no_runs_are_no_error(tmp_path: Path) -> None:
    client = TestClient(app_for(tmp_path / "none"), base_url="http://localhost")
    assert client.get("/api/runs").json() == []
    assert client.get("/metrics").status_code == 200
    assert client.get("/api/runs/x").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1", "localhost.evil.example"])
def test_pages_of_other_sites_are_not_answered(runs: Path, host: str) -> None:
    client = TestClient(app_for(runs), base_url=f"http://{host}")
    assert client.get("/api/runs").status_code == 400
    assert TestClient(app_for(runs, [host]), base_url=f"http://{host}").get("/api/runs").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(client: TestClient, runs: Path, method: str) -> None:
    before = _digests(runs)
    for address in ("/", "/api/runs", "/api/runs/made", "/metrics"):
        assert client.request(method, address).status_code == 405
    for address in ("/", "/api/runs", "/api/runs/made", *(f"/api/runs/made/{view}" for view in VIEWS), "/metrics"):
        assert client.get(address).status_code == 200
    assert _digests(runs) == before


def test_probes_may_ask_without_a_body(client: TestClient) -> None:
    for address in ("/", "/api/runs", "/metrics", "/healthz"):
        answer = client.head(address)
        assert answer.status_code == 200
        assert answer.headers["Content-Security-Policy"]


def test_a_copied_run_is_one_to_prometheus(client: TestClient, runs: Path) -> None:
    shutil.copytree(runs / "made", runs / "copy")
    found = client.get("/metrics").text
    shutil.rmtree(runs / "copy")
    assert found.count('ebbtide_run_spent_usd{run="made"}') == 1


VIEWS = ("curves", "machines", "spend", "decisions")


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in {".sqlite-shm", ".sqlite-wal"}
    }


@pytest.mark.parametrize(
    "run", ["nothing", "..", "%2e%2e%2fmade", "made%2f..", "<script>alert(1)</script>", "damaged"]
)
@pytest.mark.parametrize("view", ["", *(f"/{view}" for view in VIEWS)])
def test_what_is_no_run_is_an_error_in_words(client: TestClient, run: str, view: str) -> None:
    answer = client.get(f"/api/runs/{run}{view}")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("application/json")


def test_what_the_browser_has_is_not_sent_again(client: TestClient) -> None:
    for view in VIEWS:
        answer = client.get(f"/api/runs/made/{view}")
        again = client.get(f"/api/runs/made/{view}", headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_nothing_is_loaded_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert "http" not in page.text.replace("http-equiv", "")
    for file in ("app.js", "charts.js", "app.css", "plotly.min.js"):
        assert client.get(f"/static/{file}").status_code == 200
    for file in ("server.py", "..%2fserver.py", "index.html"):
        assert client.get(f"/static/{file}").status_code == 404


def test_prometheus_can_read_it(client: TestClient, runs: Path) -> None:
    with controlling(runs / "made"):
        before, metrics, after = (client.get(path) for path in ("/api/runs/made", "/metrics", "/api/runs/made"))
    families = {one.name: one for one in text_string_to_metric_families(metrics.text)}
    spent = {sample.labels["run"]: sample.value for sample in families["ebbtide_run_spent_usd"].samples}
    # Its machines are paid while it is asked.
    assert 0.0 < before.json()["money"]["paid_usd"] <= spent["made"] <= after.json()["money"]["paid_usd"]
    state = {sample.labels["state"]: sample.value for sample in families["ebbtide_run_state"].samples}
    assert sum(state.values()) == state["running"] == 1
    assert sum(sample.value for sample in families["ebbtide_run_trials"].samples) == 4
    assert families["ebbtide_runs_unreadable"].samples[0].value == 1
    assert families["ebbtide_run_budget_usd"].samples[0].value == 40.0
