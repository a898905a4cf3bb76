"""The framework provider: a parallel program on processes, which a replayed market starts and revokes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ebbtide.engine.engine import run_policy
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.jobs.progress import JobProgress
from ebbtide.live.frameworks.framework import Framework
from ebbtide.live.real_time import RealTimeProvider
from ebbtide.market.leases import Lease
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.simulation.replayed_market import ReplayedMarket
from ebbtide.simulation.scenario import Scenario

# Real seconds between looks at what runs.
_LOOK_EVERY_S = 0.2


class FrameworkProvider(RealTimeProvider):
    """Runs one job as a framework's program, a machine for each lease.

    Args:
        market: The replayed market to rent from.
        framework: The framework whose program runs.
        speed: Market seconds in a real second.
    """

    def __init__(self, market: ReplayedMarket, framework: Framework, speed: float) -> None:
        super().__init__(market, speed)
        self._framework = framework
        self._joined: set[int] = set()
        self._assigned: list[Lease] = []
        self._progress: JobProgress | None = None
        self._ended = False

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        if len(jobs) != 1:
            raise InputError(f"{len(jobs)} jobs; a framework's program is one")
        self._progress = jobs[0]
        if watch_prices:
            self._market.watch_prices()
        self._framework.start()

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:  # noqa: ARG002
        self._assigned = list(leases)
        self._meet()

    def in_use(self, lease: Lease) -> bool:  # noqa: ARG002
        """A machine may always be released: what it alone has is computed again."""
        return False

    def save(self, job_id: int) -> None:  # noqa: ARG002
        self._framework.checkpoint()

    def stop(self, job_id: int) -> None:  # noqa: ARG002
        assert self._progress is not None
        self._progress.stopped = True
        self._finish("stopped")

    def wake_at_step(self, job_id: int, step: int) -> None:  # noqa: ARG002
        raise InputError("a framework's program tells of no single steps")

    def measured(self, job_id: int) -> tuple[Floats, Floats]:  # noqa: ARG002
        """It has no metric."""
        return np.empty(0), np.empty(0)

    def refresh(self) -> None:
        """Progress is up to date as of the last news."""

    def close(self) -> None:
        self._framework.close()

    def _listen(self, wait_s: float) -> None:
        if self._framework.hear(min(wait_s, _LOOK_EVERY_S)):
            self._note()

    def _rented(self, event: Event, lease: Lease) -> None:
        if event.wake is Wake.NOTICE and lease.lease_id in self._joined:
            self._framework.warn(_machine(lease))
        elif event.wake is Wake.ENDED:
            self._take_away(lease)
        self._meet()

    def _meet(self) -> None:
        """Let machines that have booted join the program, and take those away that the job leaves."""
        wanted = {lease.lease_id for lease in self._assigned}
        for lease_id in sorted(self._joined - wanted):
            self._take_away(self._leases[lease_id])
        for lease in self._assigned:
            if lease.is_booted and lease.lease_id not in self._joined and not self._ended:
                self._joined.add(lease.lease_id)
                assert self._progress is not None
                self._progress.begin_on([lease], self.now_s)
                self._framework.join(_machine(lease))

    def _take_away(self, lease: Lease) -> None:
        self._assigned = [other for other in self._assigned if other is not lease]
        if lease.lease_id in self._joined:
            self._joined.discard(lease.lease_id)
            self._framework.lose(_machine(lease))

    def _note(self) -> None:
        """Steps by parts of the work."""
        assert self._progress is not None
        progress, standing = self._progress, self._framework.standing
        if self._ended:
            return
        steps = progress.job.steps
        progress.steps_saved, progress.steps_done = standing.saved * steps, standing.done * steps
        progress.steps_lost = standing.lost * steps
        progress.steps_run = (standing.done + standing.lost) * steps
        if standing.checkpoints > progress.checkpoints:
            progress.checkpoints = standing.checkpoints
            self._out.append(Event(Wake.SAVED, self.now_s, job_id=progress.job_id))
        if standing.result is not None:
            self._finish("done")

    def _finish(self, detail: str) -> None:
        assert self._progress is not None
        if not self._ended:
            self._ended = True
            self._progress.finished_s = self.now_s
            self._out.append(Event(Wake.FINISHED, self.now_s, job_id=self._progress.job_id, detail=detail))


def run_framework(
    framework: Callable[[Path], Framework],
    policy: Policy,
    scenario: Scenario,
    start_s: float,
    *,
    speed: float,
    folder: Path | None = None,
) -> tuple[Outcome, float | None]:
    """Run a framework's program once, in real time, on a replayed market.

    Args:
        framework: Makes the framework, given a folder of its own.
        policy: Decides what to rent.
        scenario: One job (the program's steps and rates, for the policy), prices, billing, start delay, catalogue.
        start_s: Market time at which it begins, seconds since 1970.
        speed: Market seconds in a real second.
        folder: Folder for checkpoints and logs; by default a temporary one.

    Returns:
        What came of it, and the program's result; None: the prices ended before the program.

    Raises:
        InputError: The program failed.
    """
    with tempfile.TemporaryDirectory(prefix="ebbtide-") as temporary:
        program = framework(folder or Path(temporary))
        market = ReplayedMarket(scenario.prices, start_s, scenario.billing, delay=scenario.delay)
        provider = FrameworkProvider(market, program, speed)
        outcome = run_policy(
            policy, scenario.jobs, provider, scenario.billing, catalogue=scenario.catalogue, record=True
        )
        return outcome, program.standing.result


def _machine(lease: Lease) -> str:
    return f"lease-{lease.lease_id}"
