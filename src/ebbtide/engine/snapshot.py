"""An engine's state as a typed, versioned record of plain values: what a controller restores after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from typing_extensions import TypedDict

from ebbtide.base.json_values import check_numbers
from ebbtide.engine.decisions import decision_of, decision_values
from ebbtide.engine.engine import Engine
from ebbtide.engine.ledger import Ledger
from ebbtide.engine.policy_answers import mistake
from ebbtide.errors import InputError
from ebbtide.jobs.progress import JobProgress
from ebbtide.jobs.transfers import Cargo, Transfer
from ebbtide.market.billing import Bill, Charge
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market, Place
from ebbtide.policies.api.events import Event, Wake

# Of the record below. Counted up whenever an older Ebbtide would misread it; `migrated` knows all older ones.
SNAPSHOT_VERSION = 2

_CHARGED = tuple(each.name for each in fields(Charge))
_LINKED = {"job", "leases", "saved_at", "transfers", "steps_on"}
# What every version wrote of a job's progress.
_OF_PROGRESS = (
    *("leases", "saved_at", "transfers", "steps_on", "stopped"),
    *("steps_saved", "steps_done", "steps_run", "steps_lost", "checkpoints", "finished_s"),
)
_OF_LEASE = ("state", "started_s", "running_s", "revoke_at_s", "ended_s")
# A job's leases are replaced, never changed.
_PLAIN_OF_JOB = attrgetter(
    *(each.name for each in fields(JobProgress) if each.name not in {"job", "transfers", "steps_on"})
)


class EngineSnapshot(TypedDict):
    """The state of an engine, its accounts and its ledger. JSON can hold it, infinities included.

    Attributes:
        version: Version of the record, `SNAPSHOT_VERSION`; records before the first version have none.
        started_s: When the run began, seconds since 1970; None before it did.
        memory: The policy's memory, plain values by name.
        leases: Every lease of the run by id, as `lease_values` gives it.
        open: Ids of the leases that are rented or on their way.
        for_job: Pairs of lease id and the id of the job that it was requested for.
        kept: Ids of leases that stay rented when that job is done.
        grown: Ids of jobs with a machine that has booted and is not assigned yet.
        draining: Ids of leases that are released once what runs on them is saved.
        timers: Per timer its time in seconds since 1970, its number, its wake and a lease id or -1.
        decisions: How often the policy was asked.
        timers_set: How many timers were ever set.
        gave_up: Why the run is being ended before all is done; empty: it is not.
        jobs: Progress of every job by id, as plain values.
        bills: Pairs of lease id and its bill.
        transfers: Per transfer that was charged its values, a lease id and its cost in USD.
        entered: Pairs of job id and how many of its transfers are in the ledger.
        list_prices: Pairs of market and on-demand price in USD per hour, as first looked up.
        decisions_made: Every decision that was kept, as `decision_values` gives it.
    """

    version: int
    started_s: float | None
    memory: dict[str, Any]
    leases: list[dict[str, Any]]
    open: list[int]
    for_job: list[tuple[int, int]]
    kept: list[int]
    grown: list[int]
    draining: list[int]
    timers: list[list[Any]]
    decisions: int
    timers_set: int
    gave_up: str
    jobs: list[dict[str, Any]]
    bills: list[list[Any]]
    transfers: list[list[Any]]
    entered: list[tuple[int, int]]
    list_prices: list[list[Any]]
    decisions_made: list[dict[str, Any]]


@dataclass(frozen=True)
class Items:
    """Things of one kind, each of which may be stored by itself, so that a write costs what has changed.

    Attributes:
        name: The field of the snapshot that they make.
        numbered: Each with the number that it keeps, in the snapshot's order.
        stamp: A value that differs, between two looks, whenever the thing has changed.
        encode: Plain values of a thing.
    """

    name: str
    numbered: Callable[[], Iterable[tuple[int, Any]]]
    stamp: Callable[[Any], Any]
    encode: Callable[[Any], Any]

    def values(self) -> list[Any]:
        """Plain values of all."""
        return [self.encode(item) for _, item in self.numbered()]


def items_of(engine: Engine) -> tuple[Items, ...]:
    """The parts of an engine's state that grow with the run."""
    ledger = engine._accounts.ledger
    return (
        Items("leases", lambda: enumerate(engine._leases), attrgetter(*_OF_LEASE), lease_values),
        Items("jobs", lambda: enumerate(engine.jobs), _stamp_of_job, _progress),
        Items("bills", lambda: ledger._bills.items(), lambda entered: entered, _entered_bill),
        Items("transfers", lambda: enumerate(ledger._transfers), lambda _: None, _entered_transfer),
        Items("decisions_made", lambda: enumerate(engine.made), lambda _: None, decision_values),
    )


def snapshot(engine: Engine) -> EngineSnapshot:
    """The engine's state, which `restore` brings a new engine of the same jobs to.

    Raises:
        PolicyError: The policy's memory holds something that JSON cannot.
    """
    return {**rest_of(engine), **{items.name: items.values() for items in items_of(engine)}}  # type: ignore[typeddict-item]


