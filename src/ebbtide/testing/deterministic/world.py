"""One simulated run from its seed: a user, controllers, a cloud, faults, and what must hold after every event."""

from __future__ import annotations

import json
import logging
import math
import shutil
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.engine.engine import Engine
from ebbtide.engine.outcome import Outcome
from ebbtide.engine.snapshot import snapshot
from ebbtide.errors import InputError
from ebbtide.jobs.sweep import Sweep
from ebbtide.live.agent.config import AgentConfig
from ebbtide.live.agent_provider import Pace
from ebbtide.live.checkpoints.manifest import Manifest
from ebbtide.live.controller import Controller, Outside, Programs
from ebbtide.live.phase import StopRequest, request_stop, requested_stop
from ebbtide.live.settings import LiveSettings, RunFolder
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.choice import within_budget
from ebbtide.policies.registry import policy as policy_named
from ebbtide.testing.deterministic.cloud import CloudOf, RentedMachine, SimulatedCloud
from ebbtide.testing.deterministic.faults import Fault, Faults
from ebbtide.testing.deterministic.fickle import Fickle
from ebbtide.testing.deterministic.machines import read_state, sum_of
from ebbtide.testing.deterministic.storage import Disk, SimulatedJournal, SimulatedStorage, StorageOf
from ebbtide.testing.deterministic.strangers import write_stray
from ebbtide.testing.deterministic.virtual_time import Killed, Process, VirtualRuntime, VirtualTime

_RUN = "run"
_START_S = 1_700_000_000.0
# Faults happen for so long; then the run has to end within the rest.
_FAULTS_S, _LONGEST_S = 240.0, 2_400.0
_LIMIT_S, _POLL_S = 60.0, 2.0
# Time that a machine has to end by itself after it has missed the heartbeat.
_ENDS_WITHIN_S = 90.0
_POLICIES = ("fickle", "fickle", "reactive", "on-demand", "cheapest-spot")
_MARKETS = tuple(Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "abc")
# Shares of users' looks, each some seconds after the one before.
_STOPS, _DOWNS, _KILLS, _SECOND, _COPIES, _POWER, _STRAY = 0.03, 0.02, 0.05, 0.02, 0.02, 0.03, 0.3
# A request of the user is answered within so many seconds, though requests to cloud and storage may take as long.
_ANSWERED_WITHIN_S = 60.0
_LISTING_S = 30.0
_TIGHT = 0.2
# The journal is compared with the whole state after each of so many writes.
_WRITES_CHECKED = 40


@dataclass(frozen=True)
class Violation:
    """Something that must not be.

    Attributes:
        what: Which invariant is broken, in a word or two.
        why: How, in a sentence.
        time_s: When that was seen, seconds since the run began.
    """

    what: str
    why: str
    time_s: float


