"""Memory of agent and controller while a program prints a great deal: `python -m tests.harness.memory_study`.

A program prints some thousand lines a second on a machine of the local cloud. The resident memory of its agent, and of
the controller, which is this process, is measured every few seconds. Written to reports/memory.json.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import psutil
from tests.harness.spiking_market import SpikingMarket
from tests.harness.study import failed, run_study

from ebbtide.base.files import write_text
from ebbtide.clouds.local.client import LocalCloud
from ebbtide.clouds.settings import NewRun, RunFolder
from ebbtide.errors import CloudError
from ebbtide.jobs.one_training import SingleTraining
from ebbtide.policies.baselines import OnDemand
from ebbtide.runs.start_local import begin_local, cloud_place, end_local, prices_of, run_local

# Each second many lines that are no progress, and one that is.
_PROGRAM = """
import sys, time

seconds, rate = int(sys.argv[1]), int(sys.argv[2])
began_s = time.monotonic()
for second in range(seconds):
    lines = [f"batch {second}.{number}: gradient norm {number / rate:.6f}, all is well" for number in range(rate)]
    print("\\n".join(lines))
    print(f"step {second + 1}/{seconds} loss {1 / (second + 1):.6f}", flush=True)
    time.sleep(max(began_s + second + 1 - time.monotonic(), 0.0))
"""
_EVERY_S = 5.0
# What memory may differ by between the second and the last quarter of the run.
_FLAT_BYTES = 8 << 20


@dataclass(frozen=True)
class MemoryReport:
    """Memory of both processes in the second and in the last quarter of a run.

    Attributes:
        duration_s: Seconds for which the program printed.
        lines_per_s: Lines that it printed each second.
        finished: Whether the run finished.
        samples: Number of measurements.
        agent_bytes: Mean resident memory of the agent in the second and in the last quarter.
        controller_bytes: The same of the controller.
        agent_most_bytes: Most resident memory of the agent.
        controller_most_bytes: The same of the controller.
        run_folder_bytes: Size of the run's folder at the end.
    """

    duration_s: int
    lines_per_s: int
    finished: bool
    samples: int
    agent_bytes: tuple[float, float]
    controller_bytes: tuple[float, float]
    agent_most_bytes: int
    controller_most_bytes: int
    run_folder_bytes: int

    @property
    def problems(self) -> list[str]:
        """Failed checks, in words; empty if all hold."""
        return failed(
            {
                "is not finished": self.finished,
                "the agent grows": self.agent_bytes[1] - self.agent_bytes[0] < _FLAT_BYTES,
                "the controller grows": self.controller_bytes[1] - self.controller_bytes[0] < _FLAT_BYTES,
            }
        )


class Sampler:
    """Measures the memory of a run's agent and of this process until it is ended.

    Args:
        run: The run, whose local cloud tells the agent's process.
    """

    def __init__(self, run: RunFolder) -> None:
        self.agent: list[int] = []
        self.controller: list[int] = []
        self._run = run
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Measure no more."""
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        this, prices = psutil.Process(), prices_of(self._run)
        while not self._ended.wait(_EVERY_S):
            with suppress(CloudError, psutil.NoSuchProcess):
                # Before the controller has begun there is no cloud.
                for pid in LocalCloud(cloud_place(self._run), prices).processes().values():
                    self.agent.append(psutil.Process(pid).memory_info().rss)
                    self.controller.append(this.memory_info().rss)


def studied(place: Path, duration_s: int, lines_per_s: int) -> MemoryReport:
    """Run the program once, undisturbed.

    Args:
        place: Folder for the program and the run.
        duration_s: Seconds for which the program prints.
        lines_per_s: Lines that it prints each second.
    """
    code = place / "code"
    code.mkdir()
    write_text(code / "talks.py", _PROGRAM)
    command = ["python", "talks.py", str(duration_s), str(lines_per_s)]
    job = SingleTraining.parse({"command": command}).work()
    market = SpikingMarket(zones=1, first_s=6.0, between_s=6.0, high_s=3.0).local(())
    run = begin_local(job, code, NewRun(place / "runs"), market, policy="on-demand")
    sampler = Sampler(run)
    try:
        outcome = run_local(run, OnDemand()).outcome
    finally:
        sampler.end()
        end_local(run)
    return MemoryReport(
        duration_s=duration_s,
        lines_per_s=lines_per_s,
        finished=outcome.finished and not outcome.jobs[0].stopped,
        samples=len(sampler.agent),
        agent_bytes=quarters(sampler.agent),
        controller_bytes=quarters(sampler.controller),
        agent_most_bytes=max(sampler.agent, default=0),
        controller_most_bytes=max(sampler.controller, default=0),
        run_folder_bytes=sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file()),
    )


def quarters(values: Sequence[int]) -> tuple[float, float]:
    """The means of the second and of the last quarter: in the first one caches fill."""
    if len(values) < 4:
        raise ValueError("fewer than four measurements: let the program print for longer")
    quarter = len(values) // 4
    return fmean(values[quarter : 2 * quarter]), fmean(values[-quarter:])


if __name__ == "__main__":
    run_study(__doc__, "reports/memory.json", studied, duration_s=3600, lines_per_s=30_000)
