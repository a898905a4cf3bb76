"""Simulated run of a seed: a user, controllers, a cloud, faults, and invariants checked after every event."""

from __future__ import annotations

import json
import logging
import math
import shutil
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.harness.deterministic.cloud import RentedMachine, SimulatedCloud, Tenant
from tests.harness.deterministic.faults import Fault, Faults
from tests.harness.deterministic.invariants import Invariants, Violation
from tests.harness.deterministic.renting import LIMIT_S, SILENT_S, Namesake, Renting, settings_of
from tests.harness.deterministic.rivals import Rivals
from tests.harness.deterministic.scenario import FAULTS_S, RUN, START_S, Scenario
from tests.harness.deterministic.storage import Disk, SimulatedJournal, SimulatedStorage
from tests.harness.deterministic.strangers import write_heartbeat, write_stray
from tests.harness.deterministic.virtual_time import Killed, Process, VirtualRuntime, VirtualTime

from ebbtide.agent.heartbeats import is_sealed_for
from ebbtide.agent.protocol import key_of
from ebbtide.clouds.cloud import MachineRequest
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.agent_provider import AgentProvider
from ebbtide.controller.controller import Controller
from ebbtide.controller.kinds.state import leases_on
from ebbtide.controller.leadership import SupersededError
from ebbtide.controller.run_state import StopRequest, request_stop, requested_stop
from ebbtide.controller.team.team import Accounting
from ebbtide.engine.engine import Engine
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.market.billing import billing_preset
from ebbtide.market.catalogue import default_catalogue
from ebbtide.market.leases import LeaseState

# Seconds in which a machine has to end by itself after it has missed the heartbeat.
_ENDS_WITHIN_S = 90.0
# Seconds within which a machine ends after its agent, which never reported, was given up.
_SILENT_ENDS_S = 75.0
# A team may exceed its budget by one charge period, a minute, of its maximum number of machines.
_CHARGE_PERIOD_S, _MOST_USD_PER_HOUR = 60.0, 0.25
# Shares of the rounds of disturbances, which are some seconds apart.
_STOPS, _DOWNS, _KILLS, _SECOND, _COPIES, _POWER, _STRAY = 0.03, 0.02, 0.05, 0.02, 0.02, 0.03, 0.3
_STALE, _AWAY, _SILENT = 0.012, 0.008, 0.05
# Share of runs in whose account another user has a run of the same id.
_NAMESAKES = 0.15
_FORGES = 0.3
# Seconds within which an agent reads a heartbeat, even if requests to storage fail or are slow.
_SEEN_WITHIN_S = 40.0
# Seconds within which a user's request is answered, even if requests to cloud and storage are slow.
_ANSWERED_WITHIN_S = 60.0
# While storage is away, requests hang: the last writes of accounts are tried three times.
_AWAY_ANSWERED_WITHIN_S = 120.0
# Seconds within which a controller stops acting after another took over, even if its disk is full for a while.
_STOPS_ACTING_S = 120.0
# Seconds for which a machine may run whose lease has ended and which is not told as one that could not be ended.
_FORGOTTEN_S = 60.0
# Polls after which a controller that acts has left a silent cloud aside.
_LEFT_ASIDE_WITHIN_POLLS = 12
# Words in the reasons of runs that a limit has ended.
_LIMITS = ("budget", "the grace of")


