"""Letters between a controller and its machines: numbered objects, each written once and never changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ebbtide.object_storage import MissingObjectError, ObjectStore, checked_key

Letter = Mapping[str, Any]

# Longest time between signs of life of a controller, in slots of this length.
ALIVE_SLOT_S = 5


class Letters:
    """One direction of one machine's post.

    Args:
        objects: Where letters are kept.
        machine: Its id.
        kind: `orders` or `reports`.
        read: Letters up to this number are known.
    """

    def __init__(self, objects: ObjectStore, machine: str, kind: str, read: int = 0) -> None:
        self._objects = objects
        self._folder = checked_key(f"machines/{machine}/{kind}")
        self.read = read

    def new(self) -> Iterator[Letter]:
        """Letters not read yet, in order."""
        while True:
            try:
                content = self._objects.get(f"{self._folder}/{self.read + 1:08d}")
            except MissingObjectError:
                return
            self.read += 1
            yield from json.loads(content)

    def last(self) -> int:
        """How many there are."""
        return max((int(key.rpartition("/")[2]) for key in self._objects.keys(f"{self._folder}/")), default=0)

    def write(self, number: int, letters: list[Letter]) -> bool:
        """Write some as one object; whether there was none of that number."""
        return self._objects.put_once(f"{self._folder}/{number:08d}", json.dumps(letters).encode())


def sign_of_life(objects: ObjectStore, run: str, now_s: float) -> None:
    """The controller of a run is there."""
    objects.put_once(_slot(run, int(now_s // ALIVE_SLOT_S)), b"")


def alive_lately(objects: ObjectStore, run: str, now_s: float) -> bool:
    """Whether the controller gave a sign in this slot or in the last three."""
    slot = int(now_s // ALIVE_SLOT_S)
    return any(objects.has(_slot(run, slot - past)) for past in range(4))


def _slot(run: str, slot: int) -> str:
    return f"runs/{run}/alive/{slot}"
