"""Machines as worker processes of dask.distributed on this one: each comes, works and goes alone."""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from ebbtide._dask_security import NO_HTTP, new_security, worker_environment
from ebbtide.errors import InputError
from ebbtide.live.storage import object_store
from ebbtide.live.tiled.program import TileTask, run_task
from ebbtide.live.tiled.tiles import TileStore

# Of one task, for its own faults; what a lost machine was at is not counted.
_RETRIES = 2
_GRACE_S = 10.0
_CACHED_TILES = 64
# So often is a worker started again that ended of itself.
_MOST_REVIVED = 5


@dataclass(frozen=True)
class TaskDone:
    """A task has ended.

    Attributes:
        task: The task that has ended.
        error: Why it failed, if it did.
    """

    task: TileTask
    error: BaseException | None = None


class DaskWorkers:
    """A scheduler in this process and workers that are processes of their own, all on the loopback address.

    They accept only whom they have given a key to: whoever reaches a scheduler can run code in its process.

    Attributes:
        sent: How often the task of a tile was sent to a worker, by the tile's key.

    Args:
        folder: For what workers write beside tiles.

    Raises:
        InputError: dask.distributed, or what it needs for encryption, is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import dask
            from distributed import Client, LocalCluster
        except ImportError:
            raise InputError("tiled programs run on dask: install ebbtide[dask]") from None
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._pending: deque[tuple[TileTask, str, float]] = deque()
        # Tasks that have ended; None: a worker has come.
        self._news: queue.Queue[tuple[TileTask, Any] | None] = queue.Queue()
        self._futures: dict[TileTask, Any] = {}
        self._numbers = count()
        self._revived: Counter[str] = Counter()
        self._drained: set[str] = set()
        security = new_security()
        self._environment = os.environ | worker_environment(security)
        settings = NO_HTTP | {
            # A machine that is taken is no fault of the task that it was at.
            "distributed.scheduler.allowed-failures": 1_000_000,
            "distributed.admin.log-length": 100,
        }
        with dask.config.set(settings):
            self._cluster = LocalCluster(
                n_workers=0,
                processes=False,
                protocol="tls://",
                security=security,
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
            self._client = Client(self._cluster, set_as_default=False)
        self.sent: Counter[str] = Counter()
        self._cluster.scheduler.add_plugin(_plugin(self.sent, self._news), name="watching")

    def start(self, name: str) -> None:
        """Start a worker of that name; it takes tasks once it is there."""
        command = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            self._cluster.scheduler_address,
            "--no-nanny",
            "--nthreads",
            "1",
            "--name",
            name,
            "--host",
            "127.0.0.1",
            "--protocol",
            "tls",
            "--no-dashboard",
            "--dashboard-address",
            "127.0.0.1:0",
            "--memory-limit",
            "0",
            "--local-directory",
            str(self._folder),
            "--death-timeout",
            "60",
        ]
        quiet = subprocess.DEVNULL
        self._processes[name] = subprocess.Popen(
            command, env=self._environment, stdout=quiet, stderr=quiet, start_new_session=True
        )

    def drain(self, name: str) -> None:
        """Let a worker end its task and take no other."""
        worker = self._worker(name)
        self._drained.add(name)
        if worker is not None:
            self._client.run(_pause, workers=[worker.address])

    def is_busy(self, name: str) -> bool:
        """Whether a worker is at a task."""
        worker = self._worker(name)
        if worker is None or not worker.processing:
            return False
        # One that was paused never begins what has just reached it: others do it once this worker has ended.
        return name not in self._drained or self._executes(worker.address)

    def _executes(self, address: str) -> bool:
        told = self._client.run(_executing, workers=[address], on_error="ignore")
        return bool((told or {}).get(address))

    def kill(self, name: str) -> None:
        """End a worker now, whatever it is at; that is then done by others."""
        process = self._processes.pop(name, None)
        self._drained.discard(name)
        if process is not None:
            process.kill()
            process.wait(timeout=_GRACE_S)

    def revive(self) -> None:
        """Start again what has ended of itself.

        Raises:
            InputError: It does so again and again.
        """
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._revived[name] += 1
                if self._revived[name] > _MOST_REVIVED:
                    raise InputError(f"worker {name} ends again and again, last with {process.returncode}")
                self.start(name)

    def submit(self, task: TileTask, store_url: str, least_s: float) -> None:
        """Have a task done when a worker is free; `wait` tells when it is."""
        self._pending.append((task, store_url, least_s))
        self._hand_out()

    def wait(self, timeout_s: float) -> TaskDone | None:
        """The next task that has ended; None if none has in that time."""
        end_s = time.monotonic() + timeout_s
        while True:
            self._hand_out()
            try:
                ended = self._news.get(timeout=max(end_s - time.monotonic(), 1e-3))
            except queue.Empty:
                return None
            if ended is not None:
                task, future = ended
                if self._futures.pop(task, None) is future:
                    return _done(task, future)

    def _hand_out(self) -> None:
        """A task for each free worker: one that waited on a busy worker would not go to one that comes later."""
        free = sum(worker.status.name == "running" for worker in self._all()) - len(self._futures)
        for _ in range(min(free, len(self._pending))):
            task, store_url, least_s = self._pending.popleft()
            key = f"{task.output.key}#{next(self._numbers)}"
            future = self._client.submit(_run, task, store_url, least_s, key=key, retries=_RETRIES, pure=False)
            self._futures[task] = future
            future.add_done_callback(lambda done, task=task: self._news.put((task, done)))

    def _all(self) -> list[Any]:
        return list(self._cluster.scheduler.workers.values())

    def _worker(self, name: str) -> Any:
        return next((worker for worker in self._all() if worker.name == name), None)

    def close(self) -> None:
        """End every worker and the scheduler."""
        self._futures.clear()
        for name in list(self._processes):
            self.kill(name)
        self._client.close(timeout=_GRACE_S)
        self._cluster.close(timeout=_GRACE_S)


def _run(task: TileTask, store_url: str, least_s: float) -> bool:
    """On a worker."""
    return run_task(task, _tiles(store_url), least_s=least_s)


@lru_cache(maxsize=4)
def _tiles(store_url: str) -> TileStore:
    return TileStore(object_store(store_url), cached=_CACHED_TILES)


def _pause(dask_worker: Any) -> None:
    """On a worker: end what it is at, take nothing more."""
    from distributed.core import Status

    dask_worker.status = Status.paused


def _executing(dask_worker: Any) -> int:
    """On a worker: how many tasks it is at, those that wait left out."""
    return int(dask_worker.state.executing_count)


def _done(task: TileTask, future: Any) -> TaskDone:
    # Its tile is written. Its result is not asked for: had the machine gone with it since, this would wait for it.
    error = future.exception() if future.status == "error" else None
    future.release()
    return TaskDone(task, error)


def _plugin(sent: Counter[str], news: queue.Queue[tuple[TileTask, Any] | None]) -> Any:
    from distributed.diagnostics.plugin import SchedulerPlugin

    class Watching(SchedulerPlugin):  # type: ignore[misc]
        """Counts how often each task was sent to a worker, and tells when a worker has come."""

        def add_worker(self, *_: Any, **__: Any) -> None:
            news.put(None)

        def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
            if finish == "processing" and start != "processing":
                sent[str(key).split("#")[0]] += 1

    return Watching()
