"""Estimate of the cost of a run's requests to its storage, which no cloud reports by run.

Each machine polls for orders and heartbeats, and writes reports, for which the controller polls. The run's
settings say how often. Checkpoints are few in comparison, and transfers between regions are charged separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ebbtide.agent.heartbeats import every_s_of
from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.settings import LiveSettings
from ebbtide.market.leases import Lease

# List prices of S3 Standard in us-east-1 and of Cloud Storage, USD per request: PUT and LIST, and GET.
_WRITE_USD, _READ_USD = 0.005 / 1_000, 0.0004 / 1_000
_BUCKETS = ("s3://", "gs://")


def estimated_requests_usd(settings: LiveSettings, leases: Sequence[Lease], now_s: float) -> float:
    """An estimate of what requests to a run's storage have cost so far, USD; 0: its storage is a folder.

    Args:
        settings: Settings of the run.
        leases: All leases of the run.
        now_s: The present time in seconds since 1970; NaN: not known, so open leases are left out.
    """
    if not settings.store.startswith(_BUCKETS):
        return 0.0
    charged = (lease for lease in leases if lease.is_charged)
    spans_s = (
        (now_s if lease.is_open else lease.ended_s) - lease.started_s
        for lease in charged
        if not math.isnan(lease.started_s)
    )
    hours = math.fsum(max(span_s, 0.0) for span_s in spans_s if math.isfinite(span_s)) / HOUR_S
    return hours * _usd_per_machine_hour(_poll_s(settings), every_s_of(settings.controller_limit_s))


def _usd_per_machine_hour(poll_s: float, beat_s: float) -> float:
    # Each poll looks for orders and reports, and writes reports; each heartbeat is a listing and a read.
    polls = (2 * _READ_USD + _WRITE_USD) / poll_s
    beats = (_WRITE_USD + _READ_USD) / beat_s
    return HOUR_S * (polls + beats)


def _poll_s(settings: LiveSettings) -> float:
    """Seconds between polls by the settings of the machines; with several clouds, those of the first."""
    machines: list[dict[str, Any]] = [each for each in settings.options.values() if isinstance(each, dict)]
    return next((float(each["poll_s"]) for each in machines if "poll_s" in each), 5.0)