@dataclass
class SimulatedRun:
    """Result of a simulated run.

    Attributes:
        seed: The seed that decided everything.
        policy: Name of the policy.
        faults: The faults that happened.
        violations: Invariants that were broken.
        state: Final state of the run.
        turns: Number of turns that tasks took.
        simulated_s: Duration of the run, virtual seconds.
        controllers: Controllers that were started.
        machines: Machines that were rented.
        ledger_difference_usd: Difference between the run's ledger and the cloud's bills, USD.
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
        """True if every invariant held."""
        return not self.violations


OnScenario = Callable[[Scenario], Scenario]


def simulate(
    seed: int,
    place: Path,
    only: Collection[str] | None = None,
    drawn: OnScenario = lambda scenario: scenario,
    often: Mapping[str, float] | None = None,
) -> SimulatedRun:
    """Run one simulation.

    Args:
        seed: Decides everything.
        place: Folder for the files of the run, which is removed.
        only: Places of the faults that may happen; None: all may.
        drawn: Changes the scenario drawn from the seed.
        often: Factors by which some kinds of faults are more frequent.
    """
    folder = place / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return _World(seed, folder, only, drawn, often).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _World:
    def __init__(
        self,
        seed: int,
        folder: Path,
        only: Collection[str] | None,
        drawn: OnScenario,
        often: Mapping[str, float] | None = None,
    ) -> None:
        # The intensity of faults differs between runs.
        probe = Faults(seed)
        self.faults = faults = Faults(seed, probe.number("intensity", 0.4, 3.0), only, often)
        self.time = VirtualTime(faults, START_S)
        faults.began_s = START_S
        self.time.on_error = self._error
        self.scenario = drawn(Scenario.drawn(faults))
        self.invariants = Invariants(self.time, self.scenario)
        self.storage = SimulatedStorage(
            self.time, faults, on_manifest=self.invariants.stored, on_listed=self.invariants.listed
        )
        catalogue, sweep = default_catalogue(), self.scenario.sweep
        self.cloud = SimulatedCloud(
            self.time,
            faults,
            self.scenario.prices,
            billing_preset(sweep.billing),
            lambda market: catalogue.on_demand_usd_per_hour(market, START_S) or math.nan,
            folder / "machines",
            self._shared,
        )
        told = self.invariants.stepped, self.invariants.started, self._given_back
        self.tenant = Tenant(RUN, self.storage, *told, self._stranded, self._asked_in_vain)
        self.rents = Renting(self.time, faults, self.scenario, self.cloud, self.tenant)
        self.invariants.watch(self.storage, self.cloud, self.tenant)
        self.folder, self.disk = RunFolder(folder / RUN), Disk()
        self.folder.begin(settings_of(self.scenario, folder, seed))
        Accounting(team=self.scenario.team).keep(self.folder)
        self.found = SimulatedRun(seed, self.scenario.policy_name, violations=self.invariants.violations)
        self.namesake: Namesake | None = None
        if faults.number("a namesake", 0.0, 1.0) < _NAMESAKES:
            given = self.time, faults, self.scenario, self.cloud
            self.namesake = Namesake(*given, folder / "theirs" / RUN, seed)
        self.user = Process("user")
        self.rivals: Rivals | None = None
        if self.scenario.team is not None:
            self.rivals = Rivals(self.time, faults, self.storage, self.scenario.team, lambda: self.over)
        self.controller: Process | None = None
        self.controlled_since_s = START_S
        self.outcome: Outcome | None = None
        self.ended: dict[str, BaseException | None] = {}
        self.over = self.is_refused = False
        # Folders in which the run was before it continued from a copy, the latest last.
        self.others: list[tuple[RunFolder, Disk]] = []
        self.controls: dict[str, Disk] = {}
        self.processes: list[Process] = []
        self.engines: dict[str, Engine] = {}
        self.providers: dict[str, AgentProvider] = {}
        self.stopping: set[str] = set()
        # By controller: its epoch, and the time of its first write in that epoch.
        self.acting: dict[str, tuple[int, float]] = {}

    def run(self) -> SimulatedRun:
        time, found = self.time, self.found
        logging.disable(logging.CRITICAL)
        try:
            time.begin(self.user, self._use)
            time.begin(self.user, self._disturb)
            time.begin(self.user, self._watch_orphans)
            time.begin(self.user, self._watch_forgotten)
            if self.namesake is not None:
                time.begin(self.user, partial(self.namesake.live, lambda: self.over))
            if self.rivals is not None:
                self.rivals.begin(self.user)
                time.begin(self.user, self._watch_team)
            time.run(lambda: self.over or bool(found.violations), START_S + self.scenario.longest_s)
            if not self.over and not found.violations:
                self.invariants.violated("stuck", f"after {self.scenario.longest_s:.0f} s: {self._standing()}")
            if not found.violations:
                self._check_end()
                found.ledger_difference_usd = self.invariants.ledger_difference_usd
        finally:
            logging.disable(logging.NOTSET)
            theirs = self.namesake.process if self.namesake is not None else None
            for process in [self.user, self.controller, theirs, *(m.agent for m in self.cloud.machines.values())]:
                if process is not None:
                    time.kill(process)
            time.kill(self.cloud.process)
            if self.rivals is not None:
                self.rivals.end()
            time.run(lambda: False, math.inf)
        found.faults, found.turns = list(self.faults.happened), time.turns
        found.simulated_s, found.machines = time.now_s - START_S, len(self.cloud.machines)
        return found

    # Actors.

    def _use(self) -> None:
        """Act as the user: start the run, and resume it whenever its controller ends before the run is over."""
        number, has_spent_all = self.faults.number, False
        while True:
            self._control(self.folder, self.disk)
            # There may be other controllers: a second one, or that of a copy.
            while any(process.is_alive for process in self.processes):
                self.time.sleep(2.0)
            if self.outcome is not None and self.outcome.finished:
                break
            if self.outcome is not None and any(word in self.outcome.gave_up for word in _LIMITS):
                if has_spent_all:
                    break
                # Resume a run that a limit has ended once: it must end again.
                has_spent_all = True
            if self.is_refused and not self.faults.is_active:
                break  # until the next month
            pause_s = number("user waits", 1.0, 20.0)
            if self.faults.strikes("user: waits for long", 0.1, self.time.now_s):
                pause_s += number("user waits for long", 30.0, 5.0 * LIMIT_S)
            self.time.sleep(pause_s if self.faults.is_active else 1.0)
        self._settled()
        self.over = True

    def _disturb(self) -> None:
        """Disturb the run: make user requests, break machines, and kill or copy controllers."""
        faults, number = self.faults, self.faults.number
        while self.time.now_s - START_S < FAULTS_S and not self.over:
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
            if self.rivals is not None:
                self.rivals.write_absurd()
            if faults.strikes("storage: lists what there was", _STALE, now_s):
                self.storage.grow_stale()
            if faults.strikes("storage: is away", _AWAY, now_s):
                self.storage.go_away()
            if len(self.scenario.clouds) > 1 and faults.strikes("cloud: answers nothing", _SILENT, now_s):
                clouds = self.scenario.clouds
                self.cloud.fall_silent(clouds[int(number("which is silent", 0, len(clouds)))])
            if faults.strikes("a stranger writes", _STRAY, now_s):
                machines = [machine.wanted.token for machine in self._open()]
                write_stray(self.storage, faults, machines, self.scenario.trials, self.scenario.steps)
            if faults.strikes("a stranger writes a heartbeat", _FORGES, now_s):
                tokens = [machine.wanted.token for machine in self._open()]
                write_heartbeat(self.storage, faults, RUN, tokens)
            for machine in self._open():
                if faults.strikes("machine: loses power", _POWER, now_s, machine.wanted.token):
                    self.cloud.end(machine, LeaseState.REVOKED, "taken")
        faults.is_active = False

    def _watch_orphans(self) -> None:
        """Check that machines without a controller end by themselves."""
        alone_since_s = self.time.now_s
        while not self.over:
            self.time.sleep(10.0)
            now_s = self.time.now_s
            if any(process.is_alive for process in self.processes):
                alone_since_s = now_s
            for machine in self._open():
                # While storage is away, nobody can know that a machine is silent; while the disk is full, nobody looks;
                # and while its cloud answers nothing, nobody can end it.
                answers_since_s = self.cloud.silent_until_s.get(machine.wanted.market.cloud, -math.inf)
                can_end_since_s = max(self.storage.away_until_s, self.disk.full_until_s, answers_since_s)
                looked_since_s = can_end_since_s + self.scenario.poll_s
                silent_s = now_s - max(machine.hangs_since_s, self.controlled_since_s, looked_since_s)
                is_controlled = self.controller is not None and self.controller.is_alive
                if is_controlled and silent_s > SILENT_S + _SILENT_ENDS_S:
                    self.invariants.violated("a silent machine is paid on", machine.wanted.token)
                # An agent whose storage is away tries for as long again to save.
                limit_s = LIMIT_S * (1 + (self.storage.away_until_s > alone_since_s))
                if now_s - max(alone_since_s, machine.agent_began_s) > limit_s + _ENDS_WITHIN_S:
                    self.invariants.violated(
                        "machines left running", f"{machine.wanted.token}, without a controller"
                    )

    def _watch_forgotten(self) -> None:
        """Check that each machine that runs is known to its controller as rented, or as one that could not be ended."""
        since_s: dict[str, float] = {}
        while not self.over:
            self.time.sleep(5.0)
            now_s, controller = self.time.now_s, self.controller
            provider = None if controller is None else self.providers.get(controller.name)
            is_away = now_s < max(self.storage.away_until_s, self.disk.full_until_s)
            if controller is None or not controller.is_alive or provider is None or is_away:
                since_s.clear()
                continue
            forgotten = []
            for machine in self._open():
                lease_id = provider._machines.lease_id_of(machine.wanted.token)
                lease = None if lease_id is None else provider._leases.get(lease_id)
                is_told = lease is None or lease.is_open or lease.lease_id in provider._ends.unended
                forgotten += [] if is_told or not machine.is_known else [machine.wanted.token]
            since_s = {token: since_s.get(token, now_s) for token in forgotten}
            for token, at_s in since_s.items():
                if now_s - at_s > _FORGOTTEN_S:
                    self.invariants.violated("a machine is forgotten", token)

    def _watch_team(self) -> None:
        """Check that all runs of the team together stay within its limits."""
        team, rivals = self.scenario.team, self.rivals
        assert team is not None
        assert rivals is not None
        while not self.over:
            self.time.sleep(1.0)
            now_s = self.time.now_s
            own = [machine for machine in self._open() if machine.is_known]
            machines = len(own) + rivals.open_at(now_s)
            if team.machines is not None and machines > team.machines:
                why = f"{len(own)} of the run and {machines - len(own)} of others, of {team.machines}"
                self.invariants.violated("the team's quota passed", why)
            if team.monthly_budget_usd is None:
                continue
            bills = [
                self.cloud.cost_usd(machine, now_s) if machine.is_open else machine.bill_usd
                for machine in self.cloud.machines_of(self.tenant).values()
                if not math.isnan(machine.started_s)
            ]
            usd = math.fsum(bills) + rivals.spent_usd(now_s)
            beyond_usd = (team.machines or 0) * _MOST_USD_PER_HOUR * _CHARGE_PERIOD_S / 3600.0
            if usd > team.monthly_budget_usd + beyond_usd:
                self.invariants.violated(
                    "the team's budget passed", f"{usd:.6f} USD of {team.monthly_budget_usd:.6f}"
                )

    def _request(self, controller: Process, request: StopRequest) -> None:
        """Request the end of the run as its user, and check that the controller answers."""
        folder = self.folder.path
        request_stop(folder, request)
        self.stopping.add(controller.name)

        def look() -> None:
            asked_s = self.time.now_s
            self.time.sleep(_ANSWERED_WITHIN_S)
            if self.storage.away_until_s > asked_s:
                self.time.sleep(_AWAY_ANSWERED_WITHIN_S - _ANSWERED_WITHIN_S)
            engine = self.engines.get(controller.name)
            is_open = controller.is_alive and requested_stop(folder) is not None and self.faults.is_active
            if is_open and engine is not None and not engine.gave_up:
                why = f"by {controller.name}, {self.time.now_s - asked_s:.0f} s after it"
                self.invariants.violated("a stop is not answered", why)

        self.time.begin(self.user, look)

    def _control(self, folder: RunFolder, disk: Disk, *, is_second: bool = False) -> None:
        """Start a controller."""
        self.found.controllers += 1
        process = Process(f"controller-{self.found.controllers}")
        self.controls[process.name] = disk
        self.processes.append(process)
        runtime = VirtualRuntime(self.time, process, self.faults.number("controller's skew", -300.0, 300.0))

        def body() -> None:
            journal = SimulatedJournal(
                disk, process, self.time, self.faults, lambda: self._written(process, disk, controller)
            )
            controller = self.rents.controller(folder, process, runtime, journal)
            self.engines[process.name], self.providers[process.name] = controller.engine, controller.provider
            outcome = controller.run()
            if disk is self.disk:
                self.outcome = outcome
            process.is_alive = False

        if not is_second:
            self.controller, self.outcome = process, None
            self.controlled_since_s = self.time.now_s
        self.time.begin(process, body)

    def _copy(self) -> None:
        """Continue the run from a copy of its folder, on another host, while the first controller still runs."""
        copy = self.folder.path.with_name(f"copy-{self.found.controllers}")
        shutil.copytree(self.folder.path, copy)
        for name in ("controller.lock", "controller.pid", "stop.json"):
            (copy / name).unlink(missing_ok=True)
        self.others.append((self.folder, self.disk))
        self.folder, self.disk = RunFolder(copy), self.disk.copy()
        self._control(self.folder, self.disk)

    # Checks.

    def _error(self, process: Process, error: BaseException) -> None:
        """Handle a task's exception: a controller may raise `InputError` with a one-line reason."""
        process.is_alive = False
        if isinstance(error, InputError) and process.name.startswith(("controller", "namesake")):
            self.ended[process.name] = error
            if isinstance(error, SupersededError) and process.name.startswith("namesake"):
                self.invariants.violated("taken for another run", f"{process.name}: {error}")
            if process.name.startswith("controller"):
                self.is_refused = str(error).endswith("is spent")
            # A copy of a run that had written nothing yet is told that its journal records no machine.
            said = ("older copy", "journal records no machine")
            is_older = any(words in str(error) for words in said) and process.name in self.controls
            if is_older and self.controls[process.name] is self.disk and self.others:
                # The error tells the user to continue in the newest copy, which may take some tries to find.
                self.others.insert(0, (self.folder, self.disk))
                self.folder, self.disk = self.others.pop()
            return
        if isinstance(error, Killed):
            return
        calls = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{Path(call.filename).name}:{call.lineno}" for call in reversed(calls))
        why = f"{process.name}: {type(error).__name__}: {error} ({where})"
        self.invariants.violated("ended with an exception", why)

    def _stranded(self, machine: RentedMachine, since_s: float) -> None:
        """Check that a machine that ends for lack of a heartbeat had none that it had time to read."""
        if self.storage.away_until_s + _SEEN_WITHIN_S > since_s:
            return  # it could read none
        token, key, newest = machine.wanted.token, key_of(self.folder.key, machine.wanted.token), 0
        for seen_s, name, content in sorted(self.storage.heartbeats):
            age_s = since_s - max(seen_s, machine.agent_began_s)
            number = int(name.rpartition("/")[2])
            if number < newest:
                continue  # from a controller that was taken over
            newest = number if is_sealed_for(token, content, key, RUN, number) else newest
            if _SEEN_WITHIN_S < age_s < LIMIT_S and is_sealed_for(token, content, key, RUN, number):
                self.invariants.violated("stranded", f"{token}, with a heartbeat that was {age_s:.0f} s old")
                return

    def _given_back(self, controller: Process, machine: RentedMachine) -> None:
        """Check that a controller ends no machine because its disk is full, or long after another took over."""
        name, token = controller.name, machine.wanted.token
        disk_is_full = self.time.now_s < self.controls[name].full_until_s and self.faults.is_active
        gave_up = self.engines[name].gave_up
        is_to_end = name in self.stopping or any(word in gave_up for word in _LIMITS)
        if disk_is_full and not is_to_end and machine.state is LeaseState.RUNNING:
            self.invariants.violated("given back unsaved", f"{token}, while the disk was full")
        epoch, _ = self.acting.get(name, (math.inf, 0.0))
        since_s = min((began_s for other, began_s in self.acting.values() if other > epoch), default=math.inf)
        if self.time.now_s - since_s > _STOPS_ACTING_S and not is_to_end:
            self.invariants.violated("an older controller acts", f"{name} ends {token}")

    def _shared(self, machine: RentedMachine) -> None:
        """Record that two runs of the same id requested or ended the same machine."""
        self.invariants.violated("two runs share a machine", machine.wanted.token)

    def _asked_in_vain(self, controller: Process, wanted: MachineRequest) -> None:
        """Record that a machine is requested of a cloud that was left aside, since it does not answer."""
        _, since_s = self.acting.get(controller.name, (0, math.inf))
        # A controller lists machines before it first polls, too, again and again where storage fails.
        if self.time.now_s - since_s > _LEFT_ASIDE_WITHIN_POLLS * self.scenario.poll_s:
            self.invariants.violated("a silent cloud is asked", wanted.token)

    def _settled(self) -> None:
        """Check after the run that only machines reported to the user are left, which end by themselves."""
        told = self._unended
        left = [machine.wanted.token for machine in self._open() if machine.wanted.token not in told]
        if left:
            self.invariants.violated("machines left running", ", ".join(left))
        self.time.sleep(LIMIT_S + _ENDS_WITHIN_S)
        left = [machine.wanted.token for machine in self._open()]
        if left:
            self.invariants.violated(
                "machines left running", f"{', '.join(left)} {_ENDS_WITHIN_S:.0f} s after the limit"
            )

    @property
    def _unended(self) -> dict[str, str]:
        """The machines that could not be ended, and why, as reported to the user."""
        found: dict[str, str] = json.loads(self.disk.states.get("unended", "{}"))
        return found

    def _check_end(self) -> None:
        outcome = self.outcome
        if outcome is None:
            self.found.state = "the team's budget is spent"
            return
        self.found.state = "finished" if outcome.finished else outcome.gave_up
        self.invariants.check_end(outcome, self._unended)

    def _written(self, process: Process, disk: Disk, controller: Controller) -> None:
        if disk is self.disk:
            self.outcome = None  # a controller continues after another had ended the run
        self.acting.setdefault(process.name, (controller.provider.epoch, self.time.now_s))
        self.invariants.written(disk, controller)

    def _open(self) -> list[RentedMachine]:
        return [machine for machine in self.cloud.machines_of(self.tenant).values() if machine.is_open]

    def _standing(self) -> str:
        kept = self.disk.run()
        trials = kept["provider"]["trials"] if kept else []
        jobs = kept["engine"]["jobs"] if kept else []
        words = [
            f"{job['steps_done']:g}/{self.scenario.steps} on {leases_on(trial)}{' ended' * trial['ended']}"
            for trial, job in zip(trials, jobs, strict=True)
        ]
        states = [f"{token} {machine.state}" for token, machine in self.cloud.machines.items() if machine.is_open]
        last = next(reversed(self.ended.values()), None)
        return f"{'; '.join(words)}; machines {', '.join(states) or 'none'}; last error {last}"
