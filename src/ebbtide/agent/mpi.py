"""MPI programs on several machines: Open MPI starts its daemons through the agents, without ssh.

`mpirun` runs on the machine of rank 0 and has a list of all machines. To start a daemon on another one it calls
`connect`, which asks the `listen` of that machine's agent, and both prove that they know the secret of this round.
What Open MPI itself sends afterwards is protected by the network alone, as with ssh.

Programs print through `mpirun` on the first machine, whatever machine they run on. So their reports to the agent
of their own machine go through a named pipe instead.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from ebbtide.trial import MACHINES, RANK, REPORTS, SECRET

LAUNCHERS = frozenset({"mpirun", "mpiexec"})

_PORT = "EBBTIDE_MPI_PORT"
_MODULE = "ebbtide.agent.mpi"
# Real seconds to wait for the other machines, which fetch code and checkpoints first.
_FINDS_WITHIN_S = 300.0
_RETRY_S, _SILENT_S = 0.3, 20.0
# Seconds that a daemon has to end by itself. One that is killed fails the whole run, which may be done already.
_DAEMON_ENDS_S = 5.0
_MOST_BYTES = 1 << 20


def is_mpi(arguments: Sequence[str]) -> bool:
    """Return whether a command starts one of Open MPI's launchers."""
    return bool(arguments) and PurePath(arguments[0]).name in LAUNCHERS


def as_one_of(arguments: Sequence[str], rank: int) -> list[str]:
    """The command of one of several machines, for a command that calls `mpirun`."""
    own = [sys.executable, "-m", _MODULE]
    return [*own, "run", "--", *arguments] if rank == 0 else [*own, "listen"]


def meeting_port(port: int) -> dict[str, str]:
    """The environment variable by which the machines find each other's port."""
    return {_PORT: str(port)}


def _run(arguments: Sequence[str]) -> int:
    """On the first machine: `mpirun` with a list of the machines; returns its exit code."""
    addresses = os.environ[MACHINES].split(",")
    with tempfile.TemporaryDirectory(prefix="ebbtide-mpi-") as place:
        hosts = Path(place) / "hosts"
        # `mpirun` needs no daemon on its own machine, and may not recognise that machine's address.
        names = ["localhost", *addresses[1:]]
        hosts.write_text("".join(f"{name} slots=1\n" for name in names), encoding="ascii")
        with _reports(Path(place)) as reports:
            process = subprocess.Popen(
                arguments,
                env={
                    **os.environ,
                    **_settings(hosts, addresses[0]),
                    **reports,
                    **_own_files(place),
                    **_prefix(arguments[0]),
                },
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent,
            )
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, lambda signaled, _: process.send_signal(signaled))
            return _code(process.wait())


def _prefix(launcher: str) -> Mapping[str, str]:
    """Tell an Open MPI from PyPI, in this Python's environment, its location: it was built for another."""
    found = shutil.which(launcher)
    if "OPAL_PREFIX" in os.environ or not found or Path(found).parent != Path(sys.prefix) / "bin":
        return {}
    return {"OPAL_PREFIX": sys.prefix}


def _own_files(place: str) -> Mapping[str, str]:
    """A temporary folder per machine: daemons share files in it, and local machines are one computer."""
    return {"TMPDIR": place}


