"""Cost of a live run, compared with the on-demand cost of the work that was kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.base.utc import HOUR_S
from ebbtide.clouds.local.server import CLOCK, bills_of
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.kinds.state import Stretch, decode_stretches, present_s
from ebbtide.controller.machine_list import machine_id
from ebbtide.controller.snapshots import RunSnapshot, RunSpending, first_machine_of
from ebbtide.engine.snapshot import lease_of
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease

# If the on-demand price of the kept work is a smaller share of the amount paid, a percentage is meaningless.
_LEAST_KEPT_SHARE = 0.05


@dataclass(frozen=True)
class Money:
    """Cost of a run, and of the work that was kept or lost.

    Attributes:
        paid_usd: USD paid, net of refunds; running machines count as if they were released now.
        refund_usd: USD refunded of what was charged.
        usd_per_hour: Present cost in USD per hour; 0: no machine runs.
        on_demand_usd: List price in USD of the machine time whose work was kept: the cost of training alone, never
            interrupted, on the same machines; a training that shares a machine counts with its share.
        lost_s: Seconds of machine time, by the market's clock, whose work was lost, boots and notices included.
        lost_usd: Cost of that lost time in USD.
    """

    paid_usd: float
    refund_usd: float
    usd_per_hour: float
    on_demand_usd: float
    lost_s: float
    lost_usd: float

    @property
    def saved_share(self) -> float | None:
        """Share of the on-demand price that was saved; negative: more was paid. None: no work was kept."""
        return 1.0 - self.paid_usd / self.on_demand_usd if self.on_demand_usd > 0 else None

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, *, simulated: bool = False) -> str:
        """Cost and savings in words; `simulated`: a market was replayed, and no money was spent."""
        words = f"paid {self.paid_usd:.4f} USD{' (simulated)' if simulated else ''}"
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
    kept: RunSnapshot,
    catalogue: Catalogue,
    figures: RunSpending | None = None,
    *,
    later_s: float = 0.0,
) -> Money:
    """Compute the cost of a run from its controller's snapshot, at the prices that were charged.

    Args:
        kept: The controller's snapshot, as the journal has it.
        catalogue: List prices by market.
        figures: The controller's last figures on open leases; None: those are left out.
        later_s: Age of these figures in seconds, by the market's clock.
    """
    bills = {lease_id: _usd(bill) for lease_id, bill in kept["engine"]["bills"]}
    leases = [lease_of(values) for values in kept["engine"]["leases"]]
    refund = math.fsum(bill["refund_usd"] for _, bill in kept["engine"]["bills"])
    paid, rate = math.fsum(bills.values()), 0.0
    if figures is not None and figures["spent_usd"] is not None:
        rate = float(figures["usd_per_hour"] or 0.0)
        paid = max(float(figures["spent_usd"]), paid) + rate * max(later_s, 0.0) / HOUR_S
    # Each training counts with its share of a machine, so that no second counts twice.
    stretches = [
        (trial["share"], stretch)
        for trial in kept["provider"]["trials"]
        for stretch in decode_stretches(trial["stretches"])
    ]
    now_s = figures["time_s"] if figures else math.nan
    under_way = [
        (leases[lease_id], trial["share"] * duration_s)
        for trial in kept["provider"]["trials"]
        for lease_id, duration_s in present_s(trial, now_s).items()
    ]
    on_demand = [
        _listed(leases[stretch.lease_id], share * stretch.kept_s, catalogue) for share, stretch in stretches
    ]
    on_demand += [_listed(lease, duration_s, catalogue) for lease, duration_s in under_way if duration_s > 0]
    lost_s = _lost_s(stretches, leases)
    lost_usd = math.fsum(time_s * _usd_per_s(leases[lease_id], bills) for lease_id, time_s in lost_s.items())
    return Money(paid, refund, rate, math.fsum(on_demand), math.fsum(lost_s.values()), lost_usd)


def seconds(duration_s: float) -> str:
    """A duration as text, in seconds, minutes or hours as suits its length."""
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
    """Cost of a lease in USD per second; 0 for one that still runs, whose bill is not known."""
    duration_s = lease.ended_s - lease.started_s
    return bills[lease.lease_id] / duration_s if lease.lease_id in bills and duration_s > 0 else 0.0


def _lost_s(stretches: Sequence[tuple[float, Stretch]], leases: Sequence[Lease]) -> dict[int, float]:
    """Seconds whose work was lost, by lease id, from pairs of a training's share of a machine and its time there.

    Time before and after training (boot, notice) served the work done on the machine, so the same share of it is
    lost.
    """
    found: dict[int, float] = {}
    for lease_id in sorted({stretch.lease_id for _, stretch in stretches}):
        there = [(share, stretch) for share, stretch in stretches if stretch.lease_id == lease_id]
        lost_s = math.fsum(share * stretch.lost_s for share, stretch in there)
        trained_s = math.fsum(share * stretch.duration_s for share, stretch in there)
        lived_s = leases[lease_id].ended_s - leases[lease_id].started_s
        has_ended = lived_s > trained_s > 0.0
        found[lease_id] = lost_s * lived_s / trained_s if has_ended else lost_s
    return found


def settled_figures(folder: RunFolder) -> RunSpending | None:
    """Final figures of a run whose machines ended without a controller that could write them.

    Args:
        folder: Folder of the run, whose controller and machines have ended.

    Returns:
        The figures; None: the controller itself wrote the end of every machine.
    """
    found = orphans_of(folder)
    return None if found is None else {**found[0], "usd_per_hour": 0.0}


def orphans_of(folder: RunFolder) -> tuple[RunSpending, frozenset[int]] | None:
    """Compute the cost of machines left without a controller, until they were ended or end by themselves.

    Args:
        folder: Folder of the run, whose controller has ended without ending its machines.

    Returns:
        Figures up to now, and the ids of the leases that have ended since the controller last wrote; None: it had
        no open lease then.
    """
    settings, journal = folder.settings, journal_of(folder, read_only=True)
    with journal.connected():
        kept, figures = journal.run(decisions=False, metrics=False), journal.figures()
    leases = [lease_of(values) for values in kept["engine"]["leases"]] if kept is not None else []
    still_open = {lease.lease_id for lease in leases if lease.is_open}
    if kept is None or figures is None or not still_open:
        return None
    bills = {bill["token"]: float(bill["usd"]) for bill in bills_of(folder.path / "cloud")}
    spent_usd = settled_usd(settings.run, kept, figures, bills, _later_s(folder, settings, figures))
    first = first_machine_of(kept)
    ended = frozenset(each for each in still_open if machine_id(settings.run, first + each) in bills)
    rate = 0.0 if ended == still_open else figures["usd_per_hour"]
    paid = {lease_id: bills[machine_id(settings.run, first + lease_id)] for lease_id in ended}
    unpaid = {lease_id: usd for lease_id, usd in figures["open_usd"] if lease_id not in paid}
    # Only the total cost of leases without a bill is known: split it in proportion to their last figures.
    left_usd = spent_usd - math.fsum([*paid.values(), *(_usd(bill) for _, bill in kept["engine"]["bills"])])
    known_usd = math.fsum(unpaid.values())
    if known_usd > 0.0:
        unpaid = {lease_id: max(left_usd, 0.0) * usd / known_usd for lease_id, usd in unpaid.items()}
    open_usd = sorted([*paid.items(), *unpaid.items()])
    return {**figures, "spent_usd": spent_usd, "usd_per_hour": rate, "open_usd": open_usd}, ended


def settled_usd(
    run: str, kept: RunSnapshot, figures: RunSpending, bills: Mapping[str, float], later_s: float
) -> float:
    """Cost of all machines of a run in USD: by the ledger, else the cloud's bills, else the last known rate.

    Args:
        run: Id of the run.
        kept: The controller's snapshot, as the journal has it.
        figures: The controller's last figures on open leases.
        bills: The cloud's own bills, net USD by machine id.
        later_s: Seconds, by the market's clock, for which open leases cost money after these figures.
    """
    ledger = {
        lease_id: math.fsum(charge["usd"] for charge in bill["charges"]) - float(bill["refund_usd"])
        for lease_id, bill in kept["engine"]["bills"]
    }
    first = first_machine_of(kept)
    # The cloud also has bills for machines of a journal that was lost.
    others = {*(first + lease_id for lease_id in ledger), *range(first)}
    tokens = {machine_id(run, number) for number in others}
    known_usd = math.fsum([*ledger.values(), *(usd for token, usd in bills.items() if token not in tokens)])
    leases = [lease_of(values) for values in kept["engine"]["leases"]]
    unbilled = [
        lease
        for lease in leases
        if lease.is_open and lease.is_charged and machine_id(run, first + lease.lease_id) not in bills
    ]
    if not unbilled:
        return known_usd
    rate = figures["usd_per_hour"] or 0.0
    return max(known_usd, (figures["spent_usd"] or 0.0) + rate * max(later_s, 0.0) / HOUR_S)


def _later_s(folder: RunFolder, settings: LiveSettings, figures: RunSpending) -> float:
    """Market seconds from the last figures until the local cloud's clock stopped; for other clouds until now, or
    until machines without a controller end by themselves."""
    try:
        clock = json.loads((folder.path / "cloud" / CLOCK).read_text(encoding="utf-8"))
        return float(clock["now_s"]) - float(figures["time_s"])
    except (OSError, ValueError, KeyError, TypeError):
        real_s = min(max(time.time() - float(figures["at_epoch_s"]), 0.0), settings.controller_limit_s)
        return real_s * float(figures.get("speed", 1.0))
