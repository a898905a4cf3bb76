"""An engine's state as plain values: all that a controller needs to go on where another was killed."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ebbtide.engine.engine import Engine
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Cargo, Transfer
from ebbtide.market.billing import Bill, Charge
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market, Place
from ebbtide.policies.api.events import Event, Wake

_LINKED = {"job", "leases", "saved_at", "transfers", "steps_on"}


def snapshot(engine: Engine) -> dict[str, Any]:
    """What `take_on` needs; JSON can hold it, infinities included."""
    accounts = engine._accounts
    return {
        "started_s": engine._started_s,
        "memory": engine.memory,
        "leases": [lease_values(lease) for lease in engine._leases],
        "open": list(engine._open),
        "for_job": [list(pair) for pair in engine._for_job.items()],
        "kept": sorted(engine._kept),
        "grown": sorted(engine._grown),
        "draining": [lease.lease_id for lease in engine._draining],
        "timers": [[time_s, number, str(wake), lease_id] for time_s, number, wake, lease_id in engine._timers],
        "decisions": engine._decisions,
        "timers_set": engine._timers_set,
        "gave_up": engine._gave_up,
        "jobs": [_progress(job) for job in engine.jobs],
        "bills": [[lease.lease_id, asdict(bill)] for lease, bill in accounts.ledger._bills],
        "transfers": [
            [_transfer(transfer), lease.lease_id, usd] for transfer, lease, usd in accounts.ledger._transfers
        ],
        "entered": [list(pair) for pair in accounts._transfers_entered.items()],
        "list_prices": [[_market(market), usd] for market, usd in accounts._list_prices.items()],
    }


def take_on(engine: Engine, kept: dict[str, Any]) -> None:
    """Bring a new engine of the same jobs to where a snapshot was taken."""
    engine._started_s = kept["started_s"]
    engine.memory = kept["memory"]
    leases = engine._leases = [lease_of(values) for values in kept["leases"]]
    engine._open = {lease_id: leases[lease_id] for lease_id in kept["open"]}
    engine._for_job = dict(kept["for_job"])
    engine._kept, engine._grown = set(kept["kept"]), set(kept["grown"])
    engine._draining = [leases[lease_id] for lease_id in kept["draining"]]
    engine._timers = [(time_s, number, Wake(wake), lease_id) for time_s, number, wake, lease_id in kept["timers"]]
    engine._decisions, engine._timers_set = kept["decisions"], kept["timers_set"]
    engine._gave_up = kept["gave_up"]
    for job, values in zip(engine.jobs, kept["jobs"], strict=True):
        _take_on_progress(job, values, leases)
    engine._unfinished = sum(not job.is_finished for job in engine.jobs)
    accounts = engine._accounts
    for lease_id, bill in kept["bills"]:
        charges = tuple(Charge(**charge) for charge in bill["charges"])
        accounts.ledger.add(leases[lease_id], Bill(charges, bill["refund_usd"]))
    for transfer, lease_id, usd in kept["transfers"]:
        accounts.ledger.add_transfer(_transfer_of(transfer), leases[lease_id], usd)
    accounts._transfers_entered = dict(kept["entered"])
    accounts._list_prices = {Market(*market): usd for market, usd in kept["list_prices"]}


def lease_values(lease: Lease) -> dict[str, Any]:
    """A lease as plain values."""
    values = {field.name: getattr(lease, field.name) for field in fields(lease)}
    return values | {"market": _market(lease.market), "state": str(lease.state)}


def lease_of(values: dict[str, Any]) -> Lease:
    """A lease from plain values."""
    return Lease(**{**values, "market": Market(*values["market"]), "state": LeaseState(values["state"])})


def event_values(event: Event) -> dict[str, Any]:
    """An event as plain values."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return values | {"wake": str(event.wake), "market": _market(event.market) if event.market else None}


def event_of(values: dict[str, Any]) -> Event:
    """An event from plain values."""
    market = Market(*values["market"]) if values["market"] else None
    return Event(**{**values, "wake": Wake(values["wake"]), "market": market})


def _progress(job: JobProgress) -> dict[str, Any]:
    plain = {field.name: getattr(job, field.name) for field in fields(job) if field.name not in _LINKED}
    return plain | {
        "leases": [lease.lease_id for lease in job.leases],
        "saved_at": list(job.saved_at) if job.saved_at else None,
        "transfers": [_transfer(transfer) for transfer in job.transfers],
        "steps_on": [list(pair) for pair in job.steps_on.items()],
    }


def _take_on_progress(job: JobProgress, values: dict[str, Any], leases: list[Lease]) -> None:
    for name, value in values.items():
        if name not in _LINKED:
            setattr(job, name, value)
    job.leases = [leases[lease_id] for lease_id in values["leases"]]
    job.saved_at = Place(*values["saved_at"]) if values["saved_at"] else None
    job.transfers = [_transfer_of(transfer) for transfer in values["transfers"]]
    job.steps_on = dict(values["steps_on"])


def _transfer(transfer: Transfer) -> dict[str, Any]:
    values = {field.name: getattr(transfer, field.name) for field in fields(transfer)}
    return values | {
        "cargo": str(transfer.cargo),
        "source": list(transfer.source),
        "destination": list(transfer.destination),
    }


def _transfer_of(values: dict[str, Any]) -> Transfer:
    return Transfer(
        **{
            **values,
            "cargo": Cargo(values["cargo"]),
            "source": Place(*values["source"]),
            "destination": Place(*values["destination"]),
        }
    )


def _market(market: Market) -> list[str]:
    return [market.cloud, market.region, market.zone, market.instance_type, market.product]
