"""State of a run's machines, from listed instances and from operations on those no longer listed.

Google stops listing a machine once it was preempted or deleted, but lists the operations that created and ended it
for at least two weeks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ebbtide.clouds.cloud import Instance
from ebbtide.market.leases import LeaseState

PREEMPTED, INSERTED, DELETED = "compute.instances.preempted", "insert", "delete"

_BOOTING = frozenset({"PROVISIONING", "STAGING", "PENDING", "REPAIRING"})
# Still running: until the machine has stopped, its agent may be saving a checkpoint.
_STOPPING = frozenset({"STOPPING", "PENDING_STOP", "SUSPENDING"})

# Prefix of operations that Google starts itself; all but those in `_GOES_ON` end the machine.
_OWN = "compute.instances."
_GOES_ON = frozenset({f"{_OWN}automaticRestart", f"{_OWN}migrateOnHostMaintenance"})


@dataclass(frozen=True)
class Operations:
    """Operations on one instance, as the API lists them.

    Attributes:
        listed: All of them, in any order.
    """

    listed: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    @property
    def inserted(self) -> Mapping[str, Any] | None:
        """The operation that created it; None: there is none, or Google no longer lists it."""
        return self._first(INSERTED)

    @property
    def preempted(self) -> Mapping[str, Any] | None:
        """The operation that preempted it; None: there is none."""
        return self._first(PREEMPTED)

    @property
    def deleted(self) -> Mapping[str, Any] | None:
        """The first successful request to delete it, by Ebbtide or anybody else; None: there is none."""
        return next((one for one in self._of(DELETED) if not _problem(one)), None)

    @property
    def ended(self) -> Mapping[str, Any] | None:
        """The operation that ended it; None: there is none."""
        others = [one for one in self.listed if _ends(str(one.get("operationType"))) and not _problem(one)]
        return self.preempted or self.deleted or min(others, key=_began_s, default=None)

    def _first(self, kind: str) -> Mapping[str, Any] | None:
        return next(iter(self._of(kind)), None)

    def _of(self, kind: str) -> list[Mapping[str, Any]]:
        return sorted((one for one in self.listed if one.get("operationType") == kind), key=_began_s)


def machine_of(token: str, described: Mapping[str, Any] | None, operations: Operations) -> Instance | None:
    """Return the state of a machine.

    Args:
        token: Token that the machine was requested with.
        described: The instance, as the API describes it; None: it is not listed.
        operations: The operations on it.

    Returns:
        The machine; None: it is not listed, and no operation says why yet.
    """
    if described is not None:
        return _listed(token, described, operations)
    inserted = operations.inserted
    if inserted is None:
        return None
    base = Instance(token, LeaseState.STARTING, math.nan, math.nan, math.nan)
    problem = _problem(inserted)
    if problem:
        return replace(base, state=LeaseState.FAILED, ended_s=_ended_s(inserted), why=problem)
    if inserted.get("status") != "DONE":
        return base
    if operations.ended is None:
        return None
    started_s = _ended_s(inserted)
    return _over(replace(base, started_s=started_s, running_s=started_s), operations, _ended_s(operations.ended))


def _listed(token: str, described: Mapping[str, Any], operations: Operations) -> Instance:
    started_s = epoch_s(described.get("lastStartTimestamp") or described.get("creationTimestamp"))
    interfaces = described.get("networkInterfaces") or [{}]
    base = Instance(
        token,
        LeaseState.STARTING,
        math.nan,
        math.nan,
        math.nan,
        address=str(interfaces[0].get("networkIP") or ""),
    )
    status = described.get("status")
    if status in _BOOTING:
        return base
    running = replace(base, state=LeaseState.RUNNING, started_s=started_s, running_s=started_s)
    deleted = operations.deleted if operations.preempted is None else None
    if deleted is not None:
        return _over(running, operations, _ended_s(deleted))
    if status == "RUNNING" or status in _STOPPING:
        return running
    ended = operations.ended
    stopped_s = epoch_s(described.get("lastStopTimestamp"))
    if math.isnan(stopped_s):
        stopped_s = started_s if ended is None else _ended_s(ended)
    return _over(running, operations, stopped_s)


def _over(running: Instance, operations: Operations, ended_s: float) -> Instance:
    preempted, ended = operations.preempted, operations.ended
    state = LeaseState.RELEASED if preempted is None else LeaseState.REVOKED
    said = "" if ended is None else str(ended.get("statusMessage") or ended.get("operationType") or "")
    why = " ".join(said.split()) or ("preempted" if preempted is not None else "")
    return replace(running, state=state, ended_s=max(ended_s, running.started_s), why=why)


def _ends(kind: str) -> bool:
    return kind == "stop" or (kind.startswith(_OWN) and kind not in _GOES_ON)


def _problem(operation: Mapping[str, Any]) -> str:
    """Return why an operation failed, in one line; empty: it did not fail."""
    errors = (operation.get("error") or {}).get("errors") or ()
    told = [f"{one.get('code', '')}: {one.get('message', '')}".strip(": ") for one in errors]
    return " ".join("; ".join(told).split())


def _began_s(operation: Mapping[str, Any]) -> float:
    return epoch_s(operation.get("insertTime") or operation.get("startTime"))


def _ended_s(operation: Mapping[str, Any]) -> float:
    """Time at which an operation ended or, until then, was requested, in seconds since 1970; NaN: not known."""
    return epoch_s(operation.get("endTime") or operation.get("insertTime"))


def epoch_s(said: object) -> float:
    """Convert the API's time to seconds since 1970; NaN: it is missing or malformed."""
    try:
        return datetime.fromisoformat(str(said)).timestamp() if said else math.nan
    except ValueError:
        return math.nan