def _settings(hosts: Path, address: str) -> Mapping[str, str]:
    """Open MPI's own settings, of version 4 and of version 5."""
    python = f"{sys.executable} -m {_MODULE} connect"
    found = {
        "OMPI_MCA_orte_default_hostfile": str(hosts),
        "PRTE_MCA_prte_default_hostfile": str(hosts),
        "OMPI_MCA_plm_rsh_agent": python,
        "PRTE_MCA_plm_ssh_agent": python,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        # A daemon in a session of its own could outlive its agent.
        "OMPI_MCA_orte_leave_session_attached": "1",
        "PRTE_MCA_prte_leave_session_attached": "1",
        # One process a machine, unless the command says otherwise, as by `-npernode 4`.
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if ipaddress.ip_address(address).is_loopback:
        # Machines of the local cloud use the loopback interface, which Open MPI leaves out by default.
        found |= {
            "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_MCA_oob_tcp_if_include": "lo",
        }
    if os.geteuid() == 0:
        found |= {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
    # The user's own settings take precedence.
    return {name: value for name, value in found.items() if name not in os.environ}


@contextlib.contextmanager
def _reports(place: Path) -> Any:
    """The variable that names the pipe for reports; what comes through it is printed."""
    path = place / "reports"
    os.mkfifo(path, 0o600)
    # Opened for reading and writing, so that the pipe does not end when its first writer closes it.
    descriptor = os.open(path, os.O_RDWR)
    ended = threading.Event()

    def pass_on() -> None:
        with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace", closefd=False) as pipe:
            for line in pipe:
                if line == "\n" and ended.is_set():
                    return
                sys.stdout.write(line)
                sys.stdout.flush()

    reader = threading.Thread(target=pass_on, daemon=True)
    reader.start()
    try:
        yield {REPORTS: str(path)}
    finally:
        ended.set()
        os.write(descriptor, b"\n")
        reader.join(_SILENT_S)
        os.close(descriptor)


def _listen() -> int:
    """On every other machine: run the one command that the first machine sends; returns its exit code."""
    address = os.environ[MACHINES].split(",")[int(os.environ[RANK])]
    with socket.create_server((address, int(os.environ[_PORT]))) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(_SILENT_S)
                asked = _asked(connection)
                if asked is not None:
                    return _do(asked, connection)


def _asked(connection: socket.socket) -> str | None:
    """The command that the other side asks for; None: it does not know the secret, or says nothing."""
    nonce = secrets.token_hex(16)
    try:
        _send(connection, {"nonce": nonce})
        said = _receive(connection)
        command = str(said["command"])
        if hmac.compare_digest(str(said["mac"]), _mac(nonce, command)):
            return command
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _do(command: str, connection: socket.socket) -> int:
    with tempfile.TemporaryDirectory(prefix="ebbtide-mpi-") as place, _reports(Path(place)) as reports:
        # Open MPI wrote the command, for a shell as sshd starts one.
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env={**os.environ, **reports, **_own_files(place), **_prefix("mpirun")},
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        # The first machine is asked to leave, too, and shuts this daemon down properly.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        connection.settimeout(None)
        watch = threading.Thread(target=_end_with, args=(connection, process), daemon=True)
        watch.start()
        code = _code(process.wait())
        with contextlib.suppress(OSError):
            _send(connection, {"code": code})
        return code


def _end_with(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """End the daemon once the first machine has gone, unless it ends by itself, as after a finished run."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_DAEMON_ENDS_S)
    if process.poll() is None:
        process.kill()


def _connect(host: str, words: Sequence[str]) -> int:
    """Called by `mpirun` in place of ssh: run a command on another machine; returns its exit code."""
    command, port = " ".join(words), int(os.environ[_PORT])
    until_s = time.monotonic() + _FINDS_WITHIN_S
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=_SILENT_S)
            break
        except OSError as error:
            if time.monotonic() > until_s:
                print(f"machine {host} does not answer at port {port}: {error}", file=sys.stderr)
                return 1
            time.sleep(_RETRY_S)
    with connection:
        nonce = str(_receive(connection)["nonce"])
        _send(connection, {"command": command, "mac": _mac(nonce, command)})
        connection.settimeout(None)
        try:
            return int(_receive(connection)["code"])
        except (OSError, ValueError, KeyError):
            print(f"machine {host} is gone", file=sys.stderr)
            return 1


def _mac(nonce: str, command: str) -> str:
    content = json.dumps([nonce, command]).encode()
    return hmac.new(bytes.fromhex(os.environ[SECRET]), content, hashlib.sha256).hexdigest()


def _send(connection: socket.socket, content: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(content).encode() + b"\n")


def _receive(connection: socket.socket) -> Mapping[str, Any]:
    said = b""
    while not said.endswith(b"\n"):
        part = connection.recv(4096)
        if not part or len(said) > _MOST_BYTES:
            raise ValueError("the connection has ended")
        said += part
    found = json.loads(said)
    if not isinstance(found, dict):
        raise ValueError("is no message")
    return found


def _code(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    """Run the part named on the command line: `run`, `listen` or `connect`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("run", "listen", "connect"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if options.part == "run":
        code = _run(words)
    elif options.part == "listen":
        code = _listen()
    else:
        code = _connect(words[0], words[1:])
    sys.exit(code)


if __name__ == "__main__":
    main()
