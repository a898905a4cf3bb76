"""Spark on several machines: the master, the driver and a worker on the first, a worker on each of the others.

A worker whose machine is to be left is decommissioned: it takes no more tasks, and moves what it has computed to
others. What goes with a machine that is lost Spark computes again.

Spark authenticates its processes and encrypts what they say to each other, by the secret of this assignment.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ebbtide.trial import MACHINES, SECRET

_PORT = "EBBTIDE_SPARK_PORT"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_RETRY_S = 1.0
_STARTS_WITHIN_S = 60.0
_GRACE_S = 5.0
# A worker that ends within this many seconds, this many times in a row, is itself at fault, and is given up.
_SHORT_S, _MOST_SHORT = 30.0, 5
# Machines of the local cloud share the memory of one computer: each has room for one executor.
_LOCAL_WORKER = ("--cores", "1", "--memory", "700m")
_LOCAL_EXECUTOR = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.driver.memory": "512m"}


def as_one_of(words: Sequence[str], rank: int) -> list[str]:
    """The command of one machine, for an application in the form that spark-submit takes."""
    own = [sys.executable, "-m", "ebbtide.agent.spark"]
    return [*own, "head", "--", *words] if rank == 0 else [*own, "worker"]


def meeting_port(port: int) -> dict[str, str]:
    """The environment variable by which workers find the master's port."""
    return {_PORT: str(port)}


class SparkMember:
    """This machine's part of a cluster.

    Args:
        place: Folder for configuration, logs and what executors write.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._head, self._own = os.environ[MACHINES].split(",")[0], os.environ[MACHINES].split(",")[-1]
        self._is_local = ipaddress.ip_address(self._head).is_loopback
        self._home = _home()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._configure()

    @property
    def master(self) -> str:
        """Address of the master."""
        return f"spark://{self._head}:{os.environ[_PORT]}"

    def start_master(self) -> subprocess.Popen[bytes]:
        """Start the master, and wait until it answers.

        Raises:
            OSError: It does not start.
        """
        port = os.environ[_PORT]
        process = self._start(_MASTER, "--host", self._head, "--port", port, "--webui-port", "0")
        until_s = time.monotonic() + _STARTS_WITHIN_S
        while process.poll() is None and time.monotonic() < until_s:
            with contextlib.suppress(OSError), socket.create_connection((self._head, int(port)), timeout=_RETRY_S):
                return process
            time.sleep(_RETRY_S / 5)
        raise OSError("Spark's master did not start")

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker of this machine."""
        room = _LOCAL_WORKER if self._is_local else ()
        work = str(self._place / "work")
        return self._start(
            _WORKER, "--host", self._own, "--webui-port", "0", "--work-dir", work, *room, self.master
        )

    def submit(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the driver with the user's application."""
        command = [str(self._home / "bin" / "spark-submit"), "--master", self.master, "--deploy-mode", "client"]
        process = subprocess.Popen(
            [*command, *words], env=self._environment, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End all processes that this member started."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            process.kill()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        # Forget ended processes: a worker may be restarted many times.
        self._processes = [one for one in self._processes if one.poll() is None]
        process = subprocess.Popen(
            [str(self._home / "bin" / "spark-class"), *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        self._processes.append(process)
        return process

    @property
    def _environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(self._place / "conf"),
            "SPARK_LOCAL_IP": self._own,
            "SPARK_LOCAL_DIRS": str(self._place / "local"),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        }

    def _configure(self) -> None:
        """Write the settings; only their owner can read them, since they hold the secret."""
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": os.environ[SECRET],
            "spark.network.crypto.enabled": "true",
            "spark.ui.enabled": "false",
            "spark.driver.host": self._own,
            "spark.driver.bindAddress": self._own,
            # A revoked machine is not a failure of the application.
            "spark.decommission.enabled": "true",
            "spark.storage.decommission.enabled": "true",
            "spark.storage.decommission.rddBlocks.enabled": "true",
            "spark.storage.decommission.shuffleBlocks.enabled": "true",
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.stage.maxConsecutiveAttempts": "1000",
            "spark.task.maxFailures": "100",
            # Lost workers are noticed sooner than by default, but not much sooner: a machine under load is not
            # lost, and a driver whose requests time out fails.
            "spark.worker.timeout": "30",
            "spark.executor.heartbeatInterval": "3s",
            "spark.network.timeout": "60s",
            "spark.network.timeoutInterval": "10s",
            **(_LOCAL_EXECUTOR if self._is_local else {}),
        }
        folder = self._place / "conf"
        folder.mkdir(parents=True, mode=0o700)
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        descriptor = os.open(folder / "spark-defaults.conf", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        (folder / "log4j2.properties").write_text(_LOGGING, encoding="ascii")


def _head(words: Sequence[str]) -> int:
    """Run master, worker and driver; returns the driver's exit code."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-spark-", ignore_cleanup_errors=True) as place:
        cluster = SparkMember(Path(place))
        try:
            master = cluster.start_master()
            worker, began_s, short = cluster.start_worker(), time.monotonic(), 0
            driver = cluster.submit(words)
            signal.signal(signal.SIGTERM, lambda number, _: driver.send_signal(number))
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = driver.wait(_RETRY_S)
                    return code if code >= 0 else 128 - code
                if master.poll() is not None:
                    # No worker that joins or comes back would get work any more.
                    print(f"Spark's master ended with exit code {master.returncode}", file=sys.stderr)
                    return 1
                # The application waits for ever where this is the only worker, and it is gone.
                if worker.poll() is not None and short < _MOST_SHORT:
                    short = short + 1 if time.monotonic() - began_s < _SHORT_S else 0
                    worker, began_s = cluster.start_worker(), time.monotonic()
        finally:
            cluster.close()


def _worker() -> int:
    """Run a worker, restarted until it should leave or keeps failing: a master may not be up yet, or be busy."""
    leaving = threading.Event()
    with tempfile.TemporaryDirectory(prefix="ebbtide-spark-", ignore_cleanup_errors=True) as place:
        cluster = SparkMember(Path(place))
        process = cluster.start_worker()

        def leave(_number: int, _frame: object) -> None:
            leaving.set()
            # Spark's own signal to decommission a worker.
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGPWR)

        signal.signal(signal.SIGTERM, leave)
        began_s, short = time.monotonic(), 0
        try:
            while not leaving.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(_RETRY_S)
                    short = short + 1 if time.monotonic() - began_s < _SHORT_S else 0
                    if short >= _MOST_SHORT and not leaving.is_set():
                        print(
                            f"the worker ended {short} times at once, last with exit code {code}", file=sys.stderr
                        )
                        return 1
                    if not leaving.is_set():
                        time.sleep(_RETRY_S)
                        process, began_s = cluster.start_worker(), time.monotonic()
            # Others may still fetch data from the worker, so it stays until its machine goes or its agent ends it.
            return process.wait()
        finally:
            cluster.close()


def _home() -> Path:
    """Return the folder of Spark: SPARK_HOME, or that of the package pyspark.

    Raises:
        OSError: Spark or Java is not found.
    """
    found = os.environ.get("SPARK_HOME", "")
    spec = None if found else importlib.util.find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        found = next(iter(spec.submodule_search_locations))
    if not found:
        raise OSError("Spark is not found on the machine: install pyspark, or set SPARK_HOME")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise OSError("Java is not found on the machine; Spark 4 needs Java 17")
    return Path(found)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""


def main() -> None:
    """Run the part named on the command line, head or worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("head", "worker"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    try:
        code = _head(words) if options.part == "head" else _worker()
    except OSError as error:
        print(error, file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    main()
