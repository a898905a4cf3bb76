"""Runs a tiled program on a Dask cluster: `python -m ebbtide.agent.tiled.driver JSON`, on the machine of the head.

Every tile that a task has made is in storage, so a program that is restarted makes only the missing ones. A tile
whose bytes are damaged is made again before the task that needs it.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.agent.tiled.tasks import assembled, run_timed, write_inputs
from ebbtide.agent.tiled.tiles import DamagedTileError, TileStore
from ebbtide.base.files import write_text
from ebbtide.errors import EbbtideError, InputError, MissingObjectError
from ebbtide.jobs.tiled.named import program_of
from ebbtide.jobs.tiled.program import TiledProgram, TileName, TileTask
from ebbtide.storage.objects import object_store
from ebbtide.trial import CHECKPOINT_DIR, STORE, TRIAL_ID

# Retries of a task that fails by its own fault; the loss of its machine does not count.
_RETRIES = 2
# Most times that one tile is made again because its bytes are damaged.
_MOST_REMADE = 3
_LOOK_S = 0.2
# Longest wait for the duration of a task, which is then left out: its machine may be gone.
_TOLD_WITHIN_S = 1.0
_KEPT_EVERY_S = 2.0
_KEPT = "done.json"
# A larger result is left as tiles.
_MOST_RESULT_BYTES = 1 << 30


class DriverProgress:
    """Progress of a program: steps done, and durations of its tasks.

    Attributes:
        step: Number of steps done.

    Args:
        steps: Number of steps of a task, by name of its job.
        times: Number of tasks measured in earlier runs and their total seconds, by name of their job.
    """

    def __init__(self, steps: Mapping[str, int], times: Mapping[str, tuple[int, float]] | None = None) -> None:
        self._steps = steps
        self._done: set[TileName] = set()
        self.step = 0
        self.times: dict[str, tuple[int, float]] = dict(times or {})

    def done(self, job: str, output: TileName, duration_s: float | None) -> None:
        """Note that a task of a job is done; its duration is known if this run did it. Repeats do not count."""
        if output in self._done:
            return
        self._done.add(output)
        self.step += self._steps[job]
        if duration_s is not None:
            count, total_s = self.times.get(job, (0, 0.0))
            self.times[job] = (count + 1, total_s + duration_s)

    @property
    def mean_s(self) -> dict[str, float]:
        """Mean seconds of a task by name of its job, as measured."""
        return {job: total_s / count for job, (count, total_s) in self.times.items()}


class Driver:
    """Runs the tasks of a program, job by job, on whichever workers there are.

    Args:
        client: A client of the cluster.
        program: The program.
        store: Where its tiles are: a folder, or s3://bucket/prefix.
        progress: What is done.
        report: Called whenever a task is done.
    """

    def __init__(
        self, client: Any, program: TiledProgram, store: str, progress: DriverProgress, report: Callable[[], None]
    ) -> None:
        self._client, self._store, self._progress, self._report = client, store, progress, report
        self._tiles = TileStore(object_store(store))
        self._jobs = list(program.jobs)
        self._makers = {task.output: task for job in self._jobs for task in job.tasks}
        self._job_of = {task: job.name for job in self._jobs for task in job.tasks}
        self._program = program
        self._ended: queue.Queue[tuple[TileTask, Any]] = queue.Queue()
        self._flying: dict[TileTask, Any] = {}
        self._waiting: dict[TileTask, list[TileTask]] = {}
        self._remade: Counter[TileName] = Counter()
        self._number = 0

    def run(self) -> None:
        """Do what is left.

        Raises:
            InputError: A task fails on every try, or a tile is damaged whenever it is written.
        """
        write_inputs(self._program, self._tiles)
        written = self._tiles.written()
        for job in self._jobs:
            left = deque(task for task in job.tasks if task.output.key not in written)
            for task in job.tasks:
                if task.output.key in written:
                    self._progress.done(job.name, task.output, None)
            self._report()
            self._do(left)
        # Tiles that no task has read were not checked yet.
        for job in self._jobs:
            for task in job.tasks:
                while task.output.matrix in self._program.results and not self._is_whole(task.output):
                    left = deque[TileTask]()
                    self._make_again(task.output, None, left)
                    self._do(left)

    def _do(self, left: deque[TileTask]) -> None:
        while left or self._flying:
            # A task that waited at a busy worker would not move to a worker that joins later.
            for _ in range(min(self._free(), len(left))):
                self._submit(left.popleft())
            try:
                task, future = self._ended.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if self._flying.pop(task, None) is future:
                self._hear(task, future, left)

    def _free(self) -> int:
        """Number of tasks that the present workers can begin now."""
        return int(self._client.run_on_scheduler(_slots)) - len(self._flying)

    def _submit(self, task: TileTask) -> None:
        self._number += 1
        key = f"{task.output.key}#{self._number}"
        future = self._client.submit(run_timed, task, self._store, key=key, retries=_RETRIES, pure=False)
        self._flying[task] = future
        future.add_done_callback(lambda done, task=task: self._ended.put((task, done)))

    def _hear(self, task: TileTask, future: Any, left: deque[TileTask]) -> None:
        error = future.exception() if future.status == "error" else None
        is_known = error is None and future.status == "finished"
        # A duration lost with its machine is not asked for: the tile is there, unless the task was given up.
        duration_s = _result_of(future) if is_known else None
        future.release()
        if error is None and not is_known and not self._tiles.has(task.output):
            left.appendleft(task)
            return
        if isinstance(error, DamagedTileError):
            self._make_again(error.name, task, left)
        elif error is not None:
            raise InputError(f"task {task.output.key} failed: {error}")
        else:
            left.extend(self._waiting.pop(task, ()))
            self._progress.done(self._job_of[task], task.output, duration_s)
            self._report()

    def _make_again(self, name: TileName, task: TileTask | None, left: deque[TileTask]) -> None:
        """Set a damaged tile aside and make it again, before the task that needs it, if one does."""
        needing = [] if task is None else [task]
        maker = self._makers.get(name)
        if maker is not None and maker in self._waiting:
            self._waiting[maker].extend(needing)
            return
        if self._is_whole(name):
            left.extendleft(needing)  # it was made again meanwhile
            return
        self._remade[name] += 1
        if self._remade[name] > _MOST_REMADE:
            raise InputError(f"tile {name.key} is damaged whenever it is written")
        self._tiles.discard(name)
        if maker is not None:
            left.appendleft(maker)
            self._waiting[maker] = needing
            return
        write_inputs(self._program, self._tiles)
        if not self._tiles.has(name):
            raise InputError(f"task {needing[0].output.key} needs tile {name.key}, which nothing makes")
        left.extend(needing)

    def _is_whole(self, name: TileName) -> bool:
        try:
            self._tiles.read(name)
        except (DamagedTileError, MissingObjectError):
            return False
        return True


def _slots(dask_scheduler: Any) -> int:
    """On the scheduler: number of tasks that all workers do at a time, without workers that are leaving."""
    return sum(worker.nthreads for worker in dask_scheduler.running)


def _result_of(future: Any) -> float | None:
    try:
        found = future.result(timeout=_TOLD_WITHIN_S)
        return None if found is None else float(found)
    except Exception:
        return None


def write_results(program: TiledProgram, tiles: TileStore) -> None:
    """Write each result as one array, `MATRIX.npy` in the working directory, unless it is too large for that."""
    outputs = [task.output for job in program.jobs for task in job.tasks]
    for matrix in program.results:
        places = [place for place in outputs if place.matrix == matrix]
        rows, columns = (1 + max(getattr(place, side) for place in places) for side in ("row", "column"))
        first = tiles.read(places[0])
        if rows * columns * first.nbytes <= _MOST_RESULT_BYTES:
            np.save(f"{matrix}.npy", assembled(tiles, matrix, rows, columns), allow_pickle=False)


class Reports:
    """Tells the agent of each step, and now and then writes a checkpoint and the measured times of tasks.

    All tiles that are done are in storage, where a restarted program counts them; of the checkpoint it reads only
    the measured times.

    Args:
        progress: What is done.
    """

    def __init__(self, progress: DriverProgress) -> None:
        self._progress, self._kept_s = progress, -math.inf
        self._folder = Path(os.environ[CHECKPOINT_DIR])

    def __call__(self, *, is_last: bool = False) -> None:
        print(json.dumps({"step": self._progress.step}), flush=True)
        if is_last or time.monotonic() - self._kept_s >= _KEPT_EVERY_S:
            self._kept_s = time.monotonic()
            kept = {"step": self._progress.step, "times": self._progress.times}
            write_text(self._folder / _KEPT, json.dumps(kept) + "\n")
            write_text(Path("task-times.json"), json.dumps(self._progress.mean_s, indent=2) + "\n")


def earlier_times(kept: Path) -> dict[str, tuple[int, float]]:
    """The times that an earlier run left in a checkpoint; none, if there is none."""
    if not kept.is_file():
        return {}
    times = json.loads(kept.read_text(encoding="utf-8")).get("times", {})
    return {str(job): (int(count), float(total_s)) for job, (count, total_s) in times.items()}


def main(words: Sequence[str]) -> int:
    """Run the program that the only word describes as JSON, within an assignment of an agent.

    Returns:
        The exit code.
    """
    from distributed import Client

    told = json.loads(words[0])
    trial_id = os.environ[TRIAL_ID]
    store = f"{os.environ[STORE].rstrip('/')}/tiles/{trial_id}"
    try:
        program = program_of(told["program"], told["parameters"])
        progress = DriverProgress(told["steps"], earlier_times(Path(os.environ[CHECKPOINT_DIR]) / _KEPT))
        reports = Reports(progress)
        with Client() as client:
            Driver(client, program, store, progress, reports).run()
        reports(is_last=True)
        write_results(program, TileStore(object_store(store)))
    except EbbtideError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
