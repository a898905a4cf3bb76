"""The ledger: every charge and every refund."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from ebbtide._utc import from_epoch_s
from ebbtide.jobs.transfers import Transfer
from ebbtide.market.billing import Bill
from ebbtide.market.leases import Lease


class Entry(StrEnum):
    """What a line is for."""

    CHARGE = "charge"
    REFUND = "refund"
    EGRESS = "egress"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One entry. `usd` is what it adds to the cost: refunds are negative.

    `start_s` to `end_s` is the time paid for, or for a refund the lease's, which has no one price. Egress has the
    machine that fetched the data, and the moment.
    """

    entry: Entry
    lease_id: int
    market: str
    on_demand: bool
    start_s: float
    end_s: float
    price_usd_per_hour: float | None
    usd: float


class Ledger:
    """Charges and refunds in the order in which leases ended, then egress."""

    def __init__(self) -> None:
        self._bills: list[tuple[Lease, Bill]] = []
        self._transfers: list[tuple[Transfer, Lease, float]] = []

    def add(self, lease: Lease, bill: Bill) -> None:
        """Enter the bill of an ended lease."""
        self._bills.append((lease, bill))

    def correct(self, lease: Lease, bill: Bill) -> None:
        """Enter a lease's bill in place of the one that it has, if it has one."""
        kept = [(other, entered) for other, entered in self._bills if other is not lease]
        self._bills = [*kept, (lease, bill)]

    def add_transfer(self, transfer: Transfer, lease: Lease, usd: float) -> None:
        """Enter what moving data to a machine cost."""
        self._transfers.append((transfer, lease, usd))

    @property
    def lines(self) -> tuple[LedgerLine, ...]:
        """All entries. Made when asked for: most backtests want only the sums."""
        lines = []
        for lease, bill in self._bills:
            market = str(lease.market)
            lines += [
                LedgerLine(
                    Entry.CHARGE,
                    lease.lease_id,
                    market,
                    lease.on_demand,
                    charge.start_s,
                    charge.end_s,
                    charge.price_usd_per_hour,
                    charge.usd,
                )
                for charge in bill.charges
            ]
            if bill.refund_usd:
                lines.append(
                    LedgerLine(
                        Entry.REFUND,
                        lease.lease_id,
                        market,
                        lease.on_demand,
                        lease.started_s,
                        lease.ended_s,
                        None,
                        -bill.refund_usd,
                    )
                )
        lines += [
            LedgerLine(
                Entry.EGRESS,
                lease.lease_id,
                str(lease.market),
                lease.on_demand,
                transfer.time_s,
                transfer.time_s,
                None,
                usd,
            )
            for transfer, lease, usd in self._transfers
            if usd
        ]
        return tuple(lines)

    def usd_of(self, lease_id: int) -> float:
        """What renting one lease cost, its refund taken off."""
        return math.fsum(bill.usd for lease, bill in self._bills if lease.lease_id == lease_id)

    def refund_of(self, lease_id: int) -> float:
        """What of one lease was charged and given back."""
        return math.fsum(bill.refund_usd for lease, bill in self._bills if lease.lease_id == lease_id)

    @property
    def total_usd(self) -> float:
        """What was paid, refunds taken off, egress included."""
        return math.fsum([*(bill.usd for _, bill in self._bills), *(usd for _, _, usd in self._transfers)])

    @property
    def egress_usd(self) -> float:
        """What moving data between regions and clouds cost."""
        return math.fsum(usd for _, _, usd in self._transfers)

    @property
    def refund_usd(self) -> float:
        """What was charged and given back."""
        return math.fsum(bill.refund_usd for _, bill in self._bills)

    def to_frame(self) -> pd.DataFrame:
        """The lines as a table, times as UTC datetimes."""
        frame = pd.DataFrame(
            [[getattr(line, name) for name in LedgerLine.__slots__] for line in self.lines],
            columns=list(LedgerLine.__slots__),
        )
        for name in ("start", "end"):
            frame[name] = [from_epoch_s(time_s) for time_s in frame.pop(f"{name}_s")]
        return frame
