"""Invariants of a simulated run, checked after every event and at its end."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tests.harness.deterministic.cloud import SimulatedCloud, Tenant
from tests.harness.deterministic.machines import read_state, sum_of
from tests.harness.deterministic.scenario import RUN, START_S, Scenario
from tests.harness.deterministic.storage import Disk, SimulatedStorage
from tests.harness.deterministic.virtual_time import Process, VirtualTime

from ebbtide.controller.controller import Controller
from ebbtide.engine.outcome import Outcome
from ebbtide.engine.snapshot import snapshot
from ebbtide.errors import InputError
from ebbtide.storage.checkpoints.manifest import Manifest

# Maximum age of a listing, in polls.
_LISTED_LOOKS = 10
# The journal is compared with the whole state once in this many writes.
_WRITES_CHECKED = 100


@dataclass(frozen=True)
class Violation:
    """A violation of an invariant.

    Attributes:
        what: Name of the invariant, in a word or two.
        why: Details, in a sentence.
        time_s: Time at which it was seen, seconds since the run began.
    """

    what: str
    why: str
    time_s: float


class Invariants:
    """Checks one run as it goes.

    Args:
        time: The simulation's clock.
        scenario: The scenario that is run.

    Attributes:
        violations: Violations so far.
        ledger_difference_usd: Difference between the run's ledger and the cloud's bills, USD.
    """

    def __init__(self, time: VirtualTime, scenario: Scenario) -> None:
        self._time, self._scenario = time, scenario
        self.violations: list[Violation] = []
        self.ledger_difference_usd = 0.0
        # By trial: number and step of the newest complete checkpoint.
        self._newest: dict[str, tuple[int, int]] = {}
        # Steps of complete checkpoints by trial and number; the step to resume from by agent and trial.
        self._complete: dict[tuple[str, int], int] = {}
        self._could_resume: dict[tuple[str, str], int] = {}
        self._executed: dict[str, int] = {}
        self._writes = 0

    def watch(self, storage: SimulatedStorage, cloud: SimulatedCloud, tenant: Tenant) -> None:
        """Set the storage, the cloud and the run to check."""
        self._storage, self._cloud, self._tenant = storage, cloud, tenant

    def violated(self, what: str, why: str) -> None:
        """Record a violation."""
        self.violations.append(Violation(what, why, self._time.now_s - START_S))

    def stored(self, key: str, content: bytes) -> None:
        """Check a stored manifest: its checkpoint must hold each step once."""
        _, trial, _, number = key.split("/")
        try:
            manifest = Manifest.decode(content)
        except InputError:
            return
        if not number.isdecimal() or manifest.number != int(number):
            return  # left by a stranger
        if trial != manifest.trial_id:
            self.violated("manifest of another trial", key)
        for file in manifest.files:
            data = f"trials/{manifest.trial_id}/data/{file.part}"
            if data in self._storage.rotten:
                continue
            part = self._storage.seen(data)
            newer = [each for each in self._storage.keys(f"trials/{trial}/manifests/") if each > key]
            if part is None and newer:
                return  # it came late: what it needs was removed, and a newer one is used
            if part is None:
                self.violated("incomplete checkpoint", f"{data} is missing")
                return
            try:
                step, total = read_state(part[file.offset : file.offset + file.size_bytes])
            except ValueError:
                self.violated("incomplete checkpoint", f"{data} is cut short")
                return
            if total != sum_of(step) or step != manifest.step:
                self.violated("steps counted twice", f"{key}: step {step} of {manifest.step}, sum {total}")
        parts = {f"trials/{manifest.trial_id}/data/{file.part}" for file in manifest.files}
        if not parts & set(self._storage.rotten):
            self._complete[trial, int(number)] = manifest.step
        if self._newest.get(trial, (0, 0))[0] < int(number):
            self._newest[trial] = int(number), manifest.step

    def listed(self, process: Process, prefix: str, keys: list[str]) -> None:
        """Record the newest checkpoint of a trial that an agent can find, from which the agent must resume.

        A listing may be of some minutes ago; what is newer can be asked for by name.
        """
        parts = prefix.split("/")
        if len(parts) != 4 or parts[2] != "manifests" or not process.name.startswith("agent"):
            return
        trial = parts[1]
        aside = {key.rpartition("/")[2] for key in self._storage.keys(f"trials/{trial}/aside/")}
        names = [key.rpartition("/")[2] for key in {*keys, *self._storage.keys(prefix)} if self._storage.has(key)]
        numbers = [int(name) for name in names if name.isdecimal() and name not in aside]
        found = [
            (number, self._complete[trial, number]) for number in numbers if (trial, number) in self._complete
        ]
        self._could_resume[process.name, trial] = max(found, default=(0, 0))[1]

    def stepped(self, process: Process, trial: str, step: int, begins: bool) -> None:
        """Check a program that begins at a step, or count a step that it has done."""
        if not begins:
            self._executed[trial] = self._executed.get(trial, 0) + 1
            return
        could = self._could_resume.get((process.name, trial), 0)
        if step < could:
            self.violated("steps lost beyond a checkpoint", f"{trial} begins at {step}, and {could} was stored")

    def started(self, process: Process, programs: int) -> None:
        """Check that a machine has room for its programs, all of one sweep, when it starts one."""
        share = self._scenario.sweep.share
        if programs * share > 1.0 + 1e-9:
            self.violated("machine overfull", f"{process.name} runs {programs} programs that fill {share:g} each")

    def written(self, disk: Disk, controller: Controller) -> None:
        """Check, at one write in a hundred, that the disk holds the controller's state."""
        self._writes += 1
        if self._writes % _WRITES_CHECKED:
            return
        state = {"engine": snapshot(controller.engine), "provider": controller.provider.snapshot()}
        # Compare NaN by its text, since NaN does not equal itself.
        found, expected = (json.loads(json.dumps(each), parse_constant=str) for each in (disk.run(), state))
        for each in (found, expected):
            # Ignore the order of bills: a bill corrected to the same amount is not written again.
            each["engine"]["bills"].sort()
        if found != expected:
            names = [f"{side}'s {name}" for side in expected for name in expected[side]]
            wrong = [name for name in names if _part(found, name) != _part(expected, name)]
            self.violated("journal", f"{', '.join(wrong)}: what is written is not the controller's state")

    def check_end(self, outcome: Outcome, unended: Collection[str]) -> None:
        """Check steps, ledger and budget after a run that its controller ended in an orderly way."""
        if outcome.finished:
            for trial, job in zip(self._scenario.trials, outcome.jobs, strict=True):
                if job.stopped:
                    continue
                if job.steps_done != self._scenario.steps or job.steps_saved != self._scenario.steps:
                    self.violated("steps", f"{trial}: {job.steps_done:g} done, {job.steps_saved:g} saved")
                if self._newest.get(trial, (0, 0))[1] != self._scenario.steps:
                    self.violated("steps", f"{trial}: storage has step {self._newest.get(trial)}")
        for trial, job in zip(self._scenario.trials, outcome.jobs, strict=True):
            executed = self._executed.get(trial, 0)
            if not 0 <= job.steps_lost <= executed or job.steps_run > executed:
                self.violated(
                    "steps miscounted", f"{job.steps_run:g} run, {job.steps_lost:g} lost, and {executed} were done"
                )
            if outcome.finished and not job.stopped and job.steps_lost > executed - self._scenario.steps:
                self.violated(
                    "steps miscounted", f"{job.steps_lost:g} lost of {executed} for {self._scenario.steps}"
                )
        self._check_money(outcome, unended)
        self._check_budget(outcome)

    def _check_money(self, outcome: Outcome, unended: Collection[str]) -> None:
        ledger = {f"{RUN}-m{lease.lease_id:04d}": lease for lease in outcome.leases}
        for token, machine in self._cloud.machines_of(self._tenant).items():
            if token in unended:
                continue  # the user is told that it could not be ended
            lease = ledger.get(token)
            if not machine.is_known:
                # The controller may never have been told when it ended.
                # A controller that waits for storage does not look.
                until_s = max(machine.ended_s, self._storage.away_until_s) + _LISTED_LOOKS * self._scenario.poll_s
                most_usd = math.inf if math.isnan(machine.started_s) else self._cloud.cost_usd(machine, until_s)
                if lease is not None and outcome.ledger.usd_of(lease.lease_id) > most_usd + 1e-9:
                    self.violated("ledger", f"{token}, which was forgotten, is charged for longer than it ran")
                continue
            if lease is None:
                if machine.bill_usd:
                    self.ledger_difference_usd += machine.bill_usd
                    self.violated("ledger", f"{token} costs {machine.bill_usd:.6f} USD and is not in the ledger")
                continue
            usd = outcome.ledger.usd_of(lease.lease_id)
            if abs(usd - machine.bill_usd) > 1e-9:
                self.ledger_difference_usd += abs(usd - machine.bill_usd)
                self.violated("ledger", f"{token}: {usd:.6f} USD, and the cloud says {machine.bill_usd:.6f}")

    def _check_budget(self, outcome: Outcome) -> None:
        """Check that the cost is within the budget, by the cloud's bills net of refunds and by the ledger."""
        # The controller may never have been told that a forgotten machine was charged.
        machines = self._cloud.machines_of(self._tenant).values()
        known = [machine.bill_usd for machine in machines if machine.is_known]
        usd = max(math.fsum(known), outcome.cost_usd)
        if self._scenario.sweep.budget_usd is not None and usd > self._scenario.sweep.budget_usd:
            self.violated("budget passed", f"{usd:.6f} USD of {self._scenario.sweep.budget_usd:.6f}")


def _part(state: Mapping[str, Any], name: str) -> Any:
    side, _, part = name.partition("'s ")
    return state[side].get(part)
