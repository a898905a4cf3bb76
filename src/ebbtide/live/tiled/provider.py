"""The tiled provider: a matrix program on worker processes that a replayed market gives and takes.

What is real: the workers, their tasks, the tiles in object storage. What is replayed: prices and revocations, on a
clock that runs faster than the real one by a factor.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ebbtide._utc import HOUR_S
from ebbtide.engine.engine import run_policy
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.real_time import RealTimeProvider
from ebbtide.live.storage import object_store
from ebbtide.live.tiled.dask_workers import DaskWorkers, TaskDone
from ebbtide.live.tiled.program import TiledProgram, TileTask, write_inputs
from ebbtide.live.tiled.tiles import DamagedTileError, TileName, TileStore
from ebbtide.market.leases import Lease
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.simulation.replayed_market import ReplayedMarket
from ebbtide.simulation.scenario import Scenario

# So often is one tile made again because its bytes are damaged.
_MOST_REMADE = 3

# Real seconds between looks at whether workers are alive.
_LOOK_EVERY_S = 1.0


class TiledProvider(RealTimeProvider):
    """Runs one elastic job, a program, on a worker for each lease.

    Args:
        market: The replayed market to rent from.
        program: The tiled program to run; tiles that are in the store are not made again.
        store_url: Where its tiles are: a folder, or s3://bucket/prefix.
        folder: For what workers write beside tiles.
        speed: Market seconds in a real second.
        task_h: Market hours that a machine takes for a task, at least.
    """

    def __init__(
        self,
        market: ReplayedMarket,
        program: TiledProgram,
        store_url: str,
        folder: Path,
        *,
        speed: float,
        task_h: float,
    ) -> None:
        super().__init__(market, speed)
        self._store_url = store_url
        self._least_s = task_h * HOUR_S / speed
        self._tiles = TileStore(object_store(store_url))
        self._program = program
        self._jobs = [job.tasks for job in program.jobs]
        self._makers = {task.output: task for tasks in self._jobs for task in tasks}
        self._workers = DaskWorkers(folder)
        self._left: set[TileTask] = set()
        self._waiting: dict[TileTask, list[TileTask]] = {}
        self._remade: Counter[TileName] = Counter()
        self._assigned: list[Lease] = []
        self._working: set[int] = set()
        self._draining: set[int] = set()
        self._progress: JobProgress | None = None
        self._stopped = False

    @property
    def times_sent(self) -> Counter[str]:
        """How often the task of a tile was sent to a worker, by the tile's key."""
        return self._workers.sent

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        if len(jobs) != 1:
            raise InputError(f"{len(jobs)} jobs; a tiled program is one")
        self._progress = jobs[0]
        if watch_prices:
            self._market.watch_prices()
        write_inputs(self._program, self._tiles)
        written = self._tiles.written()
        self._jobs = [tuple(task for task in tasks if task.output.key not in written) for tasks in self._jobs]
        self._count()
        self._begin_job()

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:  # noqa: ARG002
        self._assigned = list(leases)
        for lease_id in sorted(self._working - self._draining - {lease.lease_id for lease in leases}):
            self._drain(lease_id)
        self._start_booted()

    def in_use(self, lease: Lease) -> bool:
        return lease.lease_id in self._working and self._workers.is_busy(_worker_of(lease.lease_id))

    def save(self, job_id: int) -> None:
        """What is done is saved: each task writes its tile."""

    def stop(self, job_id: int) -> None:  # noqa: ARG002
        self._stopped = True
        self._finish("stopped")

    def wake_at_step(self, job_id: int, step: int) -> None:  # noqa: ARG002
        raise InputError("a tiled program tells of tasks, not of steps")

    def measured(self, job_id: int) -> tuple[Floats, Floats]:  # noqa: ARG002
        """A program has no metric."""
        return np.empty(0), np.empty(0)

    def refresh(self) -> None:
        """Progress is up to date as of the last task."""

    def close(self) -> None:
        self._workers.close()

    # The market.

    def _listen(self, wait_s: float) -> None:
        self._workers.revive()
        done = self._workers.wait(min(wait_s, _LOOK_EVERY_S))
        if done is not None:
            self._hear(done)

    def _rented(self, event: Event, lease: Lease) -> None:
        if event.wake is Wake.NOTICE:
            self._drain(lease.lease_id)
        elif event.wake is Wake.ENDED:
            self._take_away(lease)
        self._start_booted()

    def _start_booted(self) -> None:
        for lease in self._assigned:
            if lease.is_booted and lease.lease_id not in self._working and not self._stopped:
                self._working.add(lease.lease_id)
                self._workers.start(_worker_of(lease.lease_id))
                assert self._progress is not None
                self._progress.begin_on([lease], self.now_s)

    def _drain(self, lease_id: int) -> None:
        if lease_id in self._working:
            self._draining.add(lease_id)
            self._workers.drain(_worker_of(lease_id))

    def _take_away(self, lease: Lease) -> None:
        """The machine is gone, and the task that it was at with it."""
        self._assigned = [other for other in self._assigned if other is not lease]
        if lease.lease_id in self._working:
            assert self._progress is not None
            if self.in_use(lease):
                self._progress.steps_lost += self._steps_of_a_task
            self._workers.kill(_worker_of(lease.lease_id))
            self._working.discard(lease.lease_id)
            self._draining.discard(lease.lease_id)

    # The tasks.

    @property
    def _steps_of_a_task(self) -> float:
        assert self._progress is not None
        return self._progress.job.steps / len(self._makers)

    def _begin_job(self) -> None:
        """Have the tasks of the next job done that has any left."""
        while self._jobs and not self._left:
            self._left = set(self._jobs.pop(0))
        for task in sorted(self._left, key=lambda each: each.output):
            self._submit(task)
        if not self._left:
            self._finish("done")

    def _submit(self, task: TileTask) -> None:
        self._workers.submit(task, self._store_url, self._least_s)

    def _hear(self, done: TaskDone) -> None:
        if self._stopped:
            return
        if isinstance(done.error, DamagedTileError):
            self._make_again(done.error.name, done.task)
        elif done.error is not None:
            raise InputError(f"task {done.task.output.key} failed: {done.error}")
        else:
            for waiting in self._waiting.pop(done.task, ()):
                self._submit(waiting)
            self._left.discard(done.task)
            self._count()
            assert self._progress is not None
            self._progress.checkpoints += 1
            # Told so that a machine that waits for its last task is given back.
            self._out.append(Event(Wake.SAVED, self.now_s, job_id=self._progress.job_id))
            if not self._left:
                self._begin_job()

    def _make_again(self, name: TileName, task: TileTask) -> None:
        """Set a damaged tile aside and make it again, before the task that needs it."""
        self._remade[name] += 1
        if self._remade[name] > _MOST_REMADE:
            raise InputError(f"tile {name.key} is damaged whenever it is written")
        self._tiles.discard(name)
        maker = self._makers.get(name)
        if maker is None:
            write_inputs(self._program, self._tiles)
            self._submit(task)
        elif maker in self._waiting:
            self._waiting[maker].append(task)
        else:
            self._waiting[maker] = [task]
            self._submit(maker)

    def _count(self) -> None:
        """Steps by tasks; what is in the store is saved."""
        assert self._progress is not None
        left = len(self._left) + sum(len(tasks) for tasks in self._jobs)
        done = self._progress.job.steps - left * self._steps_of_a_task
        self._progress.steps_run += max(done - self._progress.steps_saved, 0.0)
        self._progress.steps_saved = self._progress.steps_done = done

    def _finish(self, detail: str) -> None:
        assert self._progress is not None
        self._stopped = True
        self._progress.stopped = detail == "stopped"
        self._progress.finished_s = self.now_s
        self._out.append(Event(Wake.FINISHED, self.now_s, job_id=self._progress.job_id, detail=detail))


def _worker_of(lease_id: int) -> str:
    return f"lease-{lease_id}"


def run_program(
    program: TiledProgram,
    policy: Policy,
    scenario: Scenario,
    start_s: float,
    store_url: str,
    *,
    speed: float,
    task_h: float,
) -> Outcome:
    """Run a tiled program once, in real time, on workers that a policy rents.

    Args:
        program: The tiled program to run.
        policy: Decides how many machines to rent.
        scenario: One job (`elastic_job` of the program's workflow), prices, billing, start delay, catalogue.
        start_s: Market time at which it begins, seconds since 1970.
        store_url: Where tiles are, those of an earlier run too: a folder, or s3://bucket/prefix.
        speed: Market seconds in a real second.
        task_h: Market hours that a machine takes for a task, at least.
    """
    replayed = ReplayedMarket(scenario.prices, start_s, scenario.billing, delay=scenario.delay)
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as folder:
        provider = TiledProvider(replayed, program, store_url, Path(folder), speed=speed, task_h=task_h)
        return run_policy(
            policy, scenario.jobs, provider, scenario.billing, catalogue=scenario.catalogue, record=True
        )
