"""What a live run has cost, against what the work that was kept would have cost on demand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide._utc import HOUR_S
from ebbtide.engine.snapshot import lease_of
from ebbtide.live.stretches import Stretch, decode_stretches
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease

# Of what was paid: where the work that was kept is worth less on demand, a percentage says nothing.
_LEAST_KEPT_SHARE = 0.05


@dataclass(frozen=True)
class Money:
    """What a run has cost.

    Attributes:
        paid_usd: Net of refunds, for machines that still run as if they were given back now.
        refund_usd: Given back of what was charged.
        usd_per_hour: What the machines that run now cost on; 0: none runs.
        on_demand_usd: List price of the machine time whose work was kept: what training alone, never disturbed,
            would have cost on the same machines.
        lost_s: Machine time, by the market's clock, whose work was thrown away; boots and notices included.
        lost_usd: What that cost.
    """

    paid_usd: float
    refund_usd: float
    usd_per_hour: float
    on_demand_usd: float
    lost_s: float
    lost_usd: float

    @property
    def saved_share(self) -> float | None:
        """Of the on-demand price, what was not paid; negative: more was. None: no work was kept."""
        return 1.0 - self.paid_usd / self.on_demand_usd if self.on_demand_usd > 0 else None

    def __str__(self) -> str:
        words = f"paid {self.paid_usd:.4f} USD"
        if self.refund_usd:
            words += f" ({self.refund_usd:.4f} USD refunded)"
        share = self.saved_share
        if share is None:
            words += "; no work was kept so far"
        elif self.on_demand_usd < _LEAST_KEPT_SHARE * self.paid_usd:
            words += "; hardly any work was kept so far"
        else:
            way = f"{share:.0%} less" if share >= 0 else f"{-share:.0%} more"
            words += f", {way} than on demand, which takes {self.on_demand_usd:.4f} USD for the work that was kept"
        if self.lost_s >= 1.0:
            words += f"; thrown away {seconds(self.lost_s)} of machine time, {self.lost_usd:.4f} USD"
        return words


def money_of(
    kept: Mapping[str, Any],
    catalogue: Catalogue,
    figures: Mapping[str, Any] | None = None,
    *,
    later_s: float = 0.0,
) -> Money:
    """From a controller's snapshot: prices as they were when they were charged.

    Args:
        kept: The snapshot.
        catalogue: List prices.
        figures: What the controller last said of its open leases; None: they are left out.
        later_s: How long ago that was, by the market's clock.
    """
    bills = {lease_id: _usd(bill) for lease_id, bill in kept["engine"]["bills"]}
    leases = [lease_of(values) for values in kept["engine"]["leases"]]
    refund = math.fsum(bill["refund_usd"] for _, bill in kept["engine"]["bills"])
    paid, rate = math.fsum(bills.values()), 0.0
    if figures is not None and figures.get("spent_usd") is not None:
        rate = float(figures["usd_per_hour"] or 0.0)
        paid = max(float(figures["spent_usd"]), paid) + rate * max(later_s, 0.0) / HOUR_S
    stretches = [
        stretch for trial in kept["provider"]["trials"] for stretch in decode_stretches(trial.get("stretches", ()))
    ]
    now_s = float((figures or {}).get("time_s", math.nan))
    under_way = [
        (leases[trial["on"]], now_s - trial["began_s"])
        for trial in kept["provider"]["trials"]
        if trial["on"] is not None and "began_s" in trial
    ]
    on_demand = [_listed(leases[stretch.lease_id], stretch.kept_s, catalogue) for stretch in stretches]
    on_demand += [_listed(lease, duration_s, catalogue) for lease, duration_s in under_way if duration_s > 0]
    lost_s = _lost_s(stretches, leases)
    lost_usd = math.fsum(time_s * _usd_per_s(leases[lease_id], bills) for lease_id, time_s in lost_s.items())
    return Money(paid, refund, rate, math.fsum(on_demand), math.fsum(lost_s.values()), lost_usd)


def seconds(duration_s: float) -> str:
    """A duration in the unit that suits it."""
    if duration_s < 90:
        return f"{duration_s:.0f} s"
    if duration_s < 5400:
        return f"{duration_s / 60:.0f} min"
    return f"{duration_s / HOUR_S:.1f} h"


def _usd(bill: Mapping[str, Any]) -> float:
    return math.fsum(charge["usd"] for charge in bill["charges"]) - float(bill["refund_usd"])


def _listed(lease: Lease, duration_s: float, catalogue: Catalogue) -> float:
    listed = catalogue.on_demand_usd_per_hour(lease.market, lease.requested_s)
    return 0.0 if listed is None else duration_s / HOUR_S * listed


def _usd_per_s(lease: Lease, bills: Mapping[int, float]) -> float:
    """What a second of it cost; of one that still runs what all others did in the mean is not told of it: 0."""
    duration_s = lease.ended_s - lease.started_s
    return bills[lease.lease_id] / duration_s if lease.lease_id in bills and duration_s > 0 else 0.0


def _lost_s(stretches: Sequence[Stretch], leases: Sequence[Lease]) -> dict[int, float]:
    """Seconds thrown away, by lease.

    A machine's boot, and its time from the notice to its end, served the work that was done on it: they are as
    much thrown away as that is.
    """
    found: dict[int, float] = {}
    for lease_id in sorted({stretch.lease_id for stretch in stretches}):
        there = [stretch for stretch in stretches if stretch.lease_id == lease_id]
        lost_s = math.fsum(stretch.lost_s for stretch in there)
        trained_s = math.fsum(stretch.duration_s for stretch in there)
        lived_s = leases[lease_id].ended_s - leases[lease_id].started_s
        has_ended = lived_s > trained_s > 0.0
        found[lease_id] = lost_s * lived_s / trained_s if has_ended else lost_s
    return found
