"""Times: UTC everywhere, as seconds since 1970 inside and as aware datetimes at the edges."""

from __future__ import annotations

from datetime import UTC, datetime

from ebbtide.errors import InputError

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0

# Timestamps of pandas are datetimes.
Time = float | int | str | datetime


def to_epoch_s(time: Time) -> float:
    """Seconds since 1970-01-01 UTC of a number of seconds, an aware datetime or an ISO 8601 string.

    Raises:
        InputError: The text is not a time, or the time has no offset.
    """
    if isinstance(time, (int, float)):
        return float(time)
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.strip())
        except ValueError:
            raise InputError(f"{time!r} is not a time; write for example 2015-04-01T12:00:00Z") from None
    if time.tzinfo is None:
        raise InputError(f"time {time.isoformat()} has no offset; write for example {time.isoformat()}Z")
    return time.timestamp()


def from_epoch_s(epoch_s: float) -> datetime:
    """The UTC datetime of `epoch_s` seconds since 1970."""
    return datetime.fromtimestamp(epoch_s, tz=UTC)


def iso(epoch_s: float) -> str:
    """`epoch_s` as ISO 8601 in UTC to the second, ending in Z."""
    return from_epoch_s(epoch_s).strftime("%Y-%m-%dT%H:%M:%SZ")
