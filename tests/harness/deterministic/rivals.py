"""Other runs of a simulated run's team: they use the same account book, die, and leave unreadable entries.

A rival's machines are only counted, to test that all runs together stay within the team's limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.storage import SimulatedStorage, StorageOf
from tests.harness.deterministic.virtual_time import Process, VirtualRuntime, VirtualTime

from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import LiveSettings
from ebbtide.controller.team.account import TeamAccount
from ebbtide.controller.team.account_lines import AccountLine, month_of
from ebbtide.controller.team.team import Accounting, Team
from ebbtide.errors import InputError

_NAMES = ("rival-a", "rival-b")
# Shares of a rival's rounds, which are some seconds apart, and of a stranger's.
_RENTS, _GIVES_BACK, _IS_KILLED, _ABSURD = 0.3, 0.1, 0.01, 0.3
_LOOKS_S, _ENDS_S, _AWAY_S = (2.0, 8.0), (1.0, 20.0), (1.0, 400.0)
_RATE_USD, _LEAST_USE_S, _LEAD_S = 0.2, 600.0, 60.0
# Seconds within which machines end after their controller died.
_ALONE_S = (20.0, 150.0)
# Impossible amounts that others may write, or that a write cut short may leave.
_ABSURDITIES: tuple[dict[str, object], ...] = (
    {"spent_usd": -1e6, "machines": -50},
    {"spent_usd": math.nan},
    {"machines": "many"},
    {"usd_per_hour": -1e9, "machines": 1},
)


@dataclass(eq=False)
class _Machine:
    began_s: float
    ended_s: float = math.inf


@dataclass
class Rivals:
    """The other runs of the team.

    Attributes:
        time: The simulation's clock.
        faults: Decides their actions.
        storage: Storage of the account book.
        team: Limits of the team.
        is_over: Returns whether the simulated run is over.
        machines: All machines that rivals have rented, by rival.
    """

    time: VirtualTime
    faults: Faults
    storage: SimulatedStorage
    team: Team
    is_over: Callable[[], bool]
    machines: dict[str, list[_Machine]] = field(default_factory=lambda: {name: [] for name in _NAMES})
    _processes: dict[str, Process] = field(default_factory=dict)

    def begin(self, user: Process) -> None:
        """Start all rivals."""
        for name in _NAMES:
            self.time.begin(user, partial(self._keep, user, name))

    def end(self) -> None:
        """Stop all rivals."""
        for process in self._processes.values():
            self.time.kill(process)

    def open_at(self, time_s: float) -> int:
        """Return the number of machines that rivals rent at a time."""
        return sum(one.ended_s > time_s for own in self.machines.values() for one in own)

    def spent_usd(self, time_s: float) -> float:
        """Return the amount that rivals have spent by a time, USD."""
        return math.fsum(self._usd(name, time_s) for name in _NAMES)

    def write_absurd(self) -> None:
        """Leave an invalid account in the store, as a stranger might."""
        faults, now_s = self.faults, self.time.now_s
        if not faults.strikes("a stranger accounts", _ABSURD, now_s):
            return
        month = month_of(now_s)
        about = {"version": 1, "name": "stranger", "run": "stranger", "month": month, "owner": "", "tags": {}}
        values = {"provider": "ec2", "policy": "x", "state": "x", "spent_usd": 0.0, "machines": 0, "lines": []}
        kind = int(faults.number("absurd kind", 0, len(_ABSURDITIES) + 1))
        absurd = _ABSURDITIES[kind] if kind < len(_ABSURDITIES) else {}
        content = {**about, **values, "usd_per_hour": 0.0, "at_epoch_s": now_s, **absurd}
        self.storage.put(f"accounts/{month}/stranger.json", json.dumps(content).encode() if absurd else b"", now_s)

    def _usd(self, name: str, time_s: float) -> float:
        used_s = (max(min(one.ended_s, time_s) - one.began_s, 0.0) for one in self.machines[name])
        return math.fsum(used_s) * _RATE_USD / HOUR_S

    def _keep(self, user: Process, name: str) -> None:
        """Act as a rival's user: start its controller, and start it again some time after it was killed."""
        while not self.is_over() and self.faults.is_active:
            process = self._processes[name] = Process(name)
            self.time.begin(process, partial(self._control, process))
            while process.is_alive:
                self.time.sleep(1.0)
            # The machines of a dead controller end by themselves; the rival resumes only after that.
            last_s = self.time.now_s
            for machine in self.machines[name]:
                if machine.ended_s == math.inf:
                    machine.ended_s = self.time.now_s + self.faults.number("rival's machines end in", *_ALONE_S)
                    last_s = max(last_s, machine.ended_s)
            self.time.sleep(last_s - self.time.now_s + self.faults.number("rival is away for", *_AWAY_S))
            user.check()

    def _control(self, process: Process) -> None:
        name, faults, number = process.name, self.faults, self.faults.number
        runtime = VirtualRuntime(self.time, process, number("rival's skew", -300.0, 300.0))
        settings = LiveSettings(name, "local", "rival", {}, "", "", {})
        objects = StorageOf(self.storage, process, runtime)
        account = TeamAccount(name, settings, Accounting(team=self.team), objects, runtime)
        open_: list[_Machine] = []
        try:
            account.check()
        except InputError:
            process.is_alive = False
            return
        while True:
            room, now_s = account.room(), self.time.now_s
            spent_usd = self._usd(name, now_s)
            is_reached = open_ and spent_usd + len(open_) * _RATE_USD * _LEAD_S / HOUR_S >= room.usd
            is_over = not faults.is_active or self.is_over()
            if is_reached or is_over:
                self.time.sleep(number("rival ends in", *_ENDS_S))
                self._give_back(open_, len(open_))
            elif faults.strikes("rival: is killed", _IS_KILLED, now_s, name):
                self.time.kill(process)
            elif faults.strikes("rival: rents", _RENTS, now_s, name):
                wanted = len(open_) + int(number("rival's machines", 1, 3))
                usd = spent_usd + wanted * _RATE_USD * _LEAST_USE_S / HOUR_S
                if usd < room.usd and wanted <= room.machines and account.reserve(wanted):
                    began = [_Machine(self.time.now_s) for _ in range(wanted - len(open_))]
                    open_ += began
                    self.machines[name] += began
            elif open_ and faults.strikes("rival: gives back", _GIVES_BACK, now_s, name):
                self._give_back(open_, 1)
            month, usd = month_of(runtime.epoch_s()), self._usd(name, self.time.now_s)
            lines = [AccountLine(month, "charge", 0, "x", False, "", "", None, usd)]
            account.note(partial(list, lines), len(open_), len(open_) * _RATE_USD, "running", is_last=is_over)
            if is_over:
                process.is_alive = False
                return
            self.time.sleep(number("rival looks", *_LOOKS_S))

    def _give_back(self, open_: list[_Machine], count: int) -> None:
        for _ in range(count):
            open_.pop().ended_s = self.time.now_s
