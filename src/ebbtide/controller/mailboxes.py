"""The controller's side of the messages: orders to all machines of a run, and their reports, each taken once."""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import TypedDict

from ebbtide.agent.messages import MessageLog, Unreadable
from ebbtide.agent.protocol import (
    ORDERS,
    REPORTS,
    Channel,
    Envelope,
    Order,
    Repeat,
    Report,
    Train,
    decoded,
    key_of,
    plain,
)
from ebbtide.agent.secret_values import with_secrets
from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.engine.snapshot import Items
from ebbtide.storage.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

# From _MANY machines on, storage is asked for _AT_A_TIME of them at once.
_MANY, _AT_A_TIME = 8, 16
# Unreadable messages that are kept to be looked at; more are only counted.
_MOST_KEPT = 20
# Objects of reports that stay in storage for each machine, and older ones that are deleted at each call.
_REPORTS_KEPT, _DELETED_AT_ONCE = 200, 32
# Seconds between two requests to an agent to repeat its reports.
_REPEATED_EVERY_S = 5.0


@dataclass(eq=False)
class _Mailbox:
    """The messages of one machine.

    Attributes:
        lease_id: Id of the machine's lease.
        orders: Log of the orders written so far.
        count: Number of the last order that was written since this controller began.
        reports: Log of the reports from its agent.
        pending: Orders that are still to be written, the oldest first.
        received: Number of the last message taken, by boot of its agent.
        aside: Messages that were set aside, by key of the object and place in it.
        kept: Number of the last object of reports that the run's journal knows to be read.
        deleted: Number of the last object of reports that was deleted, as far as this controller knows.
        repeated_s: When its agent was last asked to report again how its assignments ended, in monotonic seconds.
    """

    lease_id: int
    orders: MessageLog
    reports: MessageLog
    count: int = 0
    pending: deque[Order] = field(default_factory=deque)
    received: dict[str, int] = field(default_factory=dict)
    aside: set[tuple[str, int]] = field(default_factory=set)
    kept: int = 0
    deleted: int = 0
    repeated_s: float = -math.inf


class MailboxRecord(TypedDict):
    """A mailbox as plain values.

    Attributes:
        lease_id: Id of the lease of its machine.
        read: Number of the last object of reports that was read.
        received: Number of the last message taken, by boot of its agent.
        pending: Orders that are still to be written, the oldest first.
    """

    lease_id: int
    read: int
    received: dict[str, int]
    pending: list[dict[str, Any]]


class QuarantineRecord(TypedDict):
    """Message that was received but cannot be read, and never counts.

    Attributes:
        machine: Id of the machine among whose messages it was.
        key: Key of the object in storage.
        why: Reason why it cannot be read.
        content: Beginning of the object's content.
    """

    machine: str
    key: str
    why: str
    content: str


