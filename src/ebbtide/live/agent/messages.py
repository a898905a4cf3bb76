"""Messages between a controller and its machines: numbered objects in storage, each written once.

Orders go from the controller to a machine's agent, reports come back, and the heartbeat says that the controller
still runs.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ebbtide.errors import MissingObjectError
from ebbtide.live.storage import ObjectStore, checked_key

_LOGGER = logging.getLogger(__name__)

Message = Mapping[str, Any]

# Time is divided into slots, so many of them in the time after which machines end without a heartbeat.
_SLOTS_IN_LIMIT = 12
# A heartbeat in any of the last few slots is enough; older ones are deleted.
_SLOTS_SEEN, _SLOTS_KEPT = 4, 8

# Lines that a program prints are dropped when so many of them already wait to be written.
_MOST_LOG_LINES = 200
_RETRY_S = 0.5
_CLOSING_S = 30.0


class MessageLog:
    """Messages in one direction between the controller and one machine, in order.

    Args:
        objects: Storage in which messages are kept.
        machine: Id of the machine, unique over all runs.
        kind: `orders` (to the machine) or `reports` (from it).
        read: Number of the last message object that was read; 0: none.
    """

    def __init__(self, objects: ObjectStore, machine: str, kind: str, read: int = 0) -> None:
        self._objects = objects
        self._folder = checked_key(f"machines/{machine}/{kind}")
        self.read = read

    def new(self) -> Iterator[Message]:
        """Messages that were not read yet, in order."""
        while True:
            try:
                content = self._objects.get(f"{self._folder}/{self.read + 1:08d}")
            except MissingObjectError:
                return
            self.read += 1
            yield from _parsed(content, f"{self._folder}/{self.read:08d}")

    def last(self) -> int:
        """Number of the last message object; 0: there is none."""
        return max((int(key.rpartition("/")[2]) for key in self._objects.keys(f"{self._folder}/")), default=0)

    def write(self, number: int, messages: list[Message]) -> bool:
        """Write some messages as one object; False if an object of that number exists already."""
        return self._objects.put_once(f"{self._folder}/{number:08d}", json.dumps(messages).encode())


class Heartbeats:
    """Heartbeats of a run's controller, read by its machines.

    Args:
        objects: Storage in which heartbeats are left.
        run: Id of the run.
        limit_s: Seconds without a heartbeat after which machines end.
    """

    def __init__(self, objects: ObjectStore, run: str, limit_s: float) -> None:
        self._objects = objects
        self._folder = checked_key(f"runs/{run}/alive")
        self.slot_s = min(max(limit_s / _SLOTS_IN_LIMIT, 0.5), 60.0)

    def beat(self, now_s: float) -> None:
        """The controller runs at `now_s`, in seconds since 1970. To be called at least twice in a slot."""
        slot = int(now_s // self.slot_s)
        if self._objects.put_once(self._key(slot), b""):
            self._objects.delete(self._key(slot - _SLOTS_KEPT))

    def seen(self, now_s: float) -> bool:
        """Whether there is a heartbeat in the slot of `now_s` or in the three before it."""
        slot = int(now_s // self.slot_s)
        return any(self._objects.has(self._key(slot - past)) for past in range(_SLOTS_SEEN))

    def _key(self, slot: int) -> str:
        return f"{self._folder}/{slot}"


class Outbox:
    """An agent's reports: gathered for a while, written in order by a thread, and tried again until written.

    Args:
        reports: The log that reports are written to.
        gather_s: Seconds for which reports that are not urgent are gathered.
    """

    def __init__(self, reports: MessageLog, gather_s: float) -> None:
        self._reports = reports
        self._gather_s = gather_s
        self._number = reports.last()
        # With these a reader recognises a message that was written twice.
        self._boot, self._count = secrets.token_hex(8), 0
        self._waiting: deque[Message] = deque()
        self._lock = threading.Lock()
        self._urgent = threading.Event()
        self._closing = False
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, message: Message, *, urgent: bool = True) -> None:
        """Report something; lines of a program's output are dropped while too many wait."""
        with self._lock:
            logs = sum("log" in waiting for waiting in self._waiting) if "log" in message else 0
            if logs < _MOST_LOG_LINES:
                self._count += 1
                self._waiting.append({**message, "boot": self._boot, "count": self._count})
                self._idle.clear()
        if urgent:
            self._urgent.set()

    def close(self) -> None:
        """Write what is left, and end the thread; gives up after half a minute."""
        self._urgent.set()
        self._idle.wait(_CLOSING_S)
        self._closing = True
        self._urgent.set()
        self._thread.join(_CLOSING_S)

    def _write(self) -> None:
        while not self._closing:
            self._urgent.wait(self._gather_s)
            self._urgent.clear()
            with self._lock:
                messages = list(self._waiting)
            if not messages:
                continue
            if not self._written(messages):
                self._urgent.wait(_RETRY_S)
                self._urgent.set()
                continue
            with self._lock:
                for _ in messages:
                    self._waiting.popleft()
                if not self._waiting:
                    self._idle.set()

    def _written(self, messages: list[Message]) -> bool:
        try:
            # An object that is there already is from a write that seemed to fail, or from an earlier agent.
            while not self._reports.write(self._number + 1, messages):
                self._number += 1
        except Exception as error:
            _LOGGER.warning("a report is not written yet: %s", error)
            return False
        self._number += 1
        return True


