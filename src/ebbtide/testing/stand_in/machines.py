"""A stand-in's instances as local processes, which run their start scripts and are revoked with a notice."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ebbtide.clouds.metadata import MachineState, RoleCredentials
from ebbtide.market.markets import Market
from ebbtide.testing.metadata_server import MetadataServer

_TICK_S = 0.05

# The machines' role, whose credentials they get from their metadata.
_ROLE, ROLE_KEY = "stand-in-role", "OF-THE-ROLE"
_ROLE_S = 3600.0

# Replaces the `shutdown` command.
_SHUTDOWN = '#!/bin/sh\ntouch "$EBBTIDE_STAND_IN/shut-down"\n'


@dataclass(frozen=True)
class StandInInstance:
    """An instance as the stand-in's API reports it.

    Attributes:
        id: Id of the instance, unique in the stand-in.
        market: Market in which it was rented.
        is_spot: Whether it is charged the spot price.
        began_s: Time at which charging began, seconds since 1970.
        script: Start script of the instance.
        instance: The API's own object.
    """

    id: str
    market: Market
    is_spot: bool
    began_s: float
    script: str
    instance: Any


class StandInInstances(Protocol):
    """The instances of a stand-in's API."""

    def running(self) -> Sequence[StandInInstance]:
        """Return the running instances."""
        ...

    def end(self, rented: StandInInstance, taken: bool, ended_s: float) -> None:
        """List an instance as ended: revoked, or shut down by itself."""
        ...

    def environment(self, metadata_url: str) -> Mapping[str, str]:
        """Return the environment variables by which a machine's programs find its metadata."""
        ...


@dataclass(eq=False)
class StandInMachine:
    """An instance of the stand-in, run as a local process.

    Attributes:
        rented: The instance as the API reports it.
        folder: Folder that stands for its file system.
        process: Process that runs its start script.
        began_s: Time of its start, seconds since 1970.
        taken_at_s: Time of its revocation, seconds since 1970; infinity: no notice.
        ended_s: Time of its end, seconds since 1970; NaN: it still runs.
        taken: Whether it was revoked.
    """

    rented: StandInInstance
    folder: Path
    process: subprocess.Popen[bytes]
    began_s: float
    taken_at_s: float = math.inf
    ended_s: float = math.nan
    taken: bool = False

    @property
    def instance(self) -> Any:
        """The API's own object."""
        return self.rented.instance


@dataclass(eq=False)
class StandInMachines:
    """Runs all instances of a stand-in as processes.

    Attributes:
        folder: Folder for all files of the machines.
        written: Path in start scripts to replace by a folder of each machine.
        environment: Environment variables of every machine, beyond those of a bare one.
        instances: The instances of the stand-in's API.
        all: Machines that ever ran, by instance id.
        ignores_shutdown: Whether machines that shut down keep running, as if the shutdown hung.
    """

    folder: Path
    written: str
    environment: dict[str, str]
    instances: StandInInstances
    all: dict[str, StandInMachine] = field(default_factory=dict)
    ignores_shutdown: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._programs = self.folder / "programs"
        self._programs.mkdir(parents=True)
        shutdown = self._programs / "shutdown"
        shutdown.write_text(_SHUTDOWN)
        shutdown.chmod(0o700)
        self._metadata = MetadataServer(self._state_of)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> list[StandInMachine]:
        """Machines that have not ended, the oldest first."""
        with self._lock:
            return [machine for machine in self.all.values() if math.isnan(machine.ended_s)]

    def take(self, machine: StandInMachine, notice_s: float) -> None:
        """Revoke a machine: its metadata shows a notice, and it ends `notice_s` later."""
        machine.taken_at_s = time.time() + notice_s

    def metadata_url(self, machine: StandInMachine) -> str:
        """Return the address of a machine's metadata."""
        return f"{self._metadata.url}/{machine.rented.id}"

    def _state_of(self, name: str) -> MachineState:
        machine = self.all.get(name)
        has_notice = machine is not None and math.isfinite(machine.taken_at_s)
        # The key names the machine, so that requests can be attributed to it.
        role = RoleCredentials(_ROLE, f"{ROLE_KEY}-{name}", "none", time.time() + _ROLE_S)
        return MachineState(machine.taken_at_s if machine and has_notice else None, credentials=role)

    def close(self) -> None:
        """End every process; further calls do nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        for machine in self.running:
            self._end(machine)
        self._metadata.close()

    def _run(self) -> None:
        while not self._closing.wait(_TICK_S):
            running = {rented.id: rented for rented in self.instances.running()}
            for name, rented in running.items():
                if name not in self.all:
                    self._start(rented)
            for machine in self.running:
                self._look(machine, machine.rented.id in running)

    def _look(self, machine: StandInMachine, is_running: bool) -> None:
        if not is_running:
            self._end(machine)
        elif time.time() >= machine.taken_at_s:
            machine.taken = True
            self._end(machine)
            self.instances.end(machine.rented, True, machine.ended_s)
        elif (machine.folder / "shut-down").exists() and not self.ignores_shutdown:
            self._end(machine)
            self.instances.end(machine.rented, False, machine.ended_s)

    def _start(self, rented: StandInInstance) -> None:
        folder = self.folder / rented.id
        folder.mkdir()
        (folder / "start.sh").write_text(rented.script.replace(self.written, str(folder / "root")))
        # Do not inherit this process's environment: a machine must not see what is installed here.
        environment = {
            **self.environment,
            "EBBTIDE_STAND_IN": str(folder),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{self._programs}{os.pathsep}/usr/local/bin:/usr/bin:/bin",
            **self.instances.environment(f"{self._metadata.url}/{rented.id}"),
        }
        process = subprocess.Popen(
            ["bash", str(folder / "start.sh")],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with self._lock:
            self.all[rented.id] = StandInMachine(rented, folder, process, time.time())

    def _end(self, machine: StandInMachine) -> None:
        """Kill a machine's process group; trainings have their own groups, and end with their agent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(machine.process.pid, signal.SIGKILL)
        machine.process.wait()
        machine.ended_s = time.time()
