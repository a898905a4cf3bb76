"""Whole records of a journal, for tests that give only what they look at."""

from __future__ import annotations

import math
from typing import Any

ENGINE: dict[str, Any] = {
    "started_s": 1.0,
    "memory": {},
    "decisions": 0,
    "timers_set": 0,
    "gave_up": "",
    **{name: [] for name in ("leases", "open", "for_job", "kept", "grown", "draining", "timers", "jobs", "bills")},
    **{name: [] for name in ("transfers", "entered", "list_prices")},
}
JOB: dict[str, Any] = {
    **dict.fromkeys(("steps_saved", "steps_done", "steps_run", "steps_lost"), 0.0),
    "checkpoints": 0,
    "finished_s": math.nan,
    "stopped": False,
    "saved_at": None,
    **{name: [] for name in ("leases", "transfers", "steps_on")},
}
# As a controller kept it before versions were counted.
OLD_TRIAL: dict[str, Any] = {
    "on": None,
    "attempt": 0,
    "leaving": False,
    "stopping": False,
    "ended": False,
    "failures": 0.0,
    "from_one": {},
    "aside": [],
    "best": 5.0,
    "milestones": [],
    "problem": "",
    "assigned": [],
    "metrics": [],
}