@dataclass(eq=False)
class _Mailbox:
    """The messages of one machine, as its controller sees them.

    Attributes:
        orders: Log of the orders written so far.
        reports: Log of the reports from its agent.
        pending: Orders that are still to be written, the oldest first.
        received: Number of the last message known, by boot of its agent.
    """

    orders: MessageLog
    reports: MessageLog
    pending: deque[Message] = field(default_factory=deque)
    received: dict[str, int] = field(default_factory=dict)


class MailboxRecord(TypedDict):
    """A mailbox as plain values.

    Attributes:
        lease_id: Id of the lease of its machine.
        read: Number of the last object of reports that was read.
        received: Number of the last message known, by boot of its agent.
        pending: Orders that are still to be written, the oldest first.
    """

    lease_id: int
    read: int
    received: dict[str, int]
    pending: list[Message]


class Mailboxes:
    """The controller's end: orders to all machines of a run are written in turn, reports are received once each.

    Args:
        objects: Storage in which messages are kept.
        machine: Gives the id of a machine by the id of its lease.
    """

    def __init__(self, objects: ObjectStore, machine: Callable[[int], str]) -> None:
        self._objects, self._machine = objects, machine
        self._boxes: dict[int, _Mailbox] = {}

    def open(self, lease_id: int) -> None:
        """The machine runs: its agent may report from now on."""
        self._box(lease_id)

    def has_reported(self, lease_id: int) -> bool:
        """Whether the machine's agent ever reported anything."""
        box = self._boxes.get(lease_id)
        return box is not None and bool(box.received)

    def order(self, lease_id: int, order: Message) -> None:
        """Queue an order; `write` sends it."""
        self._box(lease_id).pending.append(order)

    def write(self, lease_ids: Iterable[int]) -> None:
        """Send the queued orders of these machines, in turn. An order that is written twice is obeyed once.

        Raises:
            OSError: Storage does not answer.
        """
        for lease_id in lease_ids:
            box = self._boxes.get(lease_id)
            while box is not None and box.pending:
                if box.orders.read == 0:
                    box.orders.read = box.orders.last()
                if box.orders.write(box.orders.read + 1, [box.pending[0]]):
                    box.pending.popleft()
                box.orders.read += 1

    def new(self, lease_id: int) -> Iterator[Message]:
        """Reports of a machine since the last call; one that was written twice is given once.

        Raises:
            OSError: Storage does not answer.
        """
        box = self._boxes.get(lease_id)
        if box is None:
            return  # it never booted
        for message in box.reports.new():
            boot, count = str(message.get("boot", "")), message.get("count", 0)
            if isinstance(count, int) and count > box.received.get(boot, 0):
                box.received[boot] = count
                yield message

    def snapshot(self) -> list[MailboxRecord]:
        """The mailboxes as plain values, for the journal."""
        return [
            {
                "lease_id": lease_id,
                "read": box.reports.read,
                "received": box.received,
                "pending": list(box.pending),
            }
            for lease_id, box in self._boxes.items()
        ]

    def restore(self, kept: Iterable[MailboxRecord]) -> None:
        """Continue from what `snapshot` gave."""
        for values in kept:
            box = self._box(values["lease_id"])
            box.reports.read, box.received = values["read"], values["received"]
            box.pending.extend(values["pending"])

    def _box(self, lease_id: int) -> _Mailbox:
        if lease_id not in self._boxes:
            machine = self._machine(lease_id)
            orders, reports = (MessageLog(self._objects, machine, kind) for kind in ("orders", "reports"))
            self._boxes[lease_id] = _Mailbox(orders, reports)
        return self._boxes[lease_id]


def _parsed(content: bytes, key: str) -> list[Message]:
    """The messages of one object; a torn object, or an entry that is no message, is skipped with a warning."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        _LOGGER.warning("messages %s are left out: %s", key, error)
        return []
    given = found if isinstance(found, list) else [None]
    messages: list[Message] = [one for one in given if isinstance(one, dict) and "type" in one]
    if len(messages) < len(given):
        _LOGGER.warning("%s holds something that is no message; it is left out", key)
    return messages
