"""DVC as a process of the nightly run: it can be killed at any moment, and the next night goes on.

DVC overwrites its lock files in place: a kill may leave half of one, which no later command of DVC can read.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
from dvc.dvcfile import LOCK_FILE, Lockfile
from dvc.exceptions import DvcException
from dvc.rwlock import RWLOCK_FILE
from dvc.utils.strictyaml import load

from ebbtide.base.files import replacing, write_text
from ebbtide.errors import InputError

# Where a night keeps its state, below the project's folder.
STATE = Path("data/nightly")

_RAN = re.compile(r"^Running stage '([^']+)':?", re.MULTILINE)
_MARK = "EBBTIDE_DVC_PROCESS"
_ENDS_S = 10.0


class DvcProcess:
    """Runs DVC in the current folder, one command at a time.

    Args:
        state: The folder that keeps what the next night needs to know if this one is killed.
    """

    def __init__(self, state: Path) -> None:
        self._mark = state / "dvc-process"
        self._ran = state / "stages.txt"
        self._kept = state / LOCK_FILE
        self._lock, self._rwlock = Path(LOCK_FILE), Path(".dvc", "tmp", RWLOCK_FILE)

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Run one command to its end; returns what it printed.

        Raises:
            InputError: A stage or DVC itself failed.
        """
        self._keep_lock()
        # Written before the process is there: it and all that it starts are found by it in any case.
        mark = secrets.token_hex(16)
        write_text(self._mark, mark)
        process = subprocess.Popen(
            [sys.executable, "-m", "dvc", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                **(environment or {}),
                _MARK: mark,
            },
            start_new_session=True,
        )
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if _RAN.match(line):
                    # Also of a night that is killed before DVC has ended.
                    with self._ran.open("a", encoding="utf-8") as ran:
                        ran.write(line)
            process.wait()
        except BaseException:
            self.end_leftovers()
            raise
        self._mark.unlink(missing_ok=True)
        if process.returncode != 0:
            told = " | ".join("".join(lines).strip().splitlines()[-4:])
            raise InputError(f"dvc {' '.join(arguments)} failed: {told}")
        return "".join(lines)

    def stages_run(self) -> tuple[str, ...]:
        """The names of stages that were run since `forget`, also by a night that was killed."""
        if not self._ran.exists():
            return ()
        return tuple(dict.fromkeys(_RAN.findall(self._ran.read_text(encoding="utf-8"))))

    def forget(self) -> None:
        """The night is over: forget which stages it ran."""
        self._ran.unlink(missing_ok=True)

    def end_leftovers(self) -> None:
        """End DVC and stages that a killed night left running, and mend the lock files that it left in half."""
        if not self._mark.exists():
            return
        _end(self._mark.read_text(encoding="utf-8"))
        # Who held a torn lock is not known, and they are all ended.
        if self._rwlock.exists() and not _is_json(self._rwlock):
            self._rwlock.unlink()
        # DVC only ever adds stages here, so that one without some that were there is cut off.
        found = _stages(self._lock)
        if self._lock.exists() and not (found and found >= _stages(self._kept)):
            if self._kept.exists():
                with replacing(self._lock) as temporary:
                    shutil.copyfile(self._kept, temporary)
            else:
                self._lock.unlink()
        self._mark.unlink()

    def _keep_lock(self) -> None:
        if not self._lock.exists():
            self._kept.unlink(missing_ok=True)
        elif _stages(self._lock):
            with replacing(self._kept) as temporary:
                shutil.copyfile(self._lock, temporary)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def _stages(lock: Path) -> set[str]:
    """The stages in a lock file of DVC; none if it is not there, or cut off."""
    if not lock.exists() or not lock.read_bytes().endswith(b"\n"):
        return set()
    try:
        return set(load(str(lock), Lockfile.SCHEMA)[0].get("stages", ()))
    except DvcException:
        return set()


def _end(mark: str) -> None:
    ours = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark:
                ours.append(process)
        except (OSError, psutil.Error):
            continue
    for process in ours:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(ours, timeout=_ENDS_S)
