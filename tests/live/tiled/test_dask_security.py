"""Only those to whom it gave a key may join a Dask cluster on this machine: whoever does can run code in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from ebbtide.errors import InputError
from ebbtide.live.tiled.dask_workers import DaskWorkers

distributed = pytest.importorskip("distributed")

from distributed.security import Security  # noqa: E402


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskWorkers]:
    started = DaskWorkers(tmp_path_factory.mktemp("workers"))
    started.start("a")
    started._client.wait_for_workers(1, timeout=60)
    yield started
    started.close()


def test_the_work_runs(workers: DaskWorkers) -> None:
    assert workers._client.submit(sum, [1, 2, 3]).result(timeout=30) == 6


@pytest.mark.parametrize("protocol", ["tcp", "tls"])
@pytest.mark.parametrize("where", ["scheduler", "worker"])
def test_others_are_refused(workers: DaskWorkers, protocol: str, where: str) -> None:
    address = workers._cluster.scheduler_address if where == "scheduler" else workers._worker("a").address
    assert address.startswith("tls://127.0.0.1:")
    asked = address.replace("tls", protocol)
    # With no certificate, or with one of another cluster, as good as this one's otherwise.
    security = Security() if protocol == "tcp" else Security.temporary()
    with pytest.raises(OSError, match="Timed out trying to connect|identity"):
        call(asked, security)


def call(address: str, security: Security) -> None:
    """One request without a client: to name itself, which every process of a cluster answers."""
    import asyncio

    from distributed.core import rpc

    async def ask() -> None:
        role = security.get_connection_args("client")
        async with rpc(address, connection_args=role, timeout=3) as peer:
            await peer.identity()

    asyncio.run(ask())


def test_keys_are_not_where_others_can_read_them(workers: DaskWorkers) -> None:
    (process,) = [psutil.Process(one.pid) for one in workers._processes.values()]
    assert not any("PRIVATE" in word or ".pem" in word for word in process.cmdline())
    assert oct(Path(f"/proc/{process.pid}/environ").stat().st_mode & 0o077) == "0o0"
    key = workers._cluster.security.tls_worker_key.encode()
    left = [path for path in workers._folder.rglob("*") if path.is_file()]
    assert all(key not in path.read_bytes() for path in left)


def test_nothing_is_served_without_a_key(workers: DaskWorkers) -> None:
    scheduler = workers._cluster.scheduler
    assert scheduler.http_server is not None
    for page in ("info/main/workers.html", "status", "json/identity.json", "metrics"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{scheduler.http_server.port}/{page}", timeout=5)
    (process,) = [psutil.Process(one.pid) for one in workers._processes.values()]
    assert {each.laddr.ip for each in process.net_connections("inet")} == {"127.0.0.1"}


def flows_cluster() -> object:
    from flows.task_runner import task_runner

    return task_runner()


@pytest.mark.parametrize("start", [lambda: DaskWorkers(Path()), flows_cluster])
def test_without_encryption_there_are_no_workers(
    start: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prefect_dask")
    monkeypatch.setenv("EBBTIDE_TASK_RUNNER", "dask")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(InputError, match=r"cannot encrypt.*pip install 'ebbtide\[dask\]'"):
        start()


def test_the_cluster_of_flows_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect_dask")
    monkeypatch.setenv("EBBTIDE_TASK_RUNNER", "dask")
    from flows.task_runner import task_runner

    arguments = {**task_runner().cluster_kwargs, "n_workers": 1, "processes": False}  # type: ignore[attr-defined]
    with (
        distributed.LocalCluster(**arguments) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3
        address = cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match="Timed out trying to connect|identity"):
            call(address.replace("tls", "tcp"), Security())
