"""The provider of real machines: a cloud rents them out, their agents train on them.

It compares what should be with what is, and gives orders until both are the same. All that it asks for may be
asked for again, so a controller may be killed at any instant and another go on.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.mailbox import Letter, Letters, SignsOfLife
from ebbtide.errors import InputError
from ebbtide.execution.agent_state import PLAIN_FIELDS, Post, Trial
from ebbtide.execution.cloud import Cloud, CloudError, Instance, Wanted
from ebbtide.execution.engine_snapshot import event_of, event_values
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import Floats, PriceSeries
from ebbtide.object_storage import ObjectStore
from ebbtide.policies.events import Event, Wake
from ebbtide.workloads.job import Coupling
from ebbtide.workloads.progress import JobProgress

_LOGGER = logging.getLogger(__name__)

# Training that fails so often without having come any further fails of itself.
MOST_FAILURES = 5
# From one checkpoint so often, and the one before it is taken.
_FAILURES_FROM_ONE = 2

# So many machines that end before their agent began, and the set-up is at fault.
_MOST_STILLBORN = 3

_OVER = frozenset({LeaseState.RELEASED, LeaseState.REVOKED, LeaseState.FAILED})


class AgentProvider:
    """Runs jobs, one machine each, by agents.

    Args:
        cloud: Who rents machines out.
        objects: Storage for checkpoints, orders and reports.
        run: The run's id: machines and trials are named by it.
        assignment: What a job's agent is to do, but for the attempt.
        agent: What all agents are told; run and machine are filled in.
        poll_s: Real seconds between looks.
        log: Called with a trial's id and a line that its program printed.
    """

    def __init__(
        self,
        cloud: Cloud,
        objects: ObjectStore,
        run: str,
        assignment: Callable[[JobProgress], Assignment],
        agent: AgentConfig,
        *,
        poll_s: float = 0.1,
        log: Callable[[str, str], None] = lambda _trial, _line: None,
    ) -> None:
        self._cloud, self._objects, self._run = cloud, objects, run
        self._assignment, self._agent, self._poll_s, self._log = assignment, agent, poll_s, log
        self._trials: list[Trial] = []
        self._leases: dict[int, Lease] = {}
        self._posts: dict[int, Post] = {}
        self._launching: deque[int] = deque()
        self._out: deque[Event] = deque()
        self._kept: dict[str, Any] | None = None
        self._signs = SignsOfLife(objects, run, agent.controller_limit_s)
        self._sign_s = -math.inf
        self._stillborn = 0

    # What the engine asks.

    @property
    def now_s(self) -> float:
        return self._cloud.now_s

    @property
    def is_over(self) -> bool:
        return self._cloud.is_over

    @property
    def markets(self) -> Sequence[Market]:
        return self._cloud.markets

    def prices(self, market: Market) -> PriceSeries:
        return self._cloud.prices(market)

    @property
    def trials(self) -> Sequence[Trial]:
        """One for each job."""
        return self._trials

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:  # noqa: ARG002
        for progress in jobs:
            if progress.job.machines > 1 or progress.job.coupling is not Coupling.GANG:
                raise InputError(f"job {progress.job.name} wants several machines; agents train on one each")
            self._trials.append(Trial(progress, f"{self._run}-{progress.job_id:03d}"))
        if self._kept is not None:
            self._take_on(self._kept)

    def launch(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        self._launching.append(lease.lease_id)

    def terminate(self, lease: Lease) -> None:
        """Now: what it costs is known only then. If the cloud does not answer, it is asked until it does."""
        while True:
            try:
                ended_s = self._cloud.terminate(self._token(lease.lease_id))
                instance = self._instance(lease.lease_id)
                break
            except CloudError as error:
                _LOGGER.warning("%s; asked again", error)
                self._sign()
                time.sleep(self._poll_s)
        if instance is not None:
            self._times(lease, instance)
        lease.state = LeaseState.RELEASED if lease.is_charged else LeaseState.FAILED
        if instance is not None and instance.state is LeaseState.REVOKED:
            # Taken before it could be given back, which may cost another sum.
            lease.state = LeaseState.REVOKED
        lease.ended_s = ended_s if ended_s is not None else self.now_s
        self._gone(lease)

    def assign(self, job_id: int, leases: Sequence[Lease]) -> None:
        self._trials[job_id].assigned = list(leases)
        self._converge(self._trials[job_id])

    def in_use(self, lease: Lease) -> bool:
        return any(trial.on == lease.lease_id for trial in self._trials)

    def save(self, job_id: int) -> None:
        trial = self._trials[job_id]
        if trial.on is not None:
            self._order(trial.on, {"type": "save"})

    def stop(self, job_id: int) -> None:
        trial = self._trials[job_id]
        trial.stopping = trial.progress.stopped = True
        if trial.on is None:
            self._finish(trial, "stopped")
        else:
            self._let_go(trial)

    def wake_at_step(self, job_id: int, step: int) -> None:
        self._trials[job_id].milestones.append(step)

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        found = sorted(self._trials[job_id].metrics.items())
        return np.array([float(step) for step, _ in found]), np.array([metric for _, metric in found])

    def refresh(self) -> None:
        """Progress is up to date as of the last reports."""

    def next_event(self, until_s: float) -> Event | None:
        while True:
            self._sign()
            try:
                self._look()
            except (CloudError, OSError) as error:
                _LOGGER.warning("%s; asked again", error)
            if self._out:
                return self._out.popleft()
            if self.is_over or self.now_s >= until_s:
                return None
            time.sleep(self._poll_s)

    def close(self) -> None:
        """What ran is ended with its machine."""

    # What is kept of it.

    def snapshot(self) -> dict[str, Any]:
        """As plain values, beside the engine's."""
        return {
            "trials": [
                {name: getattr(trial, name) for name in PLAIN_FIELDS}
                | {"assigned": [lease.lease_id for lease in trial.assigned]}
                | {"metrics": list(trial.metrics.items())}
                for trial in self._trials
            ],
            "leases": sorted(self._leases),
            "posts": [
                [lease_id, post.reports.read, post.heard, list(post.pending)]
                for lease_id, post in self._posts.items()
            ],
            "launching": list(self._launching),
            "out": [event_values(event) for event in self._out],
        }

    def go_on_from(self, kept: dict[str, Any], leases: Sequence[Lease]) -> None:
        """Take a snapshot on, with the engine's leases, when the run starts."""
        self._kept = kept
        self._leases = {lease_id: leases[lease_id] for lease_id in kept["leases"]}

    def _take_on(self, kept: dict[str, Any]) -> None:
        for trial, values in zip(self._trials, kept["trials"], strict=True):
            for name in PLAIN_FIELDS:
                setattr(trial, name, values[name])
            trial.assigned = [self._leases[lease_id] for lease_id in values["assigned"]]
            trial.metrics = dict(values["metrics"])
        for lease_id, read, heard, pending in kept["posts"]:
            post = self._post(lease_id)
            post.reports.read, post.heard = read, heard
            post.pending.extend(pending)
        self._launching.extend(kept["launching"])
        # What was asked for, and perhaps not heard any more, is asked for again.
        asked = set(self._launching)
        self._launching.extend(
            lease_id
            for lease_id, lease in self._leases.items()
            if lease.state is LeaseState.REQUESTED and lease_id not in asked
        )
        self._out.extend(event_of(values) for values in kept["out"])

    # Machines.

    def _look(self) -> None:
        for _ in range(len(self._launching)):
            lease_id = self._launching.popleft()
            try:
                self._launch(self._leases[lease_id])
            except CloudError as error:
                _LOGGER.warning("%s; asked again", error)
                self._launching.append(lease_id)
        instances = {instance.token: instance for instance in self._cloud.instances()}
        known = {self._token(lease_id) for lease_id in self._leases}
        for token, stray in instances.items():
            if token not in known and stray.state not in _OVER:
                _LOGGER.warning("machine %s of this run is not known any more; it is ended", token)
                self._cloud.terminate(token)
        for lease_id, lease in list(self._leases.items()):
            instance = instances.get(self._token(lease_id))
            if lease.is_open:
                self._read(lease)
            if instance is not None:
                self._compare(lease, instance)
        for trial in self._trials:
            self._converge(trial)
        for lease_id, post in self._posts.items():
            if self._leases[lease_id].is_open:
                self._write(post)

    def _launch(self, lease: Lease) -> None:
        if not lease.is_open:
            return
        token = self._token(lease.lease_id)
        agent = {**vars(self._agent), "run": self._run, "machine": token}
        self._cloud.launch(
            Wanted(token, lease.market, lease.max_price_usd_per_hour, lease.on_demand, agent)
        )

    def _compare(self, lease: Lease, instance: Instance) -> None:
        """What the cloud has of a lease, against what we have."""
        if not lease.is_open:
            if instance.state not in _OVER:
                # It was given back, and the cloud has not heard.
                self._cloud.terminate(instance.token)
            return
        self._times(lease, instance)
        if instance.state is LeaseState.FAILED:
            lease.state, lease.ended_s = LeaseState.FAILED, instance.ended_s
            self._tell(Wake.LAUNCH_FAILED, lease, instance.why)
            self._gone(lease)
        elif instance.state in _OVER:
            # What its agent told at last is still heard.
            self._read(lease)
            lease.state, lease.ended_s = instance.state, instance.ended_s
            self._check_begins(lease)
            self._tell(Wake.ENDED, lease, instance.why or str(instance.state))
            self._gone(lease)
        elif instance.state is LeaseState.STARTING and lease.state is LeaseState.REQUESTED:
            lease.state = LeaseState.STARTING
        elif instance.state is LeaseState.RUNNING and lease.state in (LeaseState.REQUESTED, LeaseState.STARTING):
            lease.state = LeaseState.RUNNING
            self._post(lease.lease_id)
            self._tell(Wake.RUNNING, lease)

    def _check_begins(self, lease: Lease) -> None:
        """Machines that end of themselves before their agent was up would be rented again and again.

        Raises:
            InputError: So many have.
        """
        post = self._posts.get(lease.lease_id)
        if lease.state is not LeaseState.RELEASED or (post is not None and post.heard):
            return
        self._stillborn += 1
        if self._stillborn >= _MOST_STILLBORN:
            raise InputError(
                f"{self._stillborn} machines ended before their agent began, last {self._token(lease.lease_id)}; "
                "see what their set-up said (on EC2 `aws ec2 get-console-output`)"
            )

    def _times(self, lease: Lease, instance: Instance) -> None:
        if not math.isnan(instance.started_s):
            lease.started_s = instance.started_s
        if not math.isnan(instance.running_s):
            lease.running_s = instance.running_s

    def _gone(self, lease: Lease) -> None:
        """Nobody trains there any more; what was not saved is lost."""
        for trial in self._trials:
            trial.assigned = [other for other in trial.assigned if other is not lease]
            if trial.on == lease.lease_id:
                self._lost(trial)
                self._released(trial)

    def _instance(self, lease_id: int) -> Instance | None:
        token = self._token(lease_id)
        return next((instance for instance in self._cloud.instances() if instance.token == token), None)

    def _token(self, lease_id: int) -> str:
        return f"{self._run}-m{lease_id:04d}"

    # Training.

    def _target(self, trial: Trial) -> Lease | None:
        """The machine to be on: one without notice; else where it is, while there is time."""
        booted = [lease for lease in trial.assigned if lease.is_booted]
        steady = [lease for lease in booted if lease.state is LeaseState.RUNNING]
        if steady:
            return next((lease for lease in steady if lease.lease_id == trial.on), steady[0])
        return next((lease for lease in booted if lease.lease_id == trial.on), None)

    def _converge(self, trial: Trial) -> None:
        if trial.ended or trial.stopping:
            return
        target = self._target(trial)
        if trial.on is None:
            if target is not None:
                self._train(trial, target)
        elif target is None or target.lease_id != trial.on:
            self._let_go(trial)

    def _train(self, trial: Trial, lease: Lease) -> None:
        trial.on, trial.leaving = lease.lease_id, False
        trial.attempt += 1
        assignment = self._assignment(trial.progress).encode()
        assignment |= {"trial_id": trial.trial_id, "attempt": trial.attempt, "aside": trial.aside}
        self._order(lease.lease_id, {"type": "train", "assignment": assignment})
        trial.progress.begin_on([lease], self.now_s)

    def _let_go(self, trial: Trial) -> None:
        if trial.on is not None and not trial.leaving:
            trial.leaving = True
            self._order(trial.on, {"type": "leave", "attempt": trial.attempt})

    def _released(self, trial: Trial) -> None:
        """Its agent has let go of it, or is no more."""
        trial.on, trial.leaving = None, False
        if trial.stopping:
            self._finish(trial, trial.problem or "stopped")
        else:
            # Who waits for a machine to be free is told.
            self._out.append(Event(Wake.SAVED, self.now_s, job_id=trial.progress.job_id))

    def _finish(self, trial: Trial, detail: str) -> None:
        if not trial.ended:
            trial.ended = True
            trial.progress.finished_s = self.now_s
            self._out.append(Event(Wake.FINISHED, self.now_s, job_id=trial.progress.job_id, detail=detail))

    def _lost(self, trial: Trial) -> None:
        progress = trial.progress
        progress.steps_lost += max(progress.steps_done - progress.steps_saved, 0.0)
        progress.steps_done = progress.steps_saved

    # Letters.

    def _post(self, lease_id: int) -> Post:
        if lease_id not in self._posts:
            machine = self._token(lease_id)
            orders, reports = (Letters(self._objects, machine, kind) for kind in ("orders", "reports"))
            self._posts[lease_id] = Post(orders, reports)
        return self._posts[lease_id]

    def _order(self, lease_id: int, order: Letter) -> None:
        self._post(lease_id).pending.append(order)

    def _write(self, post: Post) -> None:
        """Orders in turn. One that is written twice is obeyed once."""
        while post.pending:
            if post.orders.read == 0:
                post.orders.read = post.orders.last()
            if post.orders.write(post.orders.read + 1, [post.pending[0]]):
                post.pending.popleft()
            post.orders.read += 1

    def _read(self, lease: Lease) -> None:
        post = self._posts.get(lease.lease_id)
        if post is None:
            return  # it never booted
        for letter in post.reports.new():
            boot, count = letter.get("boot", ""), int(letter.get("count", 0))
            if count > post.heard.get(boot, 0):
                post.heard[boot] = count
                self._hear(lease, letter)

    def _hear(self, lease: Lease, letter: Letter) -> None:
        match letter["type"]:
            case "notice":
                self._noticed(lease, float(letter["taken_at_s"]))
            case "rebalance":
                self._tell(Wake.REBALANCE, lease)
            case "stranded":
                _LOGGER.warning("machine %s had lost sight of us and ends", self._token(lease.lease_id))
            case "log":
                self._log(letter["trial"], letter["log"])
            case "up" | "down":
                pass
            case _:
                trial = next((one for one in self._trials if one.trial_id == letter.get("trial")), None)
                # Of an assignment that is over only what it stored counts, and that is found when it is restored.
                if trial is not None and trial.attempt == letter.get("attempt") and not trial.ended:
                    self._hear_of(trial, lease, letter)

    def _noticed(self, lease: Lease, taken_at_s: float) -> None:
        if lease.state in (LeaseState.RUNNING, LeaseState.STARTING):
            lease.state = LeaseState.NOTICED
            lease.revoke_at_s = self._cloud.time_of(taken_at_s)
            self._tell(Wake.NOTICE, lease)

    def _hear_of(self, trial: Trial, lease: Lease, letter: Letter) -> None:
        progress, step = trial.progress, float(letter.get("step", 0))
        match letter["type"]:
            case "restored":
                # Stored, and not told of before its machine went: not lost after all.
                progress.steps_lost = max(progress.steps_lost - max(step - progress.steps_saved, 0.0), 0.0)
                progress.steps_saved = progress.steps_done = step
            case "step":
                before = progress.steps_done
                progress.steps_done = max(before, step)
                progress.steps_run += progress.steps_done - before
                if "metric" in letter:
                    trial.metrics.setdefault(int(letter["at"]), float(letter["metric"]))
                self._reached(trial)
            case "saved":
                progress.steps_saved = max(progress.steps_saved, step)
                progress.checkpoints += 1
                progress.saved_at = lease.market.place
                if step > trial.best:
                    trial.best, trial.failures = step, 0
                self._out.append(Event(Wake.SAVED, self.now_s, job_id=progress.job_id))
            case "finished":
                progress.steps_done = progress.steps_saved = max(step, progress.steps_saved)
                self._done_with(trial)
                self._finish(trial, "done")
                trial.on = None
            case "left" | "superseded":
                self._done_with(trial)
                self._lost(trial)
                self._released(trial)
            case "failed":
                self._done_with(trial)
                self._lost(trial)
                self._failed(trial, letter)

    def _reached(self, trial: Trial) -> None:
        job_id = trial.progress.job_id
        for step in [step for step in trial.milestones if trial.progress.steps_done >= step]:
            trial.milestones.remove(step)
            self._out.append(Event(Wake.MILESTONE, self.now_s, job_id=job_id, detail=f"step {step}"))

    def _done_with(self, trial: Trial) -> None:
        """An agent that begins anew reads its orders anew: this one is not to be begun again."""
        if trial.on is not None:
            self._order(trial.on, {"type": "leave", "attempt": trial.attempt})

    def _failed(self, trial: Trial, letter: Letter) -> None:
        """The program's own failure: tried again a few times, from an older checkpoint if need be."""
        number = str(letter.get("number", 0))
        # Who kills it may be this machine, short of memory, or anyone: that counts half.
        killed = letter.get("code") == -signal.SIGKILL
        trial.failures += 0.5 if killed else 1.0
        # What comes some way has nothing against its checkpoint, and what is killed says nothing about it.
        if not letter.get("came", 0) and not killed:
            trial.from_one[number] = trial.from_one.get(number, 0) + 1
        tail = " | ".join(letter.get("tail", ())[-3:])
        _LOGGER.warning("trial %s failed with exit code %s: %s", trial.trial_id, letter.get("code"), tail)
        if number != "0" and trial.from_one.get(number, 0) >= _FAILURES_FROM_ONE:
            trial.aside.append(int(number))
            trial.progress.steps_saved = trial.progress.steps_done = 0.0
        if trial.failures >= MOST_FAILURES:
            trial.problem = f"failed {trial.failures:g} times, last with exit code {letter.get('code')}: {tail}"
            trial.stopping = trial.progress.stopped = True
        self._released(trial)

    def _tell(self, wake: Wake, lease: Lease, detail: str = "") -> None:
        self._out.append(Event(wake, self.now_s, lease_id=lease.lease_id, detail=detail))

    def _sign(self) -> None:
        """Agents end their machines if they see nothing of us for long."""
        now_s = time.time()
        if now_s - self._sign_s >= self._signs.slot_s / 2:
            self._sign_s = now_s
            try:
                self._signs.give(now_s)
            except OSError as error:
                _LOGGER.warning("no sign of life could be given: %s", error)

