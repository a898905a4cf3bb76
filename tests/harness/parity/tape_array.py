"""Arrays on a tape: each machine's work on the tasks that its controller hands out."""

from __future__ import annotations

import math
import os
from pathlib import Path

from tests.harness.parity.tape_agents import TapeSeat, TapeWork

from ebbtide.agent.protocol import Ending, Hand, Keep, SaveOrder, TaskDone
from ebbtide.agent.results import TaskResult, TaskResults
from ebbtide.errors import InputError
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.catalogue import Catalogue
from ebbtide.replay.replay import SAVE_MARGIN_S
from ebbtide.replay.simulated_tasks import TaskMachine, task_machine
from ebbtide.storage.objects import ObjectStore


class TapeArray(TapeWork):
    """An array: each machine comes and goes independently, and does its tasks as a `TaskMachine`.

    Args:
        progress: The job; its controller tracks the progress.
        catalogue: Instance types, for its speed.
        store: Storage for results that agents and controller share.
    """

    def __init__(self, progress: JobProgress, catalogue: Catalogue, store: ObjectStore) -> None:
        self._progress, self._catalogue, self._store = progress, catalogue, store
        self._machines: dict[TapeSeat, TaskMachine] = {}

    @property
    def next_time_s(self) -> float:
        return min((machine.next_time_s() for machine in self._machines.values()), default=math.inf)

    def begin(self, agent: TapeSeat, now_s: float) -> None:
        lease, job = agent.lease, self._progress.job
        market = lease.market
        rate = job.steps_per_s(market, self._catalogue)
        vcpus = self._catalogue.instance_type(market.cloud, market.instance_type).vcpus
        machine = task_machine(lease, self._progress, rate, vcpus, now_s)
        assert machine.side_by_side == agent.assignment.side_by_side
        self._machines[agent] = machine

    def obey(self, agent: TapeSeat, order: SaveOrder | Keep | Hand, now_s: float) -> None:
        if not isinstance(order, Hand):
            raise InputError(f"{agent.about[0]} was ordered {order}, and an array has no checkpoints")
        self._machines[agent].hand(order.tasks, now_s)

    def leave(self, agent: TapeSeat, now_s: float) -> None:
        self._machines[agent].leave(now_s)
        self.advance(now_s)

    def noticed(self, agent: TapeSeat, now_s: float) -> None:
        self._machines[agent].notice(SAVE_MARGIN_S, now_s)
        self.advance(now_s)

    def gone(self, agent: TapeSeat, now_s: float) -> None:  # noqa: ARG002
        del self._machines[agent]

    def advance(self, now_s: float) -> None:
        for agent, machine in list(self._machines.items()):
            done = machine.advance(now_s)
            for number in done:
                self._store_result(agent, number, machine.task_s)
                agent.report(TaskDone(*agent.about, number, now_s, machine.task_s))
            if machine.has_left(now_s):
                del self._machines[agent]
                agent.end(Ending.LEFT, len(done), now_s)

    def tell_progress(self, now_s: float) -> None:
        self.advance(now_s)

    def _store_result(self, agent: TapeSeat, number: int, duration_s: float) -> None:
        trial_id, attempt = agent.about
        result = TaskResult(number, str(number), str(agent.lease.lease_id), attempt, duration_s, "")
        # A path that is no folder, so that the result has no files.
        TaskResults(self._store, trial_id).keep(result, Path(os.devnull))
