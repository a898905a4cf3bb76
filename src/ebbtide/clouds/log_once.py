"""Warnings that a cloud gives again and again: each is logged when it is new, and once a minute."""

from __future__ import annotations

import logging
import math
import time

_AGAIN_S = 60.0


class RepeatedWarnings:
    """Logs each warning when it is new, and once a minute.

    Args:
        logger: The logger that gets them.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._warned_s: dict[str, float] = {}

    def warn(self, about: str, warning: str) -> None:
        """Log a warning, unless the last one about the same is less than a minute old."""
        now_s = time.monotonic()
        if now_s - self._warned_s.get(about, -math.inf) >= _AGAIN_S:
            self._warned_s[about] = now_s
            self._logger.warning("%s", warning)

    def forget(self, about: str) -> None:
        """Forget a warning whose cause is over, so that the next one about it is logged at once."""
        self._warned_s.pop(about, None)
