"""The local provider: real training processes on this machine, taken away by a replayed market.

Market time runs faster than real time by a factor, so that hours of market pass in seconds. Machines come and go
by the market's clock; training really runs, saves on SIGTERM, and is killed when its machine is taken. What is
real keeps its own pace: notice is never shorter than `MIN_NOTICE_S` of real time.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.real_time import RealTimeProvider
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake
from ebbtide.simulation.replayed_market import ReplayedMarket

# Real seconds: the least notice, and how much of it is kept for saving.
MIN_NOTICE_S = 0.5
SAVE_RESERVE_S = 0.3

# A process that does not end in this time after SIGTERM is killed.
_GRACE_S = 5.0


@dataclass(eq=False)
class _Trial:
    """One job's training here: at most one process, on one lease."""

    progress: JobProgress
    checkpoint: Path
    assigned: list[Lease] = field(default_factory=list)
    lease: Lease | None = None
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None
    asked_to_stop: bool = False
    stopping: bool = False
    ended: bool = False
    reported: float = 0.0
    milestones: list[int] = field(default_factory=list)


class LocalProvider(RealTimeProvider):
    """Runs jobs as processes of `ebbtide.jobs.reference_training`.

    Args:
        market: What to rent from; its billing's notice should be at least `MIN_NOTICE_S * speed`.
        folder: Where checkpoints go.
        speed: Market seconds in a real second.
        catalogue: For rates by core.
    """

    def __init__(
        self, market: ReplayedMarket, folder: Path, speed: float, *, catalogue: Catalogue | None = None
    ) -> None:
        super().__init__(market, speed)
        self._folder = folder
        self._catalogue = catalogue or default_catalogue()
        self._trials: list[_Trial] = []
        self._leave_at_s: dict[int, float] = {}
        self._messages: queue.Queue[tuple[_Trial, subprocess.Popen[str], str | None]] = queue.Queue()

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        for progress in jobs:
            job = progress.job
            if job.machines > 1 or job.coupling is not Coupling.GANG:
                raise InputError(f"job {job.name} wants several machines; the local provider gives each job one")
            # The job's number, not its name: a name from a file is no path.
            self._trials.append(_Trial(progress, self._folder / f"job-{progress.job_id}.json"))
        if watch_prices:
            self._market.watch_prices()

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        self._trials[job_id].assigned = list(leases)
        self._converge(self._trials[job_id])

    def in_use(self, lease: Lease) -> bool:
        return any(trial.lease is lease for trial in self._trials)

    def save(self, job_id: int) -> None:
        # The program saves when it is told to stop; it is then started again on the same machine.
        self._ask_to_stop(self._trials[job_id])

    def stop(self, job_id: int) -> None:
        trial = self._trials[job_id]
        trial.stopping = True
        trial.progress.stopped = True
        if trial.process is None:
            self._finish(trial)
        else:
            self._ask_to_stop(trial)

    def wake_at_step(self, job_id: int, step: int) -> None:
        self._trials[job_id].milestones.append(step)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:  # noqa: ARG002
        """The reference training tells no metric on its way."""
        return np.empty(0), np.empty(0)

    def refresh(self) -> None:
        """Progress is up to date as of the last message."""

    def close(self) -> None:
        """End every process, and wait until it has."""
        for trial in self._trials:
            if trial.process is not None:
                self._kill(trial)
            if trial.reader is not None:
                trial.reader.join(timeout=_GRACE_S)

    # The market.

    def _own_time_s(self) -> float:
        """When a machine's notice has run out but for the time to save."""
        return min(self._leave_at_s.values(), default=math.inf)

    def _act(self, now_s: float) -> None:
        for lease_id in [lease_id for lease_id, at_s in self._leave_at_s.items() if at_s <= now_s]:
            del self._leave_at_s[lease_id]
            self._save_on(self._leases[lease_id])

    def _rented(self, event: Event, lease: Lease) -> None:
        if event.wake is Wake.NOTICE:
            self._leave_at_s[lease.lease_id] = max(
                lease.revoke_at_s - SAVE_RESERVE_S * self._speed, self._market.now_s
            )
        elif event.wake is Wake.ENDED:
            self._take_away(lease)
        for trial in self._trials:
            if lease in trial.assigned:
                self._converge(trial)

    def _take_away(self, lease: Lease) -> None:
        """The machine is gone, and what runs on it with it."""
        self._leave_at_s.pop(lease.lease_id, None)
        for trial in self._trials:
            trial.assigned = [other for other in trial.assigned if other is not lease]
            if trial.lease is lease and trial.process is not None:
                self._kill(trial)

    # The processes.

    def _target(self, trial: _Trial) -> Lease | None:
        """The machine to be on: one without notice; else stay while there is time."""
        booted = [lease for lease in trial.assigned if lease.is_booted]
        steady = [lease for lease in booted if lease.state is LeaseState.RUNNING]
        if steady:
            return trial.lease if trial.lease in steady else steady[0]
        return trial.lease if trial.lease in booted and trial.lease.lease_id in self._leave_at_s else None

    def _converge(self, trial: _Trial) -> None:
        """Have the process on the machine where it should be."""
        target = self._target(trial)
        if trial.ended or trial.stopping or target is trial.lease:
            return
        if trial.process is not None:
            self._ask_to_stop(trial)
        elif target is not None:
            self._begin(trial, target)

    def _begin(self, trial: _Trial, lease: Lease) -> None:
        job, market = trial.progress.job, lease.market
        rate = job.steps_per_s(market.cloud, market.instance_type, self._catalogue) * self._speed
        if not rate > 0:
            raise InputError(f"job {job.name} has no rate for {market.instance_type}")
        command = [
            sys.executable,
            "-m",
            "ebbtide.jobs.reference_training",
            "--steps",
            str(job.steps),
            "--checkpoint",
            str(trial.checkpoint),
            "--steps-per-s",
            repr(rate),
        ]
        if job.checkpoint and job.checkpoint.interval_s:
            command += ["--save-every-s", repr(job.checkpoint.interval_s / self._speed)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        trial.process, trial.lease, trial.asked_to_stop = process, lease, False
        trial.progress.begin_on([lease], self.now_s)
        trial.reader = threading.Thread(target=self._read, args=(trial, process), daemon=True)
        trial.reader.start()

    def _read(self, trial: _Trial, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._messages.put((trial, process, line))
        process.wait()
        self._messages.put((trial, process, None))

    def _listen(self, wait_s: float) -> None:
        """Take in one message, if one comes in time."""
        try:
            trial, process, line = self._messages.get(block=wait_s > 0, timeout=min(wait_s, 3600.0))
        except queue.Empty:
            return
        if trial.process is not process:
            return  # its machine was taken; what it still said counts for nothing
        if line is None:
            self._exited(trial)
        else:
            with contextlib.suppress(ValueError):
                self._hear(trial, json.loads(line))

    def _hear(self, trial: _Trial, message: dict[str, float]) -> None:
        progress, now_s = trial.progress, self.now_s
        trial.reported = max(trial.reported, message.get("step", 0.0), message.get("saved", 0.0))
        if "saved" in message:
            progress.steps_saved = message["saved"]
            progress.checkpoints += 1
            if trial.lease is not None:
                progress.saved_at = trial.lease.market.place
            self._out.append(Event(Wake.SAVED, now_s, job_id=progress.job_id))
        progress.steps_done = max(progress.steps_saved, message.get("step", progress.steps_done))
        if "finished" in message:
            self._finish(trial)
        for step in [step for step in trial.milestones if progress.steps_done >= step]:
            trial.milestones.remove(step)
            self._out.append(Event(Wake.MILESTONE, now_s, job_id=progress.job_id, detail=f"step {step}"))

    def _exited(self, trial: _Trial) -> None:
        """The process ended of itself: done, or saved as it was told."""
        assert trial.process is not None
        code = trial.process.returncode
        trial.process, trial.lease = None, None
        if trial.ended:
            return
        # Asked to stop before it could listen, it has trained nothing yet.
        if code not in (0, -signal.SIGTERM if trial.asked_to_stop else 0):
            raise InputError(f"training of job {trial.progress.job.name} failed with exit code {code}")
        if trial.stopping:
            self._finish(trial)
        else:
            self._converge(trial)

    def _finish(self, trial: _Trial) -> None:
        trial.ended = True
        trial.lease = None
        trial.progress.finished_s = self.now_s
        detail = "stopped" if trial.progress.stopped else "done"
        self._out.append(Event(Wake.FINISHED, self.now_s, job_id=trial.progress.job_id, detail=detail))

    def _save_on(self, lease: Lease) -> None:
        """Notice runs out: let what is on the machine save."""
        for trial in self._trials:
            if trial.lease is lease:
                self._ask_to_stop(trial)

    def _ask_to_stop(self, trial: _Trial) -> None:
        if trial.process is not None:
            trial.asked_to_stop = True
            trial.process.terminate()

    def _kill(self, trial: _Trial) -> None:
        """Kill the process with its machine; steps it had not saved are lost."""
        assert trial.process is not None
        trial.process.kill()
        trial.process.wait(timeout=_GRACE_S)
        self._drain(trial)
        progress = trial.progress
        progress.steps_lost += max(trial.reported - progress.steps_saved, 0.0)
        progress.steps_done = trial.reported = progress.steps_saved
        trial.process, trial.lease = None, None

    def _drain(self, trial: _Trial) -> None:
        """Hear what the process said before it was killed: a save may have been complete."""
        if trial.reader is not None:
            trial.reader.join(timeout=_GRACE_S)
        later = []
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._messages.get_nowait()
                if item[0] is trial and item[1] is trial.process:
                    if item[2] is not None:
                        with contextlib.suppress(ValueError):
                            self._hear(trial, json.loads(item[2]))
                else:
                    later.append(item)
        for item in later:
            self._messages.put(item)
