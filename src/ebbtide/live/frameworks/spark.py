"""Spark: a standalone cluster on loopback, a worker for each machine (ExoSphere 4.1).

What a lost worker had in memory Spark computes again, from the newest checkpoint of its data on.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ebbtide.errors import InputError
from ebbtide.live.frameworks.driver import Driver
from ebbtide.live.frameworks.framework import Standing

_MASTER_STARTS_S = 60.0
_GRACE_S = 5.0
_WORKER_MEMORY = "600m"


class SparkFramework:
    """An iterative program over data in memory, on as many workers as there are machines.

    Args:
        folder: Folder for checkpoints, logs and what workers write.
        iterations: Number of iterations of the program.
        partitions: Number of partitions of its data.
        task_s: Real seconds that one iteration of one partition takes.

    Raises:
        InputError: Spark or Java is not installed here.
    """

    def __init__(self, folder: Path, *, iterations: int, partitions: int, task_s: float) -> None:
        self._home = _home()
        self._folder = folder
        self._iterations, self._partitions, self._task_s = iterations, partitions, task_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._driver: Driver | None = None
        self._url = ""
        self.standing = Standing()

    def start(self) -> None:
        self._configure()
        self._launch(
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
        )
        self._url = self._master_url()
        command = [
            sys.executable,
            "-m",
            "ebbtide.live.frameworks.spark_program",
            "--master",
            self._url,
            "--iterations",
            str(self._iterations),
            "--partitions",
            str(self._partitions),
            "--task-s",
            repr(self._task_s),
            "--checkpoints",
            str(self._folder / "checkpoints"),
        ]
        self._driver = Driver(command, self._folder / "spark.log", environment=self._environment())

    def join(self, machine: str) -> None:
        self._launch(
            machine,
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            "127.0.0.1",
            "--cores",
            "1",
            "--memory",
            _WORKER_MEMORY,
            "--webui-port",
            "0",
            "--work-dir",
            str(self._folder / machine),
            self._url,
        )

    def warn(self, machine: str) -> None:
        """Spark goes on to the end: it saves every so often."""

    def lose(self, machine: str) -> None:
        self._kill(machine)

    def checkpoint(self) -> None:
        if self._driver is not None:
            self._driver.tell("checkpoint")

    def hear(self, timeout_s: float) -> bool:
        if self._driver is None:
            return False
        try:
            _, said = self._driver.news.get(timeout=max(timeout_s, 1e-3))
        except queue.Empty:
            return False
        if said is None:
            if self.standing.result is None:
                raise InputError(f"the Spark program ended: {self._driver.last_words}")
            return False
        if "iteration" in said:
            self.standing = replace(self.standing, done=said["iteration"] / self._iterations)
        if "saved" in said:
            saved = said["saved"] / self._iterations
            self.standing = replace(self.standing, saved=saved, checkpoints=self.standing.checkpoints + 1)
        if "result" in said:
            self.standing = replace(self.standing, done=1.0, saved=1.0, result=float(said["result"]))
        return True

    def close(self) -> None:
        if self._driver is not None:
            self._driver.end()
        for name in list(self._processes):
            self._kill(name)

    def _configure(self) -> None:
        """A configuration of its own, which only its owner can read: it holds the cluster's secret."""
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret": secrets.token_hex(16),
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            # A machine that is taken is no failure of the program's.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "1000",
            "spark.stage.maxConsecutiveAttempts": "1000",
            "spark.local.dir": str(self._folder / "local"),
        }
        folder = self._folder / "conf"
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        path = folder / "spark-defaults.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)

    def _environment(self) -> dict[str, str]:
        return {
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
        }

    def _launch(self, name: str, *arguments: str) -> None:
        command = [str(self._home / "bin" / "spark-class"), *arguments]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | self._environment(),
            )

    def _master_url(self) -> str:
        until_s = time.monotonic() + _MASTER_STARTS_S
        log = self._folder / "master.log"
        while time.monotonic() < until_s and self._processes["master"].poll() is None:
            found = re.search(r"spark://127\.0\.0\.1:[1-9]\d*", log.read_text(errors="replace"))
            if found:
                return found.group()
            time.sleep(0.1)
        self._kill("master")
        raise InputError(f"Spark's master did not start: {log.read_text(errors='replace')[-2000:]}")

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            # Its executors are of its group, and so are their Python workers.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)


def _home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InputError("Spark is not installed; pip install 'ebbtide[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise InputError("Spark needs Java 17 or later; there is no java on the path")
    return Path(spec.origin).parent
