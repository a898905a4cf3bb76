"""moto's instances as local processes, which run their start script and are revoked with a notice."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ebbtide.live.clouds.metadata import MachineState, RoleCredentials
from ebbtide.testing.ec2_stand_in.api import instances
from ebbtide.testing.metadata_server import MetadataServer

_TICK_S = 0.05
_TAKEN = "Server.SpotInstanceTermination"
_SHUT_DOWN = "Client.InstanceInitiatedShutdown"

# The role of the instance profile; machines get its credentials from their metadata.
_ROLE, ROLE_KEY = "stand-in-role", "OF-THE-ROLE"
_ROLE_S = 3600.0

# Stands for the shutdown command, which ends a machine.
_SHUTDOWN = '#!/bin/sh\ntouch "$EBBTIDE_STAND_IN/shut-down"\n'


@dataclass(eq=False)
class Machine:
    """One instance of the stand-in.

    Attributes:
        instance: The instance object of moto.
        folder: Folder that stands for its file system.
        process: Process that runs its start script.
        began_s: When it started, seconds since 1970.
        taken_at_s: When it will be revoked, seconds since 1970; infinity: no notice.
        ended_s: When it ended, seconds since 1970; NaN: it runs.
        taken: Whether it was revoked.
    """

    instance: Any
    folder: Path
    process: subprocess.Popen[bytes]
    began_s: float
    taken_at_s: float = math.inf
    ended_s: float = math.nan
    taken: bool = False


@dataclass(eq=False)
class StandInMachines:
    """All instances of moto, in all regions, as processes.

    Attributes:
        folder: Folder for all files of the machines.
        written: Path in start scripts that is replaced by a folder of each machine.
        environment: Environment variables of every machine, beyond those of a bare one.
        all: Machines that ever ran, by instance id.
        ignores_shutdown: Machines that shut down keep running, as if the shutdown hung.
    """

    folder: Path
    written: str
    environment: dict[str, str]
    all: dict[str, Machine] = field(default_factory=dict)
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
    def running(self) -> list[Machine]:
        """Machines that have not ended, the oldest first."""
        with self._lock:
            return [machine for machine in self.all.values() if math.isnan(machine.ended_s)]

    def take(self, machine: Machine, notice_s: float) -> None:
        """Revoke a machine: its metadata shows a notice, after which it ends."""
        machine.taken_at_s = time.time() + notice_s

    def metadata_url(self, machine: Machine) -> str:
        """The address of a machine's metadata."""
        return f"{self._metadata.url}/{machine.instance.id}"

    def _state_of(self, name: str) -> MachineState:
        machine = self.all.get(name)
        has_notice = machine is not None and math.isfinite(machine.taken_at_s)
        # So that it is seen which machine asks.
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
            for instance in instances():
                machine = self.all.get(instance.id)
                if machine is None and _state(instance) == "running":
                    self._start(instance)
                elif machine is not None and math.isnan(machine.ended_s):
                    self._look(machine)

    def _look(self, machine: Machine) -> None:
        if _state(machine.instance) != "running":
            self._end(machine)
        elif time.time() >= machine.taken_at_s:
            machine.taken = True
            self._end(machine, _TAKEN)
        elif (machine.folder / "shut-down").exists() and not self.ignores_shutdown:
            self._end(machine, _SHUT_DOWN)

    def _start(self, instance: Any) -> None:
        folder = self.folder / instance.id
        folder.mkdir()
        script = instance.user_data.decode()
        (folder / "start.sh").write_text(script.replace(self.written, str(folder / "root")))
        # A machine does not see what is installed here.
        environment = {
            **self.environment,
            "EBBTIDE_STAND_IN": str(folder),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{self._programs}{os.pathsep}/usr/local/bin:/usr/bin:/bin",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{self._metadata.url}/{instance.id}",
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
            self.all[instance.id] = Machine(instance, folder, process, time.time())

    def _end(self, machine: Machine, reason: str = "") -> None:
        """End a machine with its processes; trainings have their own process group and end with their agent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(machine.process.pid, signal.SIGKILL)
        machine.process.wait()
        machine.ended_s = time.time()
        if reason:
            _mark_ended(machine.instance, reason, machine.ended_s)


def _state(instance: Any) -> str:
    return str(instance._state.name)


def _mark_ended(instance: Any, reason: str, ended_s: float) -> None:
    """Terminate an instance as EC2 does, not as a user does."""
    from moto.ec2.models.instances import StateReason

    instance.terminate()
    at = datetime.fromtimestamp(ended_s, UTC)
    instance._reason = f"{reason}: ended by EC2 ({at:%Y-%m-%d %H:%M:%S} GMT)"
    instance.state_reason = StateReason(f"{reason}: ended by EC2", reason)
