"""Waiting in tests: for a condition, never for a time, so that a test holds on a slow machine.

`tests/house.py` refuses sleeps and clocks elsewhere in tests; benchmarks and programs that tests start may have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")

# Longer than anything here takes beside four busy loops: a test that fails waits for it, one that passes does not.
LIMIT_S = 120.0
_POLL_S = 0.02


def eventually(
    condition: Callable[[], _Found],
    *,
    limit_s: float = LIMIT_S,
    poll_s: float = _POLL_S,
    message: str | Callable[[], str] = "",
) -> _Found:
    """Wait until a condition is true, and return its value.

    Args:
        condition: Called again and again; an exception of it ends the wait.
        limit_s: Seconds after which the wait fails; generous, since a machine may be busy.
        poll_s: Seconds between two calls.
        message: Text of the failure, or a function that makes it; empty: the condition's name.

    Raises:
        AssertionError: The condition was not true within the limit.
    """
    end_s = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() >= end_s:
            text = message() if callable(message) else message
            raise AssertionError(
                f"not within {limit_s:g} s: {text or getattr(condition, '__qualname__', condition)}"
            )
        time.sleep(poll_s)
    return found


def holds(condition: Callable[[], object], *, duration_s: float, poll_s: float = _POLL_S) -> None:
    """Check that a condition stays true for a while: something that must not happen has its chance to.

    A slow machine can make this pass too easily, never fail. Where something can be seen that comes after the
    unwanted event would, wait for that with `eventually` instead.
    """
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        assert condition(), f"no longer: {getattr(condition, '__qualname__', condition)}"
        time.sleep(poll_s)
    assert condition(), f"no longer: {getattr(condition, '__qualname__', condition)}"


def work(duration_s: float) -> None:
    """Take as long as a step of a training would; no assertion may depend on how long."""
    time.sleep(duration_s)


def without_progress(errors: str) -> list[str]:
    """The lines that a command wrote to standard error, but those that tell a slow machine's progress."""
    return [line for line in errors.splitlines() if not line.endswith(" so far")]
