"""A live run as tables: from a controller that runs, or from what one has kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ebbtide.execution.engine_snapshot import lease_of
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.leases import Lease
from ebbtide.utc import HOUR_S, iso
from ebbtide.workloads.sweep import Sweep


@dataclass(frozen=True)
class Money:
    """What a run has cost.

    Attributes:
        paid_usd: Of machines that have ended, net of refunds.
        refund_usd: Given back of what was charged.
        on_demand_usd: What the same machine time costs at list prices.
    """

    paid_usd: float
    refund_usd: float
    on_demand_usd: float


def money_of(kept: Mapping[str, Any], catalogue: Catalogue) -> Money:
    """From a controller's snapshot: prices as they were when they were charged."""
    bills = kept["engine"]["bills"]
    paid = math.fsum(
        math.fsum(charge["usd"] for charge in bill["charges"]) - bill["refund_usd"] for _, bill in bills
    )
    refund = math.fsum(bill["refund_usd"] for _, bill in bills)
    leases = [lease_of(values) for values in kept["engine"]["leases"]]
    return Money(paid, refund, math.fsum(_on_demand_usd(leases[lease_id], catalogue) for lease_id, _ in bills))


def _on_demand_usd(lease: Lease, catalogue: Catalogue) -> float:
    listed = catalogue.on_demand_usd_per_hour(lease.market, lease.requested_s)
    hours = (lease.ended_s - lease.started_s) / HOUR_S
    return 0.0 if listed is None or math.isnan(hours) else hours * listed


def run_table(run: str, sweep: Sweep, kept: Mapping[str, Any], catalogue: Catalogue) -> RenderableType:
    """Trials, machines, and what was spent and saved."""
    engine, provider = kept["engine"], kept["provider"]
    table = Table(title=run, box=SIMPLE_HEAD)
    metric_heading = sweep.metric or "metric"
    for heading in ("trial", "setting", "steps", "saved", metric_heading, "state", "machine"):
        table.add_column(heading, justify="right" if heading in ("steps", "saved", metric_heading) else "left")
    leases = [lease_of(values) for values in engine["leases"]]
    for trial, job, live in zip(sweep.trials(), engine["jobs"], provider["trials"], strict=True):
        on = None if live["on"] is None else leases[live["on"]]
        metrics = dict(live["metrics"])
        metric = f"{metrics[max(metrics)]:.4g}" if metrics else "-"
        table.add_row(
            str(trial.number), trial.name, f"{job['steps_done']:g}", f"{job['steps_saved']:g}", metric,
            _state(job, live, on), "" if on is None else str(on.market),
        )  # fmt: skip
    money = money_of(kept, catalogue)
    revoked = sum(lease.state == "revoked" for lease in leases)
    rented = sum(lease.is_open for lease in leases)
    saved = 1.0 - money.paid_usd / money.on_demand_usd if money.on_demand_usd else 0.0
    line = Text(
        f"{rented} machines rented, {revoked} revoked; of those that ended: paid {money.paid_usd:.4f} USD, "
        f"{money.refund_usd:.4f} USD refunded, {saved:.0%} less than on demand"
    )
    return Group(table, line)


def _state(job: Mapping[str, Any], live: Mapping[str, Any], on: Lease | None) -> str:
    if not math.isnan(job["finished_s"]):
        return live["problem"] or ("ended early" if job["stopped"] else f"done {iso(job['finished_s'])}")
    if on is not None:
        return "leaving" if live["leaving"] or on.state == "noticed" else "training"
    return "starting" if live["assigned"] else "waiting"
