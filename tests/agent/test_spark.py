"""A worker of Spark is begun again as long as it works, without Spark: a program of a line stands for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.agent import spark

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Put back the handler of SIGTERM, which both programs set."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_worker_that_never_works_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its machine would be paid for nothing, and nobody told."""
    begun: list[int] = []

    class Cluster:
        def __init__(self, _place: Path) -> None:
            pass

        def start_worker(self) -> subprocess.Popen[bytes]:
            begun.append(1)
            return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

        def close(self) -> None:
            pass

    monkeypatch.setattr(spark, "SparkMember", Cluster)
    monkeypatch.setattr(spark, "_RETRY_S", 0.01)
    assert spark._worker() == 1
    assert len(begun) == 5
    assert "the worker ended 5 times at once, last with exit code 3" in capfd.readouterr().err


def test_the_worker_beside_the_head_is_begun_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without it, the application would wait for executors for ever if no other machine has a worker."""
    begun: list[int] = []
    ends = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\nsys.exit(7)"

    class Cluster:
        def __init__(self, _place: Path) -> None:
            pass

        def start_master(self) -> subprocess.Popen[bytes]:
            self.master = subprocess.Popen(["sleep", "600"])
            return self.master

        def start_worker(self) -> subprocess.Popen[bytes]:
            begun.append(1)
            if len(begun) == 2:
                (tmp_path / "end").touch()
            return subprocess.Popen([sys.executable, "-c", "raise SystemExit(137)"])

        def submit(self, _words: list[str]) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", ends, str(tmp_path / "end")])

        def close(self) -> None:
            self.master.kill()
            self.master.wait()

    monkeypatch.setattr(spark, "SparkMember", Cluster)
    monkeypatch.setattr(spark, "_RETRY_S", 0.01)
    assert spark._head(["app.py"]) == 7
    assert len(begun) >= 2


def test_an_application_whose_master_has_ended_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before, it stood still, since no worker could join any more, and all machines were paid."""
    closed: list[int] = []

    class Cluster:
        def __init__(self, _place: Path) -> None:
            pass

        def start_master(self) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

        def start_worker(self) -> subprocess.Popen[bytes]:
            return self.submit(())

        def submit(self, _words: object) -> subprocess.Popen[bytes]:
            found = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            started.append(found)
            return found

        def close(self) -> None:
            closed.append(1)
            for process in started:
                process.kill()
                process.wait()

    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(spark, "SparkMember", Cluster)
    monkeypatch.setattr(spark, "_RETRY_S", 0.05)
    assert spark._head(["app.py"]) == 1
    assert closed == [1]
    assert "Spark's master ended with exit code 3" in capfd.readouterr().err
