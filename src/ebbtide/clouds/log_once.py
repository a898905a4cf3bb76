"""Rate limit for a cloud's repeated warnings: each is logged when it is new, then at most once a minute."""

from __future__ import annotations

import logging
import math
import time

_AGAIN_S = 60.0


class RepeatedWarnings:
    """Logs each warning when it is new, then at most once a minute.

    Args:
        logger: The logger that gets them.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._warned_s: dict[str, float] = {}

    def warn(self, about: str, warning: str) -> None:
        """Log a warning, unless one about the same subject was logged less than a minute ago."""
        now_s = time.monotonic()
        if now_s - self._warned_s.get(about, -math.inf) >= _AGAIN_S:
            self._warned_s[about] = now_s
            self._logger.warning("%s", warning)

    def forget(self, about: str) -> None:
        """Forget a subject whose problem is over, so that its next warning is logged at once."""
        self._warned_s.pop(about, None)
