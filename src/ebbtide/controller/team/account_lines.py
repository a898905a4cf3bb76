"""Account lines: where every cent of a run went, and in which calendar month."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ebbtide.base.utc import iso
from ebbtide.controller.snapshots import RunSpending
from ebbtide.engine.ledger import Ledger
from ebbtide.errors import InputError
from ebbtide.market.leases import Lease

# Entry for the cost so far of a lease that still runs, for which no bill is written yet.
OPEN = "open"


@dataclass(frozen=True, slots=True)
class AccountLine:
    """Entry in a run's account: a charge, a refund, egress, or the cost so far of an open lease.

    Attributes:
        month: Calendar month (UTC), as `2026-11`.
        entry: `charge`, `refund`, `egress` or `open`.
        lease_id: Id of the lease that the amount is for.
        market: Market of that lease.
        on_demand: Whether the lease is on-demand, at the list price.
        start: Start of the time that is paid for, UTC by the wall clock; for a refund, the end of the lease.
        end: End of the time that is paid for, likewise.
        usd_per_hour: Price, USD per hour; None: the amount has no single price.
        usd: Amount added to the cost, USD; refunds are negative.
    """

    month: str
    entry: str
    lease_id: int
    market: str
    on_demand: bool
    start: str
    end: str
    usd_per_hour: float | None
    usd: float

    def as_plain(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


@dataclass(frozen=True)
class WallClock:
    """Turns times of a run's market into wall-clock times; on real clouds they are the same.

    Attributes:
        time_s: A time by the market's clock, seconds since 1970.
        at_epoch_s: The same moment by the wall clock, seconds since 1970.
        speed: Seconds of the market in a real second.
    """

    time_s: float
    at_epoch_s: float
    speed: float

    @classmethod
    def of(cls, figures: RunSpending) -> WallClock:
        """The clock by which a controller's figures were written."""
        return cls(float(figures["time_s"]), float(figures["at_epoch_s"]), float(figures.get("speed", 1.0)))

    def epoch_s(self, time_s: float) -> float:
        """The wall-clock time of a market time, seconds since 1970."""
        return self.at_epoch_s + (time_s - self.time_s) / self.speed


def month_of(epoch_s: float) -> str:
    """The calendar month (UTC) of a wall-clock time, as `2026-11`."""
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m}"


def checked_month(month: str) -> str:
    """Check a month that a person wrote, and return it as `2026-11`.

    Raises:
        InputError: It is not a month.
    """
    try:
        return f"{datetime.strptime(month, '%Y-%m').replace(tzinfo=UTC):%Y-%m}"
    except ValueError:
        raise InputError(f"{month!r} is no month; write it as 2026-11", field="--month") from None


def lines_of(
    ledger: Ledger, leases: Sequence[Lease], open_usd: Mapping[int, float], clock: WallClock
) -> list[AccountLine]:
    """Every amount of a run; their sum is what it has cost.

    A charge across the end of a month is split by time into two lines.

    Args:
        ledger: Charges and refunds of leases that have ended, and egress.
        leases: All leases of the run, by id.
        open_usd: What each open lease would cost if it ended now, USD by lease id.
        clock: Gives wall-clock times.
    """
    found: list[AccountLine] = []
    for line in ledger.lines:
        about = (str(line.entry), line.lease_id, line.market, line.on_demand)
        span = (clock.epoch_s(line.start_s), clock.epoch_s(line.end_s))
        if line.entry == "refund":
            span = (span[1], span[1])
        for start_s, end_s, usd in _by_month(*span, line.usd):
            found.append(_line(about, start_s, end_s, line.price_usd_per_hour, usd))
    for lease_id, usd in open_usd.items():
        lease = leases[lease_id]
        if not lease.is_charged or not usd:
            continue
        about = (OPEN, lease_id, str(lease.market), lease.on_demand)
        for start_s, end_s, part_usd in _by_month(clock.epoch_s(lease.started_s), clock.at_epoch_s, usd):
            found.append(_line(about, start_s, end_s, None, part_usd))
    return found


def _line(
    about: tuple[str, int, str, bool], start_s: float, end_s: float, price: float | None, usd: float
) -> AccountLine:
    return AccountLine(month_of(start_s), *about, iso(start_s), iso(end_s), price, usd)


def _by_month(start_s: float, end_s: float, usd: float) -> Iterator[tuple[float, float, float]]:
    """A span of time and its amount, cut where months end; the parts sum up to the amount."""
    left_usd, at_s = usd, start_s
    while (month_ends_s := _next_month_s(at_s)) < end_s:
        part_usd = usd * (month_ends_s - at_s) / (end_s - start_s)
        yield at_s, month_ends_s, part_usd
        left_usd, at_s = left_usd - part_usd, month_ends_s
    yield at_s, max(end_s, at_s), left_usd


def _next_month_s(epoch_s: float) -> float:
    """End of the calendar month (UTC) of a time, seconds since 1970."""
    at = datetime.fromtimestamp(epoch_s, UTC)
    year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp()


def sums_by_month(lines: Sequence[AccountLine]) -> dict[str, float]:
    """Sum of the amounts of each month, USD."""
    found: dict[str, list[float]] = {}
    for line in lines:
        found.setdefault(line.month, []).append(line.usd)
    return {month: math.fsum(amounts) for month, amounts in sorted(found.items())}