@dataclass
class SimulatedRun:
    """What came of a run.

    Attributes:
        seed: The seed that decided everything.
        policy: Name of the policy that decided.
        faults: The faults that happened.
        violations: What must not have been.
        state: How the run ended.
        turns: How often tasks took turns.
        simulated_s: How long it took, virtual seconds.
        controllers: Controllers that were started.
        machines: Machines that were rented.
        ledger_difference_usd: Difference between our ledger and the cloud's bills, USD.
    """

    seed: int
    policy: str
    faults: list[Fault] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    state: str = ""
    turns: int = 0
    simulated_s: float = 0.0
    controllers: int = 0
    machines: int = 0
    ledger_difference_usd: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether every invariant held."""
        return not self.violations


def simulate(seed: int, place: Path, only: Collection[str] | None = None) -> SimulatedRun:
    """Run one simulation.

    Args:
        seed: Decides everything.
        place: Folder for the files of the run, which is removed.
        only: Places of the only faults that may happen; None: all may.
    """
    folder = place / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return _World(seed, folder, only).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _part(state: Mapping[str, Any], name: str) -> Any:
    side, _, part = name.partition("'s ")
    return state[side].get(part)


@cache
def _billing() -> tuple[str, ...]:
    return ("ec2-second", "ec2-hourly", "gcp-spot")


class _World:
    def __init__(self, seed: int, folder: Path, only: Collection[str] | None) -> None:
        # Some runs are calm, some wild.
        probe = Faults(seed)
        self.faults = faults = Faults(seed, probe.number("intensity", 0.2, 2.0), only)
        self.time = VirtualTime(faults, _START_S)
        faults.began_s = _START_S
        self.time.on_error = self._error
        self.storage = SimulatedStorage(self.time, faults, on_manifest=self._stored, on_listed=self._listed)
        self.folder, self.disk = RunFolder(folder / _RUN), Disk()
        # Events are told together from so many on.
        self.many = int(faults.number("many", 1, 8))
        trials = int(faults.number("trials", 1, 4))
        self.steps = int(faults.number("steps", 12, 50))
        self.policy_name = _POLICIES[int(faults.number("policy", 0, len(_POLICIES)))]
        names = _billing()
        self.sweep = Sweep.model_validate(
            {
                "name": "simulated",
                "command": "python program.py {lr}",
                "grid": {"lr": [0.1 * (number + 1) for number in range(trials)]},
                "metric": "loss",
                "max_trial_steps": self.steps,
                "theta": 1.0,
                "steps_per_hour": {"c3.xlarge": 1_200},
                "billing": names[int(faults.number("billing", 0, len(names)))],
                "budget_usd": 0.05 if faults.number("budget", 0.0, 1.0) < _TIGHT else 50.0,
            }
        )
        billing = billing_preset(self.sweep.billing)
        catalogue = default_catalogue()
        self.cloud = SimulatedCloud(
            self.time,
            faults,
            self.storage,
            self._prices(),
            billing,
            lambda market: catalogue.on_demand_usd_per_hour(market, _START_S) or math.nan,
            folder / "machines",
            self._stepped,
            self._given_back,
        )
        settings = LiveSettings(
            _RUN,
            "local",
            self.policy_name,
            self.sweep.model_dump(mode="json"),
            str(folder),
            "",
            {"speed": 1.0},
            seed,
        )
        self.folder.begin(settings)
        self.found = SimulatedRun(seed, self.policy_name)
        self.user = Process("user")
        self.controller: Process | None = None
        self.outcome: Outcome | None = None
        self.ended: dict[str, BaseException | None] = {}
        self.over = False
        self.other: tuple[RunFolder, Disk] | None = None
        self.controls: dict[str, Disk] = {}
        self.processes: list[Process] = []
        self.engines: dict[str, Engine] = {}
        # Of each trial: number and step of the newest complete checkpoint.
        self.newest: dict[str, tuple[int, int]] = {}
        # Step by trial and number of each complete checkpoint; by agent and trial, what it could resume from.
        self.complete: dict[tuple[str, int], int] = {}
        self.could_resume: dict[tuple[str, str], int] = {}
        self.executed: dict[str, int] = {}
        self.stopping: set[str] = set()
        self.writes = 0

    def run(self) -> SimulatedRun:
        time, found = self.time, self.found
        logging.disable(logging.CRITICAL)
        try:
            time.begin(self.user, self._use)
            time.begin(self.user, self._disturb)
            time.begin(self.user, self._watch_orphans)
            time.run(lambda: self.over or bool(found.violations), _START_S + _LONGEST_S)
            if not self.over and not found.violations:
                self._violated("stuck", f"after {_LONGEST_S:.0f} s: {self._standing()}")
            if not found.violations:
                self._check_end()
        finally:
            logging.disable(logging.NOTSET)
            for process in [self.user, self.controller, *(m.agent for m in self.cloud.machines.values())]:
                if process is not None:
                    time.kill(process)
            time.kill(self.cloud.process)
            time.run(lambda: False, math.inf)
        found.faults, found.turns = list(self.faults.happened), time.turns
        found.simulated_s, found.machines = time.now_s - _START_S, len(self.cloud.machines)
        return found

    # Those who act.

    def _use(self) -> None:
        """The user: starts the run, and again whenever its controller has ended before the run was over."""
        number = self.faults.number
        while True:
            self._control(self.folder, self.disk)
            # It may be another one meanwhile, of a copy.
            while self.controller is not None and self.controller.is_alive:
                self.time.sleep(1.0)
            if self.outcome is not None and (self.outcome.finished or "budget" in self.outcome.gave_up):
                break
            pause_s = number("user waits", 1.0, 20.0)
            if self.faults.strikes("user: waits for long", 0.1, self.time.now_s):
                pause_s += number("user waits for long", 30.0, 5.0 * _LIMIT_S)
            self.time.sleep(pause_s if self.faults.is_active else 1.0)
        self._settled()
        self.over = True

    def _disturb(self) -> None:
        """The user asks for this and that, machines break, and controllers are killed or copied."""
        faults, number = self.faults, self.faults.number
        while self.time.now_s - _START_S < _FAULTS_S and not self.over:
            self.time.sleep(number("next trouble", 2.0, 12.0))
            now_s = self.time.now_s
            controller = self.controller
            if controller is not None and controller.is_alive:
                if faults.strikes("user: stops", _STOPS, now_s):
                    self._request(controller, StopRequest.STOP)
                elif faults.strikes("user: takes it down", _DOWNS, now_s):
                    self._request(controller, StopRequest.DOWN)
                elif faults.strikes("controller: is killed", _KILLS, now_s):
                    self.time.kill(controller)
                elif faults.strikes("user: starts a second controller", _SECOND, now_s):
                    self._control(self.folder, self.disk, is_second=True)
                elif faults.strikes("user: copies the run", _COPIES, now_s):
                    self._copy()
            if faults.strikes("a stranger writes", _STRAY, now_s):
                trials = [f"{_RUN}-{number:03d}" for number in range(len(self.sweep.trials()))]
                machines = [machine.wanted.token for machine in self._open()]
                write_stray(self.storage, faults, machines, trials, self.steps)
            for machine in self._open():
                if faults.strikes("machine: loses power", _POWER, now_s, machine.wanted.token):
                    self.cloud.end(machine, LeaseState.REVOKED, "taken")
        faults.is_active = False

    def _watch_orphans(self) -> None:
        """Machines without a controller end by themselves."""
        alone_since_s = self.time.now_s
        while not self.over:
            self.time.sleep(10.0)
            now_s = self.time.now_s
            if any(process.is_alive for process in self.processes):
                alone_since_s = now_s
            for machine in self._open():
                if now_s - max(alone_since_s, machine.agent_began_s) > _LIMIT_S + _ENDS_WITHIN_S:
                    self._violated("machines left running", f"{machine.wanted.token}, without a controller")

    def _request(self, controller: Process, request: StopRequest) -> None:
        """The user asks for the end of the run, and looks whether that is answered."""
        folder = self.folder.path
        request_stop(folder, request)
        self.stopping.add(controller.name)

        def look() -> None:
            self.time.sleep(_ANSWERED_WITHIN_S)
            engine = self.engines.get(controller.name)
            is_open = controller.is_alive and requested_stop(folder) is not None and self.faults.is_active
            if is_open and engine is not None and not engine.gave_up:
                why = f"by {controller.name}, {_ANSWERED_WITHIN_S:.0f} s after it"
                self._violated("a stop is not answered", why)

        self.time.begin(self.user, look)

    def _control(self, folder: RunFolder, disk: Disk, *, is_second: bool = False) -> None:
        """Start a controller."""
        self.found.controllers += 1
        process = Process(f"controller-{self.found.controllers}")
        self.controls[process.name] = disk
        self.processes.append(process)
        runtime = VirtualRuntime(self.time, process, self.faults.number("controller's skew", -300.0, 300.0))

        def body() -> None:
            agent = AgentConfig(
                _RUN,
                "",
                "",
                "",
                poll_s=_POLL_S,
                notice_poll_s=_POLL_S,
                report_s=1.0,
                tick_s=0.5,
                controller_limit_s=_LIMIT_S,
                first_save_s=2.0,
                margin_s=1.0,
            )
            outside = Outside(
                runtime,
                StorageOf(self.storage, process, runtime),
                SimulatedJournal(disk, process, self.time, self.faults, lambda: self._written(disk, controller)),
            )
            controller = Controller(
                folder,
                self._policy(),
                CloudOf(self.cloud, process, runtime),
                agent,
                Programs(600.0, "python"),
                Pace(_POLL_S, missing_s=10.0, many=self.many),
                outside,
            )
            self.engines[process.name] = controller.engine
            outcome = controller.run()
            if disk is self.disk:
                self.outcome = outcome
            process.is_alive = False

        if not is_second:
            self.controller, self.outcome = process, None
        self.time.begin(process, body)

    def _copy(self) -> None:
        """The run goes on from a copy of its folder, on another host, while the first controller still runs."""
        copy = self.folder.path.with_name(f"copy-{self.found.controllers}")
        shutil.copytree(self.folder.path, copy)
        for name in ("controller.lock", "controller.pid", "stop.json"):
            (copy / name).unlink(missing_ok=True)
        self.other = self.folder, self.disk
        self.folder, self.disk = RunFolder(copy), self.disk.copy()
        self._control(self.folder, self.disk)

    def _policy(self) -> Policy:
        decides = Fickle() if self.policy_name == "fickle" else policy_named(self.policy_name)
        return within_budget(self.sweep, decides)

    def _prices(self) -> PriceHistory:
        series = {}
        for market in _MARKETS:
            times_s, usd = [_START_S - 86_400.0], [0.04]
            while times_s[-1] < _START_S + _LONGEST_S:
                begins_s = max(times_s[-1], _START_S - 600.0)
                times_s.append(begins_s + self.faults.number("price lasts", 20.0, 300.0))
                usd.append(self.faults.number("price", 0.02, 0.25))
            series[market] = PriceSeries(np.array(times_s), np.array(usd))
        return PriceHistory(series, start_s=_START_S - 86_400.0, end_s=_START_S + 2 * _LONGEST_S)

    # What must hold.

    def _error(self, process: Process, error: BaseException) -> None:
        """A task ended with an exception: a controller may say in one line why it cannot go on."""
        process.is_alive = False
        if isinstance(error, InputError) and process.name.startswith("controller"):
            self.ended[process.name] = error
            is_older = "older copy" in str(error) and process.name in self.controls
            if is_older and self.controls[process.name] is self.disk and self.other is not None:
                # The user is told to go on where the run ran last.
                (self.folder, self.disk), self.other = self.other, (self.folder, self.disk)
            return
        if isinstance(error, Killed):
            return
        calls = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{Path(call.filename).name}:{call.lineno}" for call in reversed(calls))
        why = f"{process.name}: {type(error).__name__}: {error} ({where})"
        self._violated("ended with an exception", why)

    def _stored(self, key: str, content: bytes) -> None:
        """A manifest was stored: its checkpoint holds each step once."""
        _, trial, _, number = key.split("/")
        try:
            manifest = Manifest.decode(content)
        except InputError:
            return
        if not number.isdecimal() or manifest.number != int(number):
            return  # a stranger's
        if trial != manifest.trial_id:
            self._violated("manifest of another trial", key)
        for data in self._data_of(manifest):
            if data in self.storage.rotten:
                continue
            state = self.storage.seen(data)
            if state is None:
                self._violated("incomplete checkpoint", f"{data} is missing")
                return
            try:
                step, total = read_state(state)
            except ValueError:
                self._violated("incomplete checkpoint", f"{data} is cut short")
                return
            if total != sum_of(step) or step != manifest.step:
                self._violated("steps counted twice", f"{key}: step {step} of {manifest.step}, sum {total}")
        if not any(key in self.storage.rotten for key in self._data_of(manifest)):
            self.complete[trial, int(number)] = manifest.step
        if self.newest.get(trial, (0, 0))[0] < int(number):
            self.newest[trial] = int(number), manifest.step

    def _data_of(self, manifest: Manifest) -> list[str]:
        return [
            f"trials/{manifest.trial_id}/data/{manifest.number:08d}-{manifest.writer:06d}/{place:06d}"
            for place in range(len(manifest.files))
        ]

    def _listed(self, process: Process, prefix: str, keys: list[str]) -> None:
        """An agent sees which checkpoints of a trial there are: it is to resume from the newest of them."""
        parts = prefix.split("/")
        if len(parts) != 4 or parts[2] != "manifests" or not process.name.startswith("agent"):
            return
        trial = parts[1]
        aside = {key.rpartition("/")[2] for key in self.storage.keys(f"trials/{trial}/aside/")}
        names = [key.rpartition("/")[2] for key in keys]
        numbers = [int(name) for name in names if name.isdecimal() and name not in aside]
        found = [(number, self.complete[trial, number]) for number in numbers if (trial, number) in self.complete]
        self.could_resume[process.name, trial] = max(found, default=(0, 0))[1]

    def _stepped(self, process: Process, trial: str, step: int, begins: bool) -> None:
        """A program begins at a step, or has done one."""
        if not begins:
            self.executed[trial] = self.executed.get(trial, 0) + 1
            return
        could = self.could_resume.get((process.name, trial), 0)
        if step < could:
            self._violated("steps lost beyond a checkpoint", f"{trial} begins at {step}, and {could} was stored")

    def _given_back(self, machine: RentedMachine) -> None:
        """A controller ends a machine: not because its own disk is full."""
        disk_is_full = self.time.now_s < self.disk.full_until_s and self.faults.is_active
        names = [name for name, disk in self.controls.items() if disk is self.disk]
        if disk_is_full and not any(name in self.stopping for name in names) and self._is_used(machine):
            self._violated("given back unsaved", f"{machine.wanted.token}, while the disk was full")

    def _written(self, disk: Disk, controller: Controller) -> None:
        """What is on a disk, written bit by bit, is the controller's state."""
        self.writes += 1
        if self.writes % _WRITES_CHECKED:
            return
        state = {"engine": snapshot(controller.engine), "provider": controller.provider.snapshot()}
        # NaN equals nothing, but its name does.
        found, expected = (json.loads(json.dumps(each), parse_constant=str) for each in (disk.run(), state))
        for each in (found, expected):
            # The order in which leases were settled; a bill that is corrected to the same is not written again.
            each["engine"]["bills"].sort()
        if found != expected:
            names = [f"{side}'s {name}" for side in expected for name in expected[side]]
            wrong = [name for name in names if _part(found, name) != _part(expected, name)]
            self._violated("journal", f"{', '.join(wrong)}: what is written is not the controller's state")

    def _is_used(self, machine: RentedMachine) -> bool:
        return machine.state is LeaseState.RUNNING

    def _settled(self) -> None:
        """The run is over: no machine is left, but one that may not be ended, and that one ends by itself."""
        left = [machine.wanted.token for machine in self._open() if not self._may_run_on(machine)]
        if left:
            self._violated("machines left running", ", ".join(left))
        self.time.sleep(_LIMIT_S + _ENDS_WITHIN_S)
        left = [machine.wanted.token for machine in self._open()]
        if left:
            self._violated("machines left running", f"{', '.join(left)} {_ENDS_WITHIN_S:.0f} s after the limit")

    def _may_run_on(self, machine: RentedMachine) -> bool:
        return machine.not_ended_until_s > -math.inf

    def _check_end(self) -> None:
        outcome = self.outcome
        assert outcome is not None
        self.found.state = "finished" if outcome.finished else outcome.gave_up
        if outcome.finished:
            for number, job in enumerate(outcome.jobs):
                trial = f"{_RUN}-{number:03d}"
                if job.stopped:
                    continue
                if job.steps_done != self.steps or job.steps_saved != self.steps:
                    self._violated("steps", f"{trial}: {job.steps_done:g} done, {job.steps_saved:g} saved")
                if self.newest.get(trial, (0, 0))[1] != self.steps:
                    self._violated("steps", f"{trial}: storage has step {self.newest.get(trial)}")
        for number, job in enumerate(outcome.jobs):
            executed = self.executed.get(f"{_RUN}-{number:03d}", 0)
            if not 0 <= job.steps_lost <= executed or job.steps_run > executed:
                self._violated(
                    "steps miscounted", f"{job.steps_run:g} run, {job.steps_lost:g} lost, and {executed} were done"
                )
            if outcome.finished and not job.stopped and job.steps_lost > executed - self.steps:
                self._violated("steps miscounted", f"{job.steps_lost:g} lost of {executed} for {self.steps}")
        self._check_money(outcome)

    def _check_money(self, outcome: Outcome) -> None:
        unended = json.loads(self.disk.states.get("unended", "{}"))
        ledger = {f"{_RUN}-m{lease.lease_id:04d}": lease for lease in outcome.leases}
        for token, machine in self.cloud.machines.items():
            if token in unended:
                continue  # its user is told that it could not be ended
            lease = ledger.get(token)
            if not machine.is_known:
                # When it ended nobody may have been told.
                # A listing may be some seconds old.
                until_s = machine.ended_s + _LISTING_S
                most_usd = math.inf if math.isnan(machine.started_s) else self.cloud.cost_usd(machine, until_s)
                if lease is not None and outcome.ledger.usd_of(lease.lease_id) > most_usd + 1e-9:
                    self._violated("ledger", f"{token}, which was forgotten, is charged for longer than it ran")
                continue
            if lease is None:
                if machine.bill_usd:
                    self.found.ledger_difference_usd += machine.bill_usd
                    self._violated("ledger", f"{token} costs {machine.bill_usd:.6f} USD and is not in the ledger")
                continue
            usd = outcome.ledger.usd_of(lease.lease_id)
            if abs(usd - machine.bill_usd) > 1e-9:
                self.found.ledger_difference_usd += abs(usd - machine.bill_usd)
                self._violated("ledger", f"{token}: {usd:.6f} USD, and the cloud says {machine.bill_usd:.6f}")

    def _open(self) -> list[RentedMachine]:
        return [machine for machine in self.cloud.machines.values() if machine.is_open]

    def _violated(self, what: str, why: str) -> None:
        self.found.violations.append(Violation(what, why, self.time.now_s - _START_S))

    def _standing(self) -> str:
        kept = self.disk.run()
        trials = kept["provider"]["trials"] if kept else []
        jobs = kept["engine"]["jobs"] if kept else []
        words = [
            f"{job['steps_done']:g}/{self.steps} on {trial['on']}{' ended' * trial['ended']}"
            for trial, job in zip(trials, jobs, strict=True)
        ]
        states = [f"{token} {machine.state}" for token, machine in self.cloud.machines.items() if machine.is_open]
        last = next(reversed(self.ended.values()), None)
        return f"{'; '.join(words)}; machines {', '.join(states) or 'none'}; last error {last}"
