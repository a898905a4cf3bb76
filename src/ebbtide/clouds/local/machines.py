"""The local cloud's machines: run agents as processes, revoke them by the market, and bill them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.agent.agent import ENDS_MACHINE
from ebbtide.agent.process_tree import MACHINE, end_machine
from ebbtide.base.files import write_secret
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.metadata import MachineState
from ebbtide.errors import InputError
from ebbtide.market.billing import ON_DEMAND, Billing, LeaseEnding
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.events import Wake
from ebbtide.replay.replayed_market import ReplayedMarket

_TICK_S = 0.02
_GRACE_S = 5.0
# An agent that exits by itself is restarted, as by a service manager, after this delay.
_RESTART_S = 0.2


# All machines share this machine's cores, so a training's threads must not spin while they wait. Machines of one
# training reach each other by loopback addresses.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(eq=False)
class _Machine:
    wanted: MachineRequest
    lease: Lease
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    restart_s: float = math.inf
    taken_at_s: float | None = None
    why: str = ""
    bill: dict[str, float] = field(default_factory=dict)


class Machines:
    """All machines that were requested, on one clock.

    Args:
        market: Replayed market in which machines are rented.
        billing: Billing rule of spot machines.
        catalogue: Instance types and list prices.
        speed: Market seconds in a real second.
        folder: Folder below which machines have their folders.
        url: Address at which instance metadata are served.
        past: Machines of earlier clouds in the folder, which have ended.
    """

    def __init__(
        self,
        market: ReplayedMarket,
        billing: Billing,
        catalogue: Catalogue,
        speed: float,
        folder: Path,
        url: str,
        past: Sequence[Instance] = (),
    ) -> None:
        self._past = {instance.token: instance for instance in past}
        self._market, self._billing, self._catalogue = market, billing, catalogue
        self.speed = speed
        self._folder, self._url = folder, url
        self.began_s, self.began_epoch_s = market.now_s, time.time()
        self._machines: dict[str, _Machine] = {}
        self._by_lease: dict[int, _Machine] = {}
        self._lock = threading.RLock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def now_s(self) -> float:
        """The market's time now."""
        return self.began_s + (time.time() - self.began_epoch_s) * self.speed

    @property
    def is_over(self) -> bool:
        """True if the price history has ended."""
        return self._market.is_over

    def launch(self, wanted: MachineRequest) -> None:
        """Request a machine, unless it was requested before."""
        with self._lock:
            if wanted.token in self._machines or wanted.token in self._past:
                return
            self._catch_up()
            number, now_s = len(self._machines), self._market.now_s
            lease = Lease(number, wanted.market, wanted.max_price_usd_per_hour, wanted.on_demand, now_s)
            machine = _Machine(wanted, lease, self._folder / f"machine-{lease.lease_id}")
            self._machines[wanted.token] = self._by_lease[lease.lease_id] = machine
            self._market.launch(lease)

    def terminate(self, token: str) -> float | None:
        """Release a machine now; returns the market time of its end. None: there is no such machine."""
        with self._lock:
            machine = self._machines.get(token)
            if machine is None:
                past = self._past.get(token)
                return None if past is None else past.ended_s
            self._catch_up()
            if machine.lease.is_open:
                self._market.terminate(machine.lease)
                self._ended(machine, LeaseEnding.RELEASED)
            return machine.lease.ended_s

    def interrupt(self, token: str) -> bool:
        """Give a running machine a revocation notice, as clouds do on request for a rehearsal.

        Returns:
            Whether the machine exists, runs, and had no notice yet.
        """
        with self._lock:
            machine = self._machines.get(token)
            self._catch_up()
            if machine is None or machine.lease.state is not LeaseState.RUNNING:
                return False
            self._market.interrupt(machine.lease)
            self._catch_up()
            return True

    def instances(self) -> list[Instance]:
        """All machines that were ever requested."""
        with self._lock:
            return [*self._past.values(), *(self._instance(machine) for machine in self._machines.values())]

    def bills(self) -> list[dict[str, Any]]:
        """Cost and refund in USD of each machine that was charged, with its token."""
        with self._lock:
            return [{"token": token, **machine.bill} for token, machine in self._machines.items() if machine.bill]

    def if_ended_now(self) -> list[tuple[Instance, dict[str, Any]]]:
        """Return each open machine that is charged, as if it were released now, with its bill."""
        found = []
        with self._lock:
            for token, machine in self._machines.items():
                lease = machine.lease
                if lease.is_open and lease.is_charged:
                    ended_s = max(self._market.now_s, lease.started_s)
                    instance = replace(self._instance(machine), state=LeaseState.RELEASED, ended_s=ended_s)
                    found.append((instance, {"token": token, **self._bill(lease, ended_s, LeaseEnding.RELEASED)}))
        return found

    @property
    def any_open(self) -> bool:
        """True if a machine runs or is being started."""
        with self._lock:
            return any(machine.lease.is_open for machine in self._machines.values())

    def metadata(self, place: str) -> MachineState | None:
        """Return the metadata of the machine whose folder has that name; None: there is no such machine."""
        with self._lock:
            found = (machine for machine in self._by_lease.values() if machine.folder.name == place)
            machine = next(found, None)
            return None if machine is None else MachineState(machine.taken_at_s)

    def processes(self) -> dict[str, int]:
        """Process ids of running agents by their machines' tokens."""
        with self._lock:
            return {
                token: machine.process.pid
                for token, machine in self._machines.items()
                if machine.process is not None and machine.process.poll() is None
            }

    def close(self) -> None:
        """End every machine."""
        with self._lock:
            self._closing = True
            for token in list(self._machines):
                self.terminate(token)
        self._thread.join(_GRACE_S)

    def _run(self) -> None:
        while not self._closing:
            with self._lock:
                self._catch_up()
                self._mind_agents()
            time.sleep(_TICK_S)

    def _catch_up(self) -> None:
        """Handle all events of the market up to now."""
        now_s = self.now_s
        while self._market.next_time_s <= now_s:
            event = self._market.advance()
            machine = self._by_lease.get(event.lease_id) if event is not None else None
            if event is None or machine is None:
                continue
            if event.wake is Wake.RUNNING:
                self._start_agent(machine)
            elif event.wake is Wake.LAUNCH_FAILED:
                machine.why = event.detail
            elif event.wake is Wake.NOTICE:
                machine.why = event.detail
                left_s = (machine.lease.revoke_at_s - self.began_s) / self.speed
                machine.taken_at_s = self.began_epoch_s + left_s
            elif event.wake is Wake.ENDED:
                self._ended(machine, LeaseEnding.REVOKED)
        self._market.now_s = max(self._market.now_s, now_s)

    def _start_agent(self, machine: _Machine) -> None:
        folder = machine.folder
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            **machine.wanted.agent,
            "folder": str(_work(folder)),
            "metadata_url": f"{self._url}/{folder.name}",
        }
        # The file holds a key. An earlier cloud may have left the file of another machine of this number.
        (folder / "agent.json").unlink(missing_ok=True)
        write_secret(folder / "agent.json", json.dumps(config))
        command = [sys.executable, "-m", "ebbtide.agent", str(folder / "agent.json")]
        with (folder / "agent.log").open("ab") as log:
            machine.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**_PATIENT, **os.environ, MACHINE: str(_work(folder))},
            )
        machine.restart_s = math.inf

    def _mind_agents(self) -> None:
        for machine in self._machines.values():
            if machine.process is None or machine.process.poll() is None or not machine.lease.is_open:
                continue
            if machine.process.returncode == ENDS_MACHINE:
                machine.why = "ended by its agent"
                self._market.terminate(machine.lease)
                self._ended(machine, LeaseEnding.RELEASED)
            elif math.isinf(machine.restart_s):
                machine.restart_s = time.monotonic() + _RESTART_S
            elif time.monotonic() >= machine.restart_s:
                self._start_agent(machine)

    def _ended(self, machine: _Machine, ending: LeaseEnding) -> None:
        """End all processes of a machine, and record its bill."""
        if machine.process is not None:
            # This ends the agent, too: it carries the machine's mark in its environment.
            end_machine(_work(machine.folder))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(machine.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                machine.process.wait(_GRACE_S)
        lease = machine.lease
        if lease.is_charged:
            machine.bill = self._bill(lease, lease.ended_s, ending)
        shutil.rmtree(_work(machine.folder), ignore_errors=True)

    def _bill(self, lease: Lease, ended_s: float, ending: LeaseEnding) -> dict[str, float]:
        bill = self._rule(lease).bill(self._prices(lease), lease.started_s, ended_s, ending)
        return {"usd": bill.usd, "refund_usd": bill.refund_usd}

    def _rule(self, lease: Lease) -> Billing:
        rule = self._billing.of(lease.market.cloud)
        return (rule.on_demand or ON_DEMAND) if lease.on_demand else rule

    def _prices(self, lease: Lease) -> PriceSeries:
        if not lease.on_demand:
            return self._market.prices(lease.market)
        listed = self._catalogue.on_demand_usd_per_hour(lease.market, lease.started_s)
        if listed is None:
            raise InputError(f"on-demand price of {lease.market} is not known")
        return PriceSeries(np.array([lease.started_s]), np.array([listed]))

    def _instance(self, machine: _Machine) -> Instance:
        lease = machine.lease
        state = LeaseState.RUNNING if lease.state is LeaseState.NOTICED else lease.state
        return Instance(
            machine.wanted.token,
            state,
            lease.started_s,
            lease.running_s,
            lease.ended_s,
            machine.why,
            address=_address(lease.lease_id),
        )


def clear_left_machines(folder: Path) -> int:
    """End processes that machines of a killed local cloud left; returns the number of those machines."""
    return sum(end_machine(_work(machine)) > 0 for machine in sorted(folder.glob("machine-*")))


def _address(number: int) -> str:
    """Return a machine's own loopback address, so that programs reach each other as on separate hosts."""
    return f"127.1.{number // 250 % 256}.{number % 250 + 1}"


def _work(machine: Path) -> Path:
    """The folder in which the agent of a machine works."""
    return (machine / "work").resolve()


def instance_values(instance: Instance) -> Mapping[str, Any]:
    """A machine as plain values, for JSON."""
    return asdict(instance) | {"state": str(instance.state)}


def instance_of(values: Mapping[str, Any]) -> Instance:
    """A machine from plain values that `instance_values` gave."""
    return Instance(**{**values, "state": LeaseState(values["state"])})
