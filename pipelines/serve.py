"""A Prefect server, a process worker and the nightly schedule on this machine: `make serve`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import psutil
from flows.dvc_process import STATE, DvcProcess

from ebbtide.errors import InputError

_POOL = "ebbtide"
_STARTS_S = 120.0
_ENDS_S = 20.0
# Three at night, UTC.
_CRON = "0 3 * * *"


def main(words: Sequence[str]) -> None:
    """Run until interrupted, or until one of the three ends."""
    parser = argparse.ArgumentParser(prog="python -m pipelines serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="who can reach this address can run the flows")
    parser.add_argument("--port", type=int, default=4200)
    parser.add_argument("--cron", default=_CRON, help="when, in UTC")
    options = parser.parse_args(words)
    url = f"http://{options.host}:{options.port}/api"
    ours = {"EBBTIDE_FOLDER": str(Path.cwd()), "EBBTIDE_CRON": options.cron}
    environment = {**os.environ, "PREFECT_API_URL": url, "PREFECT_LOGGING_LEVEL": "INFO", **ours}
    running: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        running.append(_start(environment, "server", "start", "--host", options.host, "--port", str(options.port)))
        _wait_for(f"{url}/health", running[0])
        _prefect(environment, "work-pool", "create", _POOL, "--type", "process", "--overwrite")
        _prefect(environment, "--no-prompt", "deploy", "--all", "--prefect-file", "flows/prefect.yaml")
        running.append(_start(environment, "worker", "start", "--pool", _POOL, "--type", "process"))
        sys.stdout.write(
            f"nightly at '{options.cron}' (UTC); to look at it: http://{options.host}:{options.port}\n"
        )
        sys.stdout.flush()
        while all(process.poll() is None for process in running):
            time.sleep(1.0)
        raise InputError("the Prefect server or its worker has ended; see what it said above")
    except KeyboardInterrupt:
        sys.stdout.write("ended\n")
    finally:
        _end(running)


def _end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the server, the worker and a night that is under way; the next night goes on with it."""
    started = [child for process in running for child in _children(process.pid)]
    for process in reversed(running):
        process.terminate()
    for process in running:
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
    for child in psutil.wait_procs(started, timeout=1.0)[1]:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    # DVC and its stages have a session of their own: they would wait for the tasks of a server that is gone.
    DvcProcess(STATE).end_leftovers()


def _children(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _start(environment: Mapping[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "prefect", *arguments], env=environment)


def _prefect(environment: Mapping[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise InputError(f"prefect {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()[-500:]}")


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + _STARTS_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2.0):
                return
        except (OSError, HTTPException):
            if server.poll() is not None or time.monotonic() > end_s:
                raise InputError(f"the Prefect server does not answer at {url}; is its port taken?") from None
            time.sleep(0.3)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