def rest_of(engine: Engine) -> dict[str, Any]:
    """An engine's state without what `items_of` gives.

    Raises:
        PolicyError: The policy's memory holds something that JSON cannot.
    """
    accounts = engine._accounts
    _check_memory(engine)
    return {
        "version": SNAPSHOT_VERSION,
        "started_s": engine._started_s,
        "memory": engine.memory,
        "open": list(engine._open),
        "for_job": list(engine._for_job.items()),
        "kept": sorted(engine._kept),
        "grown": sorted(engine._grown),
        "draining": list(engine._draining),
        "timers": [[time_s, number, str(wake), lease_id] for time_s, number, wake, lease_id in engine._timers],
        "decisions": engine._decisions,
        "timers_set": engine._timers_set,
        "gave_up": engine._gave_up,
        "entered": [(job_id, count) for job_id, count in accounts._transfers_entered.items() if count],
        "list_prices": [[_market(market), usd] for market, usd in accounts._list_prices.items()],
    }


def _stamp_of_job(job: JobProgress) -> tuple[Any, ...]:
    # Steps by lease change with those run, and transfers are only added.
    return (*_PLAIN_OF_JOB(job), len(job.transfers))


def _entered_bill(entered: tuple[Lease, Bill]) -> list[Any]:
    lease, bill = entered
    return [lease.lease_id, _bill(bill)]


def _entered_transfer(entered: tuple[Transfer, Lease, float]) -> list[Any]:
    transfer, lease, usd = entered
    return [_transfer(transfer), lease.lease_id, usd]


def _bill(bill: Bill) -> dict[str, Any]:
    charges = [{name: getattr(charge, name) for name in _CHARGED} for charge in bill.charges]
    return {"charges": charges, "refund_usd": bill.refund_usd}


def _check_memory(engine: Engine) -> None:
    for key, value in engine.memory.items():
        try:
            json.dumps({key: value})
        except (TypeError, ValueError) as error:
            problem = (
                f"view.memory[{key!r}] holds what JSON cannot: {error}; a run that goes on after a restart needs "
                "plain values there: numbers, text, lists, mappings"
            )
            raise mistake(engine.policy, engine.view, problem) from None


def migrated(kept: Mapping[str, Any]) -> EngineSnapshot:
    """A snapshot of this version, from one of this or an older version.

    Raises:
        InputError: A newer Ebbtide wrote it.
    """
    version = kept.get("version", 0)
    if version > SNAPSHOT_VERSION:
        raise InputError(
            f"the engine's snapshot has version {version}, and this Ebbtide reads versions up to "
            f"{SNAPSHOT_VERSION}; upgrade ebbtide"
        )
    # Version 0 lacked the number alone, version 1 the decisions.
    return {"decisions_made": [], **kept, "version": SNAPSHOT_VERSION}  # type: ignore[typeddict-item]


def restore(engine: Engine, snapshot_values: Mapping[str, Any]) -> None:
    """Bring a new engine of the same jobs to where a snapshot was taken.

    Args:
        engine: An engine that has not run yet.
        snapshot_values: What `snapshot` gave, in this version of Ebbtide or an older one.

    Raises:
        InputError: A newer Ebbtide wrote the snapshot.
    """
    kept = migrated(snapshot_values)
    engine._started_s = kept["started_s"]
    engine.memory = kept["memory"]
    leases = engine._leases = [lease_of(values) for values in kept["leases"]]
    engine._open = {lease_id: leases[lease_id] for lease_id in kept["open"]}
    for lease_id, job_id in kept["for_job"]:
        engine._requested_for(lease_id, job_id)
    engine._kept, engine._grown = set(kept["kept"]), set(kept["grown"])
    engine._draining = {lease_id: leases[lease_id] for lease_id in kept["draining"]}
    engine._timers = [(time_s, number, Wake(wake), lease_id) for time_s, number, wake, lease_id in kept["timers"]]
    engine._decisions, engine._timers_set = kept["decisions"], kept["timers_set"]
    engine._gave_up = kept["gave_up"]
    for job, values in zip(engine.jobs, kept["jobs"], strict=True):
        _restore_progress(job, values)
        engine._put_on(job.job_id, [leases[lease_id] for lease_id in values["leases"]])
    engine._unfinished = {job.job_id for job in engine.jobs if not job.is_finished}
    accounts = engine._accounts
    _enter(accounts.ledger, kept, leases)
    accounts._transfers_entered = dict(kept["entered"])
    accounts._list_prices = {Market(*market): usd for market, usd in kept["list_prices"]}
    engine.keep_made(decision_of(values) for values in kept["decisions_made"])


def ledger_of(kept: EngineSnapshot) -> Ledger:
    """The ledger of a run from its snapshot."""
    ledger = Ledger()
    _enter(ledger, kept, [lease_of(values) for values in kept["leases"]])
    return ledger


def check(kept: EngineSnapshot) -> None:
    """Decode all that a snapshot has, to find damage.

    Raises:
        LookupError: Something is missing.
        TypeError: Something has another kind, or a name that is not known.
        ValueError: Something has a value that is not known.
    """
    ledger_of(kept)
    for part in (kept["leases"], kept["bills"], kept["jobs"], kept["decisions_made"]):
        check_numbers(part)
    for values in kept["decisions_made"]:
        decision_of(values)
    for values in kept["jobs"]:
        for name in _OF_PROGRESS:
            values[name]


def _enter(ledger: Ledger, kept: EngineSnapshot, leases: Sequence[Lease]) -> None:
    """Enter the bills and transfers of a snapshot into a ledger."""
    for lease_id, bill in kept["bills"]:
        charges = tuple(Charge(**charge) for charge in bill["charges"])
        ledger.add(leases[lease_id], Bill(charges, bill["refund_usd"]))
    for transfer, lease_id, usd in kept["transfers"]:
        ledger.add_transfer(_transfer_of(transfer), leases[lease_id], usd)


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


def _restore_progress(job: JobProgress, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name not in _LINKED:
            setattr(job, name, value)
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
