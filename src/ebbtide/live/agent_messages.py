"""A controller's end of the post with its machines: orders are written in turn, reports heard once each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ebbtide.live.agent.mailbox import Letter, Letters
from ebbtide.live.storage import ObjectStore


@dataclass(eq=False)
class _Box:
    """The letters of one machine.

    Attributes:
        orders: Written so far.
        reports: What it told.
        pending: Orders that are still to be written.
        heard: Of each boot of its agent, letters up to this one are known.
    """

    orders: Letters
    reports: Letters
    pending: deque[Letter] = field(default_factory=deque)
    heard: dict[str, int] = field(default_factory=dict)


class PostOffice:
    """The post of all machines of a run.

    Args:
        objects: Where letters are kept.
        machine: A machine's id, by its lease's.
    """

    def __init__(self, objects: ObjectStore, machine: Callable[[int], str]) -> None:
        self._objects, self._machine = objects, machine
        self._boxes: dict[int, _Box] = {}

    def open(self, lease_id: int) -> None:
        """A machine runs: it may write from now on."""
        self._box(lease_id)

    def has_heard(self, lease_id: int) -> bool:
        """Whether its agent ever wrote."""
        box = self._boxes.get(lease_id)
        return box is not None and bool(box.heard)

    def order(self, lease_id: int, order: Letter) -> None:
        """To be written at the next occasion."""
        self._box(lease_id).pending.append(order)

    def write(self, lease_ids: Iterable[int]) -> None:
        """Orders of these machines, in turn. One that is written twice is obeyed once.

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

    def new(self, lease_id: int) -> Iterator[Letter]:
        """What a machine has told since the last time; one that was written twice is told once.

        Raises:
            OSError: Storage does not answer.
        """
        box = self._boxes.get(lease_id)
        if box is None:
            return  # it never booted
        for letter in box.reports.new():
            boot, count = str(letter.get("boot", "")), letter.get("count", 0)
            if isinstance(count, int) and count > box.heard.get(boot, 0):
                box.heard[boot] = count
                yield letter

    def snapshot(self) -> list[Any]:
        """As plain values."""
        return [
            [lease_id, box.reports.read, box.heard, list(box.pending)] for lease_id, box in self._boxes.items()
        ]

    def take_on(self, kept: Iterable[Any]) -> None:
        """Go on from a snapshot."""
        for lease_id, read, heard, pending in kept:
            box = self._box(lease_id)
            box.reports.read, box.heard = read, heard
            box.pending.extend(pending)

    def _box(self, lease_id: int) -> _Box:
        if lease_id not in self._boxes:
            machine = self._machine(lease_id)
            orders, reports = (Letters(self._objects, machine, kind) for kind in ("orders", "reports"))
            self._boxes[lease_id] = _Box(orders, reports)
        return self._boxes[lease_id]
