"""What an agent reports: gathered for a while, written in order, tried again until it is written."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque

from ebbtide.live.agent.mailbox import Letter, Letters

_LOGGER = logging.getLogger(__name__)

# What a program prints is passed on, but not without bound: so much of it in one letter.
_MOST_LOG_LINES = 200
_RETRY_S = 0.5
_CLOSING_S = 30.0


class Outbox:
    """Writes reports in a thread of its own.

    Args:
        letters: Where to.
        gather_s: How long to gather what is not urgent.
    """

    def __init__(self, letters: Letters, gather_s: float) -> None:
        self._letters = letters
        self._gather_s = gather_s
        self._number = letters.last()
        # By these a reader tells a letter that was written twice.
        self._boot, self._count = secrets.token_hex(8), 0
        self._waiting: deque[Letter] = deque()
        self._lock = threading.Lock()
        self._urgent = threading.Event()
        self._closing = False
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, letter: Letter, *, urgent: bool = True) -> None:
        """Report something."""
        with self._lock:
            logs = sum("log" in waiting for waiting in self._waiting) if "log" in letter else 0
            if logs < _MOST_LOG_LINES:
                self._count += 1
                self._waiting.append({**letter, "boot": self._boot, "count": self._count})
                self._idle.clear()
        if urgent:
            self._urgent.set()

    def close(self) -> None:
        """Write what is left, and end."""
        self._urgent.set()
        self._idle.wait(_CLOSING_S)
        self._closing = True
        self._urgent.set()
        self._thread.join(_CLOSING_S)

    def _write(self) -> None:
        while not self._closing:
            self._urgent.wait(self._gather_s)
            self._urgent.clear()
            with self._lock:
                letters = list(self._waiting)
            if not letters:
                continue
            if not self._written(letters):
                self._urgent.wait(_RETRY_S)
                self._urgent.set()
                continue
            with self._lock:
                for _ in letters:
                    self._waiting.popleft()
                if not self._waiting:
                    self._idle.set()

    def _written(self, letters: list[Letter]) -> bool:
        try:
            # One that is there already is ours: of a try that was thought to have failed, or of an agent before.
            while not self._letters.write(self._number + 1, letters):
                self._number += 1
        except Exception as error:
            _LOGGER.warning("a report is not written yet: %s", error)
            return False
        self._number += 1
        return True
