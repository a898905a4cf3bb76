"""The training process: any command, told by signals, heard by lines."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Ends a program with its parent, without a line of ours between fork and exec: other threads may hold locks then.
_SETPRIV = shutil.which("setpriv")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_GRACE_S = 5.0

# Of a program's own output, so much is passed on.
_LINE_BYTES = 4096


class TrainingProcess:
    """One run of a program, in a process group of its own, which ends if this process does.

    Args:
        arguments: The command; no shell reads it.
        environment: Added to this process's.
        folder: Where it runs.
        hear: Called, from another thread, with each line of JSON as a mapping, each other line as text, and None
            when the program has ended.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        hear: Callable[[Mapping[str, Any] | str | None], None],
    ) -> None:
        self._hear = hear
        guarded = [_SETPRIV, "--pdeathsig", "KILL", "--", *arguments] if _SETPRIV else list(arguments)
        self.process = subprocess.Popen(
            guarded,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=folder,
            env=os.environ | dict(environment),
            start_new_session=True,
            preexec_fn=None if _SETPRIV else _die_with_parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """None: it runs; negative: the signal that ended it."""
        return self.process.poll()

    def ask_to_save(self) -> None:
        """For programs that use `ebbtide.trial`; others would end."""
        self._signal(signal.SIGUSR1)

    def ask_to_leave(self) -> None:
        """Save and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_GRACE_S)

    def _signal(self, number: int) -> None:
        # To the program alone: what it started, data loaders say, it ends itself.
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._hear(_parsed(line))
        self.process.wait()
        self._hear(None)


def _parsed(line: str) -> Mapping[str, Any] | str:
    # A progress bar leaves its line open: what the program reports then stands behind it.
    begins = line.find('{"')
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line[max(begins, 0) :])
        if isinstance(found, dict):
            return found
    return line[:_LINE_BYTES].rstrip("\n")


def _die_with_parent() -> None:
    """After the fork: a training whose agent has died must not go on, since another may begin."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
