"""Tracking on a server whose runs are in Postgres."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S, eventually

import ebbtide as eb
from ebbtide.analysis.tracking import log_record

_FOUND = shutil.which("initdb") or next(
    (str(path) for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), None
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        _FOUND is None or importlib.util.find_spec("psycopg2") is None,
        reason="Postgres or psycopg2 is not installed",
    ),
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def as_postgres(*command: object) -> list[str]:
    """Postgres does not run as root."""
    words = [str(word) for word in command]
    return (
        ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *words]
        if os.geteuid() == 0
        else words
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    assert _FOUND is not None
    programs, port = Path(_FOUND).parent, free_port()
    data = Path("/tmp") / f"ebbtide-postgres-{port}"
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(data, "postgres", "postgres")
    processes = []
    try:
        subprocess.run(
            as_postgres(programs / "initdb", "-D", data, "-A", "trust", "-U", "ebbtide"),
            check=True,
            capture_output=True,
            cwd="/",
        )
        postgres = as_postgres(programs / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", data)
        processes.append(subprocess.Popen(postgres, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"))
        eventually(lambda: accepts(port), poll_s=0.3)
        web = free_port()
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(web),
            "--backend-store-uri",
            f"postgresql://ebbtide@127.0.0.1:{port}/postgres",
            "--artifacts-destination",
            str(tmp_path / "artifacts"),
        ]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        url = f"http://127.0.0.1:{web}"
        eventually(lambda: answers(f"{url}/health"), limit_s=3 * LIMIT_S, poll_s=0.3)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(LIMIT_S)
        shutil.rmtree(data, ignore_errors=True)


def accepts(port: int) -> bool:
    import psycopg2

    try:
        psycopg2.connect(
            host="127.0.0.1", port=port, user="ebbtide", dbname="postgres", connect_timeout=10
        ).close()
    except psycopg2.OperationalError:
        return False
    return True


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_backtest_is_tracked_there_as_in_a_file(server: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    prices = eb.generate_prices(days=5, seed=1)
    job = eb.Job(name="short", steps=2_000, steps_per_hour={"c3.xlarge": 1_000})
    record = eb.backtest([eb.OnDemand(), eb.Reactive()], job, prices, starts=2).record()
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
