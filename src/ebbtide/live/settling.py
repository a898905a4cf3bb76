"""What a run's machines cost that were ended without a controller: none was there to write it down."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from ebbtide._utc import HOUR_S
from ebbtide.engine.snapshot import lease_of
from ebbtide.live.clouds.local.server import CLOCK, bills_of
from ebbtide.live.journal import Journal
from ebbtide.live.settings import RunFolder

# Real seconds for which machines run on without their controller at most: on EC2 by default.
ORPHANS_LIVE_S = 900.0


def settled_figures(folder: RunFolder) -> dict[str, Any] | None:
    """The figures of a run whose machines have all ended; None: its controller wrote everything down itself.

    Args:
        folder: The run's; its controller has ended.
    """
    journal = Journal(folder.journal, read_only=True)
    kept, figures = journal.state("run"), journal.state("figures") or {}
    if kept is None or not any(lease_of(values).is_open for values in kept["engine"]["leases"]):
        return None
    bills = {bill["token"]: float(bill["usd"]) for bill in bills_of(folder.path / "cloud")}
    return figures | {
        "spent_usd": settled_usd(folder.settings.run, kept, figures, bills, _later_s(folder, figures)),
        "usd_per_hour": 0.0,
    }


def settled_usd(
    run: str, kept: Mapping[str, Any], figures: Mapping[str, Any], bills: Mapping[str, float], later_s: float
) -> float:
    """What all machines of a run cost: by the ledger, by the cloud's bills, else by the last known rate.

    Args:
        run: Its id.
        kept: The controller's snapshot.
        figures: What it last said of its open leases.
        bills: The cloud's own record, net USD by machine.
        later_s: For how long open leases cost on after the controller's last figures, by the market's clock.
    """
    ledger = {
        lease_id: math.fsum(charge["usd"] for charge in bill["charges"]) - float(bill["refund_usd"])
        for lease_id, bill in kept["engine"]["bills"]
    }
    tokens = {f"{run}-m{lease_id:04d}" for lease_id in ledger}
    known_usd = math.fsum([*ledger.values(), *(usd for token, usd in bills.items() if token not in tokens)])
    leases = [lease_of(values) for values in kept["engine"]["leases"]]
    unbilled = [
        lease
        for lease in leases
        if lease.is_open and lease.is_charged and f"{run}-m{lease.lease_id:04d}" not in bills
    ]
    if not unbilled:
        return known_usd
    rate = float(figures.get("usd_per_hour") or 0.0)
    return max(known_usd, float(figures.get("spent_usd") or 0.0) + rate * max(later_s, 0.0) / HOUR_S)


def _later_s(folder: RunFolder, figures: Mapping[str, Any]) -> float:
    """Until the local cloud's clock stopped; elsewhere until now, or until machines ended by themselves."""
    if not figures:
        return 0.0
    try:
        clock = json.loads((folder.path / "cloud" / CLOCK).read_text(encoding="utf-8"))
        return float(clock["now_s"]) - float(figures["time_s"])
    except (OSError, ValueError, KeyError, TypeError):
        real_s = min(max(time.time() - float(figures["at_epoch_s"]), 0.0), ORPHANS_LIVE_S)
        return real_s * float(figures.get("speed", 1.0))
