"""A live run's state as typed, versioned records of plain values: what its journal keeps and other programs read.

A run is its engine (`ebbtide.engine.snapshot`) and its provider; each part has a version of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ebbtide.controller.kinds.divergence import NEVER, Divergence
from ebbtide.controller.kinds.measured_speed import SpeedRecords
from ebbtide.controller.kinds.state import TrialRecord
from ebbtide.controller.leadership import NumberRecord
from ebbtide.controller.mailboxes import MailboxRecord, QuarantineRecord
from ebbtide.engine import snapshot as engines
from ebbtide.engine.snapshot import EngineSnapshot
from ebbtide.errors import InputError

# Version of the provider's record below, increased whenever an older Ebbtide would misread it; `migrated` knows
# all older versions.
PROVIDER_VERSION = 14


class ProviderSnapshot(TypedDict):
    """The state of the provider of real machines. JSON can hold it, infinities and NaN included.

    Attributes:
        version: Version of the record, `PROVIDER_VERSION`; records before the first version have none.
        trials: The training of each job, in the order of jobs.
        leases: Ids of the leases whose machines it rents or rented.
        mailboxes: Messages to and from each machine that was ever rented.
        launching: Ids of the leases whose request may not have reached the cloud.
        speeds: Measured speeds by job id, as text, and instance type.
        out: Events that the engine was not given yet, as `event_values` gives them.
        unended: Pairs of lease id and why the cloud refused to end its machine.
        unfit: Pairs of the lease ids of machines that are given back once no job is on them, and the reason.
        seen: Pairs of when the cloud last listed machines, seconds since 1970 by its clock, and their lease ids.
        reports_every_s: Pairs of the seconds after which agents report again, and the lease ids of their machines.
        numbers: Numbers of machines that this copy of the run was given.
        first_machine: Number of the first machine since the journal was lost; 0: it never was.
        quarantined: Number of messages that could not be read.
        quarantine: The first of these messages.
    """

    version: int
    trials: list[TrialRecord]
    leases: list[int]
    mailboxes: list[MailboxRecord]
    launching: list[int]
    speeds: SpeedRecords
    out: list[dict[str, Any]]
    unended: list[tuple[int, str]]
    unfit: list[tuple[int, str]]
    seen: list[tuple[float, list[int]]]
    reports_every_s: list[tuple[float, list[int]]]
    numbers: NumberRecord
    first_machine: int
    quarantined: int
    quarantine: list[QuarantineRecord]


class RunSnapshot(TypedDict):
    """The state of a run, as its controller keeps it.

    Attributes:
        engine: Leases, jobs and bills, and the memory of the policy.
        provider: Trainings, messages and measured speeds.
    """

    engine: EngineSnapshot
    provider: ProviderSnapshot


def first_machine_of(kept: RunSnapshot) -> int:
    """Number of the machine of the first lease: lower numbers belong to a journal that was lost."""
    provider: dict[str, Any] = {**kept.get("provider", {})}
    return int(provider.get("first_machine", 0))


class RunSpending(TypedDict):
    """Spending of a run so far, open leases included, for programs that show it.

    Attributes:
        time_s: Time of the figures by the cloud's clock, seconds since 1970.
        at_epoch_s: Time of the figures by the controller's clock, seconds since 1970.
        spent_usd: USD spent, open leases as if released now; None: prices are not known.
        usd_per_hour: Present cost rate in USD an hour; None: prices are not known.
        speed: Seconds of the cloud's clock in a real second.
        open_usd: Pairs of the id of an open lease and its cost in USD if it were released now.
    """

    time_s: float
    at_epoch_s: float
    spent_usd: float | None
    usd_per_hour: float | None
    speed: float
    open_usd: list[tuple[int, float]]


class OutcomeRecord(TypedDict):
    """Outcome of a run that has ended.

    Attributes:
        failed: Ids of the jobs whose training failed.
        finished: Whether every job was finished or stopped by its policy.
        gave_up: Reason why the run ended early; empty: it did not.
        start_s: Start of the run, seconds since 1970 by the cloud's clock.
        end_s: End of the run, seconds since 1970 by the cloud's clock.
        cost_usd: USD paid, net of refunds.
        refund_usd: USD refunded of what was charged.
        revocations: Number of machines that were revoked.
        checkpoints: Number of complete checkpoints of all jobs.
        steps_lost: Steps that were run and lost before they were saved.
    """

    failed: list[int]
    finished: bool
    gave_up: str
    start_s: float
    end_s: float
    cost_usd: float
    refund_usd: float
    revocations: int
    checkpoints: int
    steps_lost: float


_RUN, _SPENDING = TypeAdapter(RunSnapshot), TypeAdapter(RunSpending)


def check_run(kept: RunSnapshot) -> None:
    """Check that a run's state is what its record says.

    Raises:
        LookupError: Something in a lease, bill, job or decision is missing.
        TypeError: Something there has another kind.
        ValueError: Any other part is missing, or of another kind.
    """
    with _told_plainly():
        _RUN.validate_python(kept)
    engines.check(kept["engine"])


def spending_of(values: Any) -> RunSpending:
    """The figures of a run's spending from plain values.

    Raises:
        ValueError: A figure is missing, or no number.
    """
    with _told_plainly():
        # Former versions wrote neither.
        return _SPENDING.validate_python({"speed": 1.0, "open_usd": [], **values})


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Tell in one line which part of a record is not what was written."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def migrated(kept: dict[str, Any]) -> ProviderSnapshot:
    """A provider's snapshot of this version, from one of this or an older version.

    Args:
        kept: The snapshot as plain values; they are not changed.

    Raises:
        InputError: A newer Ebbtide wrote it.
    """
    version = kept.get("version", 0)
    if version > PROVIDER_VERSION:
        raise InputError(
            f"the provider's snapshot has version {version}, and this Ebbtide reads versions up to "
            f"{PROVIDER_VERSION}; upgrade ebbtide"
        )
    if version < 1:
        kept = _to_version_1(kept)
    if version < 2:
        kept = _to_version_2(kept)
    if version < 3:
        kept = _to_version_3(kept)
    if version < 4:
        kept = _to_version_4(kept)
    if version < 5:
        kept = _to_version_5(kept)
    if version < 6:
        kept = _to_version_6(kept)
    if version < 7:
        kept = _to_version_7(kept)
    if version < 8:
        kept = _to_version_8(kept)
    if version < 9:
        kept = _to_version_9(kept)
    if version < 10:
        kept = _to_version_10(kept)
    if version < 11:
        kept = _to_version_11(kept)
    if version < 12:
        kept = _to_version_12(kept)
    if version < 13:
        kept = _to_version_13(kept)
    return _to_version_14(kept) if version < 14 else kept  # type: ignore[return-value]


def migrated_run(kept: dict[str, Any]) -> RunSnapshot:
    """A run's state with both parts of this version, from parts of this or older versions.

    Raises:
        InputError: A newer Ebbtide wrote one of them.
    """
    return {"engine": engines.migrated(kept["engine"]), "provider": migrated(kept["provider"])}


def _to_version_14(kept: dict[str, Any]) -> dict[str, Any]:
    """Make one record of what is known of metrics that are not finite; 0 stood for no finite value, too."""

    def changed(trial: dict[str, Any]) -> dict[str, Any]:
        own = dict(trial)
        at, finite_at, gap = (own.pop(name) for name in ("diverged_at", "finite_at", "finite_gap"))
        not_finite_at = NEVER if at == 0 else max(at, 0)
        return own | {"divergence": asdict(Divergence(finite_at or NEVER, not_finite_at, gap))}

    return {**kept, "version": 14, "trials": list(map(changed, kept["trials"]))}


def _to_version_13(kept: dict[str, Any]) -> dict[str, Any]:
    """Add metrics that are not finite, which were not kept."""
    none = {"diverged_at": 0, "finite_at": 0, "finite_gap": 0}
    return {**kept, "version": 13, "trials": [{**trial, **none} for trial in kept["trials"]]}


def _to_version_12(kept: dict[str, Any]) -> dict[str, Any]:
    """Add machines that are to be given back, of which there were none."""
    return {**kept, "version": 12, "unfit": []}


def _to_version_11(kept: dict[str, Any]) -> dict[str, Any]:
    """Add the times between reports, which no agent promised."""
    return {**kept, "version": 11, "reports_every_s": []}


def _to_version_10(kept: dict[str, Any]) -> dict[str, Any]:
    """Add the first machine of a journal that was never lost."""
    return {**kept, "version": 10, "first_machine": 0}


def _to_version_9(kept: dict[str, Any]) -> dict[str, Any]:
    """Add the best checkpoint, which was not kept."""
    none = {"best_stored": math.nan, "best_stored_step": 0}
    return {**kept, "version": 9, "trials": [{**trial, **none} for trial in kept["trials"]]}


def _to_version_8(kept: dict[str, Any]) -> dict[str, Any]:
    """Add shares of machines: each trial filled its machine."""
    return {**kept, "version": 8, "trials": [{**trial, "share": 1.0} for trial in kept["trials"]]}


def _to_version_7(kept: dict[str, Any]) -> dict[str, Any]:
    """Add arrays and clusters, of which there were none."""
    alone: dict[str, Any] = {"attempt": 0, "tasks": [], "done": 0, "leaving": False, "began_s": math.nan}

    def trial(before: dict[str, Any]) -> dict[str, Any]:
        none: dict[str, Any] = {"tasks": None, "workers": [], "worker_attempt": 0, "worker_failures": 0}
        return {**before, **none, "members": [{**member, **alone} for member in before["members"]]}

    return {**kept, "version": 7, "trials": [trial(each) for each in kept["trials"]]}


def _to_version_6(kept: dict[str, Any]) -> dict[str, Any]:
    """Replace `on`, the one lease of a trial, by members."""
    new: dict[str, Any] = {"alone": False, "failure": None, "savers": []}

    def trial(before: dict[str, Any]) -> dict[str, Any]:
        values = {name: value for name, value in before.items() if name != "on"}
        member = {"rank": 0, "lease_id": before["on"], "ended": "", "saved": [], "resume": None}
        stretches = [{**each, "attempt": number} for number, each in enumerate(before["stretches"], 1)]
        return {**values, **new, "members": [member] * (before["on"] is not None), "stretches": stretches}

    return {**kept, "version": 6, "trials": [trial(each) for each in kept["trials"]]}


def _to_version_5(kept: dict[str, Any]) -> dict[str, Any]:
    """Add numbers of machines, which were not taken in storage."""
    return {**kept, "version": 5, "numbers": {"next": max(kept["leases"], default=-1) + 1, "epochs": []}}


def _to_version_4(kept: dict[str, Any]) -> dict[str, Any]:
    """Group leases by when they were last seen; each had a time of its own."""
    return {**kept, "version": 4, "seen": [(seen_s, [lease_id]) for lease_id, seen_s in kept["seen"]]}


def _to_version_3(kept: dict[str, Any]) -> dict[str, Any]:
    """Add stored checkpoints, unknown until the next one is stored; every resume step counts as known."""
    trials = [{**trial, "stored_number": 0, "resumed": trial.get("attempt", 0)} for trial in kept["trials"]]
    return {**kept, "version": 3, "trials": trials}


def _to_version_2(kept: dict[str, Any]) -> dict[str, Any]:
    """Rename an order's `type` to `kind`, and drop orders to leave that name no assignment."""

    def order(before: dict[str, Any]) -> dict[str, Any] | None:
        values = {"kind" if name == "type" else name: value for name, value in before.items()}
        return None if values["kind"] == "leave" and values.get("attempt") is None else values

    mailboxes = [
        {**box, "pending": [new for old in box["pending"] if (new := order(old)) is not None]}
        for box in kept["mailboxes"]
    ]
    return {**kept, "version": 2, "mailboxes": mailboxes, "quarantined": 0, "quarantine": []}


def _to_version_1(kept: dict[str, Any]) -> dict[str, Any]:
    """Name the fields of mailboxes, which were lists, and add fields of trials that may be missing."""
    of_trial: dict[str, Any] = {
        "stretches": [],
        "tail": [],
        "fields": [],
        "warnings": [],
        "began_s": math.nan,
        "began_epoch_s": math.nan,
        "began_number": 0,
        "began_step": 0.0,
        "has_saved": False,
        "lost_above": 0.0,
    }
    return {
        "version": 1,
        "trials": [{**of_trial, **trial} for trial in kept["trials"]],
        "leases": kept["leases"],
        "mailboxes": [
            {"lease_id": lease_id, "read": read, "received": received, "pending": pending}
            for lease_id, read, received, pending in kept["posts"]
        ],
        "launching": kept["launching"],
        "speeds": kept.get("speeds", {}),
        "out": kept["out"],
        "unended": kept.get("unended", []),
        "seen": kept.get("seen", []),
    }
