"""Tracking on a server whose runs are in Postgres."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres import PostgresServer, free_port
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.tracking.tracking import log_record

pytestmark = pytest.mark.long


@pytest.fixture
def server(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    store = postgres.make(f"mlflow-{port}").replace("postgresql:", "postgresql+psycopg:")
    command = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store]
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--artifacts-destination", str(tmp_path / "artifacts")],
        stdout=(tmp_path / "log").open("wb"),
        stderr=subprocess.STDOUT,
    )

    def began() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        return answers(f"{url}/health")

    try:
        eventually(began, limit_s=3 * LIMIT_S, poll_s=0.3)
        yield url
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_backtest_is_tracked_there_as_in_a_file(server: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    prices = eb.generate_prices(days=5, seed=1, kind="auction")
    job = eb.Job(name="short", steps=2_000, steps_per_hour={"c3.xlarge": 1_000})
    record = eb.backtest(job, [eb.policies.OnDemand(), eb.policies.Reactive()], prices, starts=2).record()
    report = tmp_path / "report.txt"
    report.write_text("a report")
    parent = log_record(
        record, uri=server, experiment="b", artifacts=tmp_path, parameters={"seed": 0}, files=(report,)
    )
    client = MlflowClient(server)
    home = client.get_experiment_by_name("b").experiment_id
    runs = client.search_runs(
        [home], filter_string="tags.`ebbtide.kind` = 'policy'", order_by=["metrics.cost_usd_mean"]
    )
    assert [run.data.params["policy"] for run in runs] == ["reactive", "on-demand"]
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {parent}
    assert [file.path for file in client.list_artifacts(parent)] == ["report.txt"]
