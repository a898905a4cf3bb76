"""A Dask cluster on machines with addresses of their own: what it does, who may join, and what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.waiting import LIMIT_S, eventually

from ebbtide.agent import dask_cluster
from ebbtide.agent.dask_cluster import as_one_of, key_and_certificate, meeting_port
from ebbtide.errors import InputError

distributed = pytest.importorskip("distributed")

from distributed.security import Security  # noqa: E402

SECRET = "5ec2e7"
HEAD, WORKER = "127.1.7.1", "127.1.7.2"

# Forty tasks that take a tenth of a second each, whose results are large enough to be fetched from who has them.
PROGRAM = """
import sys, time
from pathlib import Path
from distributed import Client

def task(number):
    time.sleep(0.1)
    return [number] * 1000

with Client() as client:
    Path("address").write_text(client.scheduler.address)
    while not Path("go").exists():
        time.sleep(0.02)
    done = client.map(task, range(40))
    print(sum(sum(found) for found in client.gather(done)) // 1000, flush=True)
    while not Path("end").exists():
        time.sleep(0.02)
sys.exit(7)
"""


def port() -> int:
    with socket.socket() as free:
        free.bind((HEAD, 0))
        return int(free.getsockname()[1])


@dataclass
class Cluster:
    """A head with a program, and workers on demand."""

    folder: Path
    port: int = field(default_factory=port)

    def start(self, rank: int, address: str = WORKER) -> subprocess.Popen[str]:
        machines = HEAD if rank == 0 else f"{HEAD},{address}"
        environment = {
            **os.environ,
            "EBBTIDE_SECRET": SECRET,
            "EBBTIDE_MACHINES": machines,
            **meeting_port(self.port),
        }
        return subprocess.Popen(
            as_one_of(["program.py"], rank), cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True
        )

    @property
    def scheduler(self) -> str:
        return f"tls://{HEAD}:{self.port}"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "program.py").write_text(PROGRAM)
    return Cluster(tmp_path)


def security_of(secret: str) -> Security:
    key, certificate = key_and_certificate(secret)
    return Security(
        require_encryption=True, tls_ca_file=certificate, tls_client_key=key, tls_client_cert=certificate
    )


def ask(address: str, security: Security, what: str = "identity") -> Any:
    """One request without a client, which every process of a cluster answers."""
    from distributed.core import rpc

    async def asked() -> Any:
        role = security.get_connection_args("client")
        async with rpc(address, connection_args=role, timeout=30) as peer:
            return await getattr(peer, what)()

    return asyncio.run(asked())


def workers_of(cluster: Cluster) -> dict[str, object]:
    return dict(ask(cluster.scheduler, security_of(SECRET))["workers"])


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_workers_come_and_go_and_strangers_are_refused(cluster: Cluster) -> None:
    head, worker = cluster.start(0), cluster.start(1)
    try:
        eventually((cluster.folder / "address").exists)
        eventually(lambda: len(workers_of(cluster)) == 2)
        addresses = [cluster.scheduler, *workers_of(cluster)]
        assert sorted(address.rpartition(":")[0] for address in addresses[1:]) == [
            f"tls://{HEAD}",
            f"tls://{WORKER}",
        ]
        for address in addresses:
            # With no certificate, or with one of another secret, as good as this one's otherwise.
            for stranger in (address.replace("tls", "tcp"), address):
                with pytest.raises(OSError, match="Timed out trying to connect|identity"):
                    ask(stranger, Security() if stranger.startswith("tcp") else security_of("other"))
        everyone = [psutil.Process(head.pid), *psutil.Process(head.pid).children(True), psutil.Process(worker.pid)]
        assert len(everyone) >= 4
        for process in everyone:
            assert not any("PRIVATE" in word or SECRET in word for word in process.cmdline())
            assert all(each.laddr.ip.startswith("127.") for each in process.net_connections("inet"))
        (cluster.folder / "go").touch()
        eventually(lambda: any(ask_tasks(address) for address in addresses[1:] if WORKER in address))
        # It ends its task, and what it has computed goes to the other.
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_S) == 0
        assert head.stdout is not None
        assert head.stdout.readline().strip() == str(sum(range(40)))
        assert len(workers_of(cluster)) == 1
        (cluster.folder / "end").touch()
        assert head.wait(LIMIT_S) == 7
        eventually(lambda: not any(process.is_running() for process in everyone[1:-1]))
    finally:
        for process in (head, worker):
            process.kill()
            process.wait()


def ask_tasks(address: str) -> bool:
    """Whether a worker has results."""
    return bool(ask(address, security_of(SECRET), "keys"))


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_what_a_killed_worker_had_is_computed_again(cluster: Cluster) -> None:
    head, worker = cluster.start(0), cluster.start(1)
    try:
        eventually((cluster.folder / "address").exists)
        eventually(lambda: len(workers_of(cluster)) == 2)
        (cluster.folder / "go").touch()
        of_worker = next(address for address in workers_of(cluster) if WORKER in address)
        eventually(lambda: ask_tasks(of_worker))
        worker.kill()
        (cluster.folder / "end").touch()
        assert head.stdout is not None
        assert head.stdout.readline().strip() == str(sum(range(40)))
        assert head.wait(LIMIT_S) == 7
    finally:
        for process in (head, worker):
            process.kill()
            process.wait()


@pytest.mark.usefixtures("processes")
def test_a_worker_that_is_to_leave_waits_for_no_head_that_is_gone(cluster: Cluster) -> None:
    with socket.create_server((HEAD, cluster.port)) as listening:
        listening.settimeout(LIMIT_S)
        worker = cluster.start(1)
        try:
            # It has imported what it needs, and asks for its scheduler, which goes without an answer.
            listening.accept()[0].close()
            listening.close()
            assert worker.poll() is None
            worker.terminate()
            assert worker.wait(LIMIT_S) == 0
        finally:
            worker.kill()
            worker.communicate()


def test_key_and_certificate_follow_from_the_secret() -> None:
    assert key_and_certificate(SECRET) == key_and_certificate(SECRET)
    assert not set(key_and_certificate(SECRET)) & set(key_and_certificate("other"))
    assert as_one_of(["a.py", "-x"], 0)[-4:] == ["head", "--", "a.py", "-x"]
    assert as_one_of(["a.py"], 2)[-1] == "worker"


@pytest.mark.usefixtures("processes")
def test_without_dask_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "dask.py").write_text("raise ImportError('No module named dask')\n")
    environment = {**os.environ, "EBBTIDE_SECRET": SECRET, "EBBTIDE_MACHINES": HEAD, **meeting_port(1)}
    done = subprocess.run(
        as_one_of(["a.py"], 1), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 1
    assert "Dask is not found on the machine (No module named dask): pip install 'ebbtide[dask]'" in done.stderr


def test_flows_without_encryption_have_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect_dask")
    from flows.task_runner import task_runner

    monkeypatch.setenv("EBBTIDE_TASK_RUNNER", "dask")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(InputError, match=r"cannot encrypt.*pip install 'ebbtide\[dask\]'"):
        task_runner()


# The platform of this machine is asked by a program, where nothing has asked it before.
@pytest.mark.usefixtures("processes")
def test_the_cluster_of_flows_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect_dask")
    monkeypatch.setenv("EBBTIDE_TASK_RUNNER", "dask")
    from flows.task_runner import task_runner

    arguments = {**task_runner().cluster_kwargs, "n_workers": 1, "processes": False}  # type: ignore[attr-defined]
    with (
        distributed.LocalCluster(**arguments) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        assert client.submit(sum, [1, 2]).result(timeout=LIMIT_S) == 3
        address = cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match="Timed out trying to connect|identity"):
            ask(address.replace("tls", "tcp"), Security())


def test_a_worker_that_cannot_join_its_scheduler_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before, its machine was paid for ever, and nobody was told."""

    class Deaf:
        def __init__(self, *_given: object, **_options: object) -> None:
            pass

        def __await__(self) -> Iterator[None]:
            raise TimeoutError("no scheduler within 60 s")
            yield

    for name, value in {
        "EBBTIDE_MACHINES": f"{HEAD},{WORKER}",
        "EBBTIDE_SECRET": SECRET,
        "EBBTIDE_DASK_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "Worker", Deaf)
    monkeypatch.setattr(dask_cluster, "_JOINS_WITHIN_S", 0.0)
    assert asyncio.run(dask_cluster._worker()) == 1
    assert "the scheduler was not reached for 0 s: no scheduler within 60 s" in capfd.readouterr().err
