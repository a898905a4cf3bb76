"""Processes that report in lines of JSON on standard output, and take orders in lines of text."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# A process that does not end in this time once it is killed is waited for no longer.
_GRACE_S = 5.0
_TAIL_BYTES = 2000


class Driver:
    """One process in a group of its own.

    Args:
        command: Executable and arguments of the process.
        log: File to which its standard error is appended.
        environment: Variables added to those of this process.
        news: Queue of its lines, None at its end; several processes may share one.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        news: queue.Queue[tuple[Driver, dict[str, Any] | None]] | None = None,
    ) -> None:
        self.news = news if news is not None else queue.Queue()
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=os.environ | dict(environment or {}),
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, line: str) -> None:
        """Say something to it, if it still listens."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def end(self, *, at_once: bool = True) -> None:
        """End it and all that it started; else ask it to."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL if at_once else signal.SIGTERM)
        if at_once:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_GRACE_S)
            self._reader.join(timeout=_GRACE_S)
            if self.process.stdin is not None:
                with contextlib.suppress(OSError):
                    self.process.stdin.close()

    @property
    def last_words(self) -> str:
        """The end of what it wrote to its log."""
        with self._log.open("rb") as log:
            log.seek(max(self._log.stat().st_size - _TAIL_BYTES, 0))
            return log.read().decode(errors="replace").strip()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                # Libraries may print, too.
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    if isinstance(said, dict):
                        self.news.put((self, said))
        self.process.wait()
        self.news.put((self, None))
