"""What all tests share."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import ebbtide as eb
from ebbtide.base.utc import DAY_S
from ebbtide.controller.journal.address import PostgresPlace
from tests.postgres import Places, PostgresServer, postgres_server

pytest_plugins = ["tests.process_starts"]

ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "shared" / "traces"

# The same examples on every CI run; fresh ones on a developer's machine.
settings.register_profile(
    "ebbtide",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("ebbtide")

# A shell that starts us in the background has interrupts ignored, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same with `nohup` and the closing of a terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Test processes share the cores; PyTorch's threads would spend their time waiting for each other.
os.environ["OMP_NUM_THREADS"] = "1"
assert "torch" not in sys.modules

# Programs of this environment, as where it is activated; Open MPI of PyPI has to be told where it is.
os.environ["PATH"] = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
os.environ["OPAL_PREFIX"] = sys.prefix


@pytest.fixture(autouse=True)
def _heard() -> None:
    """Making a database of MLflow's turns all loggers off; a test of what is logged is not to depend on that."""
    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] == "ebbtide":
            logging.getLogger(name).disabled = False


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder: what a demo or a run has left in the checkout must not matter."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def in_project(_elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test in the folder of this project, for paths as a reader of its documentation gives them."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def mid_month(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set this process's clock to the middle of the month: accounts of hours before now are of one month then."""
    now = time.time
    shift_s = (15 - datetime.now(UTC).day) * DAY_S
    monkeypatch.setattr(time, "time", lambda: now() + shift_s)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of real traces where there are none."""
    if TRACES.is_dir():
        return
    skip = pytest.mark.skip(reason=f"real traces are not at {TRACES}")
    for item in items:
        if item.get_closest_marker("real_traces"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real price histories."""
    return TRACES


@pytest.fixture(scope="session")
def auction_2015(traces: Path) -> eb.PriceHistory:
    """The 13 auction markets of 2015."""
    return eb.PriceHistory.read(traces / "ec2-auction-2015.parquet")


@pytest.fixture(scope="session")
def one_day() -> eb.Job:
    """The example job."""
    return eb.Job.read(ROOT / "examples" / "one-day.yaml")


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the standard AWS chain finds, good for a server of our own alone."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


@pytest.fixture(scope="session")
def aws_server() -> Iterator[str]:
    """The address of a server on this machine that speaks AWS's API."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture(scope="session")
def postgres(processes: None) -> Iterator[PostgresServer]:
    """A server of Postgres on this machine; whoever stops it starts it again."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def journal_place(request: pytest.FixtureRequest, tmp_path: Path, processes: None) -> Places:
    """Places of new journals by their names, in a folder or in a database."""
    if request.param == "sqlite":
        return lambda name: tmp_path / f"{name}.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    mark = secrets.token_hex(6)
    return lambda name: PostgresPlace.of(server.address, f"{name}-{mark}")
