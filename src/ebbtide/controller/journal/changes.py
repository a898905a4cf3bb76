"""Changes of a run's state since it was last written, so that a write costs what changed, not what exists.

A run's state is a `RunSnapshot`. The parts of it that grow with the run, such as trials and leases, are written as
one record each; metrics, which are only added, one by one; the rest as one record for each side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ebbtide.controller.agent_provider import AgentProvider
from ebbtide.controller.snapshots import RunSnapshot
from ebbtide.engine.engine import Engine
from ebbtide.engine.snapshot import Items, items_of, rest_of

# Kinds of records: a policy's decisions, and the messages of machines.
DECISIONS, MAILBOXES = "decisions_made", "mailboxes"

# The side of a run's state that each kind belongs to; speeds are a mapping by job id, all others are lists.
_SIDES = {
    "leases": "engine",
    "jobs": "engine",
    "bills": "engine",
    "transfers": "engine",
    DECISIONS: "engine",
    "trials": "provider",
    MAILBOXES: "provider",
    "speeds": "provider",
}


@dataclass(frozen=True)
class StatePart:
    """A part of a run's state.

    Attributes:
        kind: `engine` or `provider` for all that has no record of its own; otherwise the kind of item.
        number: Number of the item among those of its kind, which never changes.
        content: Plain values.
    """

    kind: str
    number: int
    content: Any


@dataclass(frozen=True)
class Changes:
    """Part of a run's state that is to be written.

    Attributes:
        records: Records that are new, or replace those of the same kind and number.
        metrics: Job id, step and value of each metric that is new.
    """

    records: Sequence[StatePart] = ()
    metrics: Sequence[tuple[int, int, float]] = ()


NOTHING = Changes()


class ChangeLog:
    """Finds what has changed in a run since it was last written.

    Args:
        engine: The engine of the run.
        provider: Its provider.
    """

    def __init__(self, engine: Engine, provider: AgentProvider) -> None:
        self._engine, self._provider = engine, provider
        self._written: dict[str, dict[int, Any]] = {kind: {} for kind in _SIDES}
        self._metrics_written: dict[int, int] = {}
        # Found by the last call of `changes`, for `written` to note.
        self._stamps: dict[str, dict[int, Any]] = {}
        self._metrics: dict[int, int] = {}

    def changes(self) -> Changes:
        """Return the changes since the last call of `written`; at first the whole state."""
        self._stamps, self._metrics = {}, {}
        records = [
            StatePart("engine", 0, rest_of(self._engine)),
            StatePart("provider", 0, self._provider.rest()),
        ]
        for items in (*items_of(self._engine), *self._provider.items):
            records += self._changed(items)
        return Changes(records, self._new_metrics())

    def written(self) -> None:
        """Note that the last result of `changes` is written."""
        for kind, stamps in self._stamps.items():
            self._written[kind].update(stamps)
        self._metrics_written.update(self._metrics)

    def forget(self) -> None:
        """Note that everything written is lost, and has to be written again."""
        self._written = {kind: {} for kind in _SIDES}
        self._metrics_written = {}

    def _changed(self, items: Items) -> list[StatePart]:
        stamps = {}
        records = []
        written, stamp_of = self._written[items.name], items.stamp
        for number, item in items.numbered():
            stamp = stamp_of(item)
            if number not in written or written[number] != stamp:
                stamps[number] = stamp
                records.append(StatePart(items.name, number, items.encode(item)))
        self._stamps[items.name] = stamps
        return records

    def _new_metrics(self) -> list[tuple[int, int, float]]:
        rows = []
        for trial in self._provider.trials:
            job_id, count = trial.progress.job_id, len(trial.metrics)
            new = count - self._metrics_written.get(job_id, 0)
            if new:
                latest = list(islice(reversed(trial.metrics.items()), new))
                rows += [(job_id, step, value) for step, value in reversed(latest)]
                self._metrics[job_id] = count
        return rows


def split(run: RunSnapshot) -> Changes:
    """Split a run's whole state into the records and metrics to be written."""
    sides: Mapping[str, Any] = run
    records = [
        StatePart(side, 0, {name: each for name, each in sides[side].items() if _SIDES.get(name) != side})
        for side in ("engine", "provider")
    ]
    metrics: list[tuple[int, int, float]] = []
    for kind, side in _SIDES.items():
        for number, content in _numbered(kind, sides[side].get(kind, ())):
            if kind == "trials":
                content = dict(content)
                metrics += [(number, step, value) for step, value in content.pop("metrics", ())]
            records.append(StatePart(kind, number, content))
    return Changes(records, metrics)


def joined(records: Iterable[StatePart], metrics: Iterable[tuple[int, int, float]]) -> RunSnapshot | None:
    """Join records and metrics, in the order of writing, into a run's state; None: nothing was written."""
    sides: dict[str, Any] = {}
    of_kind: dict[str, list[StatePart]] = {kind: [] for kind in _SIDES}
    for record in records:
        if record.kind in _SIDES:
            of_kind[record.kind].append(record)
        else:
            sides[record.kind] = record.content
    if not sides:
        return None
    by_job = defaultdict[int, list[tuple[int, float]]](list)
    for job_id, step, value in metrics:
        by_job[job_id].append((step, value))
    for kind, side in _SIDES.items():
        # Bills stay in the order in which they were entered.
        found = of_kind[kind] if kind == "bills" else sorted(of_kind[kind], key=lambda record: record.number)
        if kind == "speeds":
            sides[side][kind] = {str(record.number): record.content for record in found}
        elif kind == "trials":
            sides[side][kind] = [{**each.content, "metrics": by_job.get(each.number, [])} for each in found]
        else:
            sides[side][kind] = [record.content for record in found]
    return sides  # type: ignore[return-value]


def _numbered(kind: str, values: Any) -> Iterable[tuple[int, Any]]:
    if kind == "speeds":
        return ((int(job_id), content) for job_id, content in dict(values).items())
    if kind == MAILBOXES:
        return ((content["lease_id"], content) for content in values)
    if kind == "bills":
        return ((content[0], content) for content in values)
    return enumerate(values)
