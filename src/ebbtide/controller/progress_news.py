"""Messages on the progress that agents have recognised: each kind once, since all trials run one program."""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("ebbtide.progress")
_OURS = "ebbtide: "
_KINDS = ("progress: ", "no progress", "progress that cannot be right", "the pattern for progress")


class ProgressNews:
    """Logs the first message of each kind that agents print about progress."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def hear(self, trial_id: str, line: str) -> None:
        """Log a line that a trial printed, if it is the first message of its kind."""
        words = line.removeprefix(_OURS)
        kind = next((kind for kind in _KINDS if words.startswith(kind)), None)
        if words != line and kind is not None and kind not in self._said:
            self._said.add(kind)
            LOGGER.log(logging.INFO if kind == _KINDS[0] else logging.WARNING, "trial %s: %s", trial_id, words)


class _StandardError(logging.Handler):
    """Prints to whatever `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record in one line."""
        print(record.getMessage(), file=sys.stderr)


def show() -> None:
    """Show these messages on standard error, like warnings."""
    if not LOGGER.handlers:
        LOGGER.addHandler(_StandardError())
        LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
