"""The ledger: every charge and every refund."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ebbtide.base.utc import from_epoch_s
from ebbtide.jobs.transfers import Transfer
from ebbtide.market.billing import Bill
from ebbtide.market.leases import Lease

if TYPE_CHECKING:
    import pandas as pd


class LineKind(StrEnum):
    """Kind of a ledger line."""

    CHARGE = "charge"
    REFUND = "refund"
    EGRESS = "egress"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Line of the ledger. `usd` is added to the cost: refunds are negative.

    `start_s` to `end_s` is the time paid for; for a refund the time of the lease, which has no single price.
    Egress has the lease of the machine that fetched the data, and the moment of the transfer.
    """

    entry: LineKind
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
        # By lease id, in the order in which they were entered.
        self._bills: dict[int, tuple[Lease, Bill]] = {}
        self._total_usd: float | None = 0.0
        self._transfers: list[tuple[Transfer, Lease, float]] = []

    def add(self, lease: Lease, bill: Bill) -> None:
        """Enter the bill of an ended lease."""
        self._bills[lease.lease_id] = (lease, bill)
        self._total_usd = None

    def correct(self, lease: Lease, bill: Bill) -> None:
        """Enter a lease's bill in place of the one that it has, if it has one."""
        self._bills.pop(lease.lease_id, None)
        self.add(lease, bill)

    def add_transfer(self, transfer: Transfer, lease: Lease, usd: float) -> None:
        """Enter what moving data to a machine cost."""
        self._transfers.append((transfer, lease, usd))
        self._total_usd = None

    @property
    def lines(self) -> tuple[LedgerLine, ...]:
        """All entries. Made when asked for: most backtests want only the sums."""
        lines = []
        for lease, bill in self._bills.values():
            market = str(lease.market)
            lines += [
                LedgerLine(
                    LineKind.CHARGE,
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
                        LineKind.REFUND,
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
                LineKind.EGRESS,
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

    def has(self, lease_id: int) -> bool:
        """Return whether a lease's bill is entered."""
        return lease_id in self._bills

    def usd_of(self, lease_id: int) -> float:
        """Rental cost of one lease, net of its refund, USD; 0 if no bill is entered."""
        return self._bills[lease_id][1].usd if lease_id in self._bills else 0.0

    def refund_of(self, lease_id: int) -> float:
        """Refund of one lease, USD; 0 if no bill is entered."""
        return self._bills[lease_id][1].refund_usd if lease_id in self._bills else 0.0

    @property
    def total_usd(self) -> float:
        """Total cost, USD, net of refunds, egress included."""
        # Asked for at each decision, and changed by the end of a lease alone.
        if self._total_usd is None:
            bills = (bill.usd for _, bill in self._bills.values())
            self._total_usd = math.fsum([*bills, *(usd for _, _, usd in self._transfers)])
        return self._total_usd

    @property
    def egress_usd(self) -> float:
        """Cost of moving data between regions and clouds, USD."""
        return math.fsum(usd for _, _, usd in self._transfers)

    @property
    def refund_usd(self) -> float:
        """Total of all refunds, USD."""
        return math.fsum(bill.refund_usd for _, bill in self._bills.values())

    def to_frame(self) -> pd.DataFrame:
        """The lines as a table, times as UTC datetimes."""
        import pandas as pd

        frame = pd.DataFrame(
            [[getattr(line, name) for name in LedgerLine.__slots__] for line in self.lines],
            columns=list(LedgerLine.__slots__),
        )
        for name in ("start", "end"):
            frame[name] = [from_epoch_s(time_s) for time_s in frame.pop(f"{name}_s")]
        return frame
