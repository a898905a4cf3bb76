"""Compaction of a journal that has grown large: old prices are thinned out, and old events dropped.

Only people look at either. What a run resumes from (leases, jobs, trainings, bills) is never dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ebbtide.controller.journal.database import MOMENTS, PRICES, Session

# Above these counts, the older half of the events is dropped, and every second price in a market's older half.
MOST_MOMENTS, MOST_PRICES = 100_000, 5_000
# Rows that are written between two checks.
EVERY_ROWS = 5_000
_AT_ONCE = 500


def compact(session: Session) -> None:
    """Drop what is too old, in the transaction of a session."""
    times = sorted(row[0] for row in session.rows(MOMENTS))
    if len(times) > MOST_MOMENTS:
        session.remove(MOMENTS, "time_s < ?", (times[len(times) // 2],))
    of_market = defaultdict[str, list[float]](list)
    for market, time_s, _ in session.rows(PRICES):
        of_market[market].append(time_s)
    for market, changes in of_market.items():
        if len(changes) > MOST_PRICES:
            older = sorted(changes)[: len(changes) // 2]
            for some in _in_parts(older[1::2]):
                places = ", ".join("?" for _ in some)
                session.remove(PRICES, f"market = ? and time_s in ({places})", (market, *some))


def _in_parts(times: list[float]) -> Iterable[list[float]]:
    return (times[first : first + _AT_ONCE] for first in range(0, len(times), _AT_ONCE))