class Mailboxes:
    """Writes orders to all machines of a run in turn, and takes each of their reports once.

    A message that cannot be read is set aside and counted, and stops nothing. Since it may have been a report, the
    machine is ordered to repeat how its assignments ended, as it is when a report is missing.

    Args:
        objects: Storage in which messages are kept.
        run_key: The run's key, from which its machines' keys are derived.
        machine: Gives the id of a machine by the id of its lease.
        epoch: Number of this controller among those of the run, from 1; machines obey the newest.
        runtime: Gives the time, and pools of threads.
        values: Values of the programs' secrets by name; they are queued, kept and sent only when sealed.
    """

    def __init__(
        self,
        objects: ObjectStore,
        run_key: bytes,
        machine: Callable[[int], str],
        epoch: int = 1,
        runtime: Runtime = RUNTIME,
        values: Mapping[str, str] | None = None,
    ) -> None:
        self._runtime = runtime
        self._values = values or {}
        self._objects, self._run_key, self._machine = objects, run_key, machine
        self._boxes: dict[int, _Mailbox] = {}
        self._boot = secrets.token_hex(8)
        self.epoch = epoch
        self.quarantined = 0
        self.quarantine: list[QuarantineRecord] = []

    def open(self, lease_id: int) -> None:
        """The machine runs: its agent may report from now on."""
        self._box(lease_id)

    def has_reported(self, lease_id: int) -> bool:
        """Return whether the machine's agent has ever reported anything."""
        return self.reports_heard(lease_id) > 0

    def reports_heard(self, lease_id: int) -> int:
        """Number of reports that the machine's agent has made, as far as is known."""
        box = self._boxes.get(lease_id)
        return 0 if box is None else sum(box.received.values())

    def order(self, lease_id: int, order: Order) -> None:
        """Queue an order; `write` sends it."""
        if isinstance(order, Train):
            key = key_of(self._run_key, self._machine(lease_id))
            order = replace(order, assignment=with_secrets(order.assignment, self._values, key))
        self._box(lease_id).pending.append(order)

    def write(self, lease_ids: Iterable[int]) -> None:
        """Send the queued orders of these machines, each machine's in turn. An order written twice counts once.

        Raises:
            OSError: Storage does not answer; some may have been sent.
        """
        boxes = [self._boxes[lease_id] for lease_id in lease_ids if lease_id in self._boxes]
        self._for_each(self._write, [box for box in boxes if box.pending])

    def fetch(self, lease_ids: Iterable[int]) -> None:
        """Ask storage for the next reports of these machines, several at a time, so that `new` need not wait.

        Where storage does not answer, `new` asks again.
        """
        boxes = [self._boxes[lease_id] for lease_id in lease_ids if lease_id in self._boxes]
        failed = list[OSError]()

        def fetch(box: _Mailbox) -> None:
            # Storage that is away hangs, so not every machine is asked for.
            if len(failed) < _AT_A_TIME:
                try:
                    box.reports.fetch()
                except OSError as error:
                    failed.append(error)

        if len(boxes) >= _MANY:
            self._for_each(fetch, boxes)

    def _for_each(self, do: Callable[[_Mailbox], None], boxes: Sequence[_Mailbox]) -> None:
        """Do something with each mailbox, with several at a time where there are many."""
        if len(boxes) < _MANY:
            for box in boxes:
                do(box)
            return
        with self._runtime.pool(_AT_A_TIME) as pool:
            for _ in pool.map(do, boxes):
                pass

    def _write(self, box: _Mailbox) -> None:
        while box.pending:
            if box.orders.read == 0:
                box.orders.read = box.orders.last()
            if isinstance(box.pending[0], Repeat):
                now_s = self._runtime.monotonic_s()
                if now_s - box.repeated_s < _REPEATED_EVERY_S:
                    # Repeated reports may be unreadable again, so requests to repeat must not multiply.
                    if len(box.pending) == 1:
                        return
                    box.pending.rotate(-1)
                else:
                    box.repeated_s = now_s
            envelope = Envelope(self._boot, box.count + 1, self.epoch, box.pending[0])
            if box.orders.write(box.orders.read + 1, [envelope]):
                box.count += 1
                box.pending.popleft()
            box.orders.read += 1

    def new(self, lease_id: int) -> Iterator[Report]:
        """Reports of a machine that were not taken yet; one that was written twice is given once.

        A report counts as taken when the next one is asked for: one whose handling fails is given again.

        Raises:
            OSError: Storage does not answer.
        """
        box = self._boxes.get(lease_id)
        if box is None:
            return  # it never booted
        for found in box.reports.new():
            if isinstance(found, Unreadable):
                self._set_aside(lease_id, box, found)
                continue
            before = box.received.get(found.boot, 0)
            if found.count <= before:
                continue
            if found.count > before + 1:
                _LOGGER.warning(
                    "%d reports of machine %s are missing", found.count - before - 1, self._machine(lease_id)
                )
                self._ask_to_repeat(box)
            if found.message is not None:
                yield found.message  # type: ignore[misc]
            box.received[found.boot] = found.count

    def written(self) -> None:
        """Note that the reports read so far are in the run's journal: nobody reads them again."""
        for box in self._boxes.values():
            box.kept = box.reports.read

    def delete_old(self) -> None:
        """Delete some reports that were read long ago, a few at each call. The newest of each machine stay.

        Raises:
            OSError: Storage does not answer.
        """
        old = [box for box in self._boxes.values() if box.deleted < box.kept - _REPORTS_KEPT][:_DELETED_AT_ONCE]

        def delete(box: _Mailbox) -> None:
            until = min(box.deleted + max(_DELETED_AT_ONCE // len(old), 1), box.kept - _REPORTS_KEPT)
            box.reports.delete(range(box.deleted + 1, until + 1))
            box.deleted = until

        self._for_each(delete, old)

    def delete_all(self, lease_ids: Iterable[int]) -> None:
        """Delete all messages to and from these machines, which are over.

        Raises:
            OSError: Storage does not answer.
        """

        def clear(box: _Mailbox) -> None:
            box.orders.clear()
            box.reports.clear()

        self._for_each(clear, [self._box(lease_id) for lease_id in lease_ids])

    @property
    def items(self) -> Items:
        """The mailboxes, each with the id of its lease."""
        return Items("mailboxes", lambda: sorted(self._boxes.items()), _stamp, _values)

    def restore(self, kept: Iterable[MailboxRecord]) -> None:
        """Continue from the records that `items` gave."""
        for values in kept:
            box = self._box(values["lease_id"])
            box.reports.read, box.received = values["read"], dict(values["received"])
            # Older objects that an earlier controller left are deleted with all messages of the machine.
            box.deleted = max(values["read"] - _REPORTS_KEPT, 0)
            orders = (decoded(order, ORDERS) for order in values["pending"])
            box.pending.extend(order for order in orders if order is not None)  # type: ignore[misc]

    def _set_aside(self, lease_id: int, box: _Mailbox, found: Unreadable) -> None:
        # An object is read again if the handling of a report in it failed.
        if (found.key, found.place) in box.aside:
            return
        box.aside.add((found.key, found.place))
        machine = self._machine(lease_id)
        self.quarantined += 1
        if len(self.quarantine) < _MOST_KEPT:
            content = found.content.decode("utf-8", "replace")
            self.quarantine.append({"machine": machine, "key": found.key, "why": found.why, "content": content})
            _LOGGER.warning(
                "%s, among the messages of machine %s, %s; it is set aside", found.key, machine, found.why
            )
        self._ask_to_repeat(box)

    def _ask_to_repeat(self, box: _Mailbox) -> None:
        if not any(isinstance(order, Repeat) for order in box.pending):
            box.pending.append(Repeat())

    def _box(self, lease_id: int) -> _Mailbox:
        if lease_id not in self._boxes:
            machine = self._machine(lease_id)
            key = key_of(self._run_key, machine)
            orders, reports = (
                MessageLog(self._objects, Channel(machine, kinds, key)) for kinds in (ORDERS, REPORTS)
            )
            self._boxes[lease_id] = _Mailbox(lease_id, orders, reports)
        return self._boxes[lease_id]


def _stamp(box: _Mailbox) -> tuple[Any, ...]:
    return box.reports.read, tuple(box.received.items()), tuple(box.pending)


def _values(box: _Mailbox) -> MailboxRecord:
    return {
        "lease_id": box.lease_id,
        "read": box.reports.read,
        "received": dict(box.received),
        "pending": [plain(order) for order in box.pending],
    }
