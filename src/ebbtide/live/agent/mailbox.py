"""Letters between a controller and its machines: numbered objects, each written once and never changed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ebbtide.errors import MissingObjectError
from ebbtide.live.storage import ObjectStore, checked_key

_LOGGER = logging.getLogger(__name__)

Letter = Mapping[str, Any]

# A controller's signs of life are by slots of time: so many in the time after which machines end without one.
_SLOTS_IN_LIMIT = 12
# Whoever has seen one in the last few is not worried, and older ones are cleared away.
_SLOTS_SEEN, _SLOTS_KEPT = 4, 8


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
            yield from _parsed(content, f"{self._folder}/{self.read:08d}")

    def last(self) -> int:
        """How many there are."""
        return max((int(key.rpartition("/")[2]) for key in self._objects.keys(f"{self._folder}/")), default=0)

    def write(self, number: int, letters: list[Letter]) -> bool:
        """Write some as one object; whether there was none of that number."""
        return self._objects.put_once(f"{self._folder}/{number:08d}", json.dumps(letters).encode())


class SignsOfLife:
    """Of the controller of a run, seen by its machines.

    Args:
        objects: Where signs are left.
        run: The run's id.
        limit_s: Machines that see none for so long end.
    """

    def __init__(self, objects: ObjectStore, run: str, limit_s: float) -> None:
        self._objects = objects
        self._folder = checked_key(f"runs/{run}/alive")
        self.slot_s = min(max(limit_s / _SLOTS_IN_LIMIT, 0.5), 60.0)

    def give(self, now_s: float) -> None:
        """The controller is there. To be called twice in a slot at least."""
        slot = int(now_s // self.slot_s)
        if self._objects.put_once(self._key(slot), b""):
            self._objects.delete(self._key(slot - _SLOTS_KEPT))

    def seen(self, now_s: float) -> bool:
        """Whether it gave one in this slot or in the last three."""
        slot = int(now_s // self.slot_s)
        return any(self._objects.has(self._key(slot - past)) for past in range(_SLOTS_SEEN))

    def _key(self, slot: int) -> str:
        return f"{self._folder}/{slot}"


def _parsed(content: bytes, key: str) -> list[Letter]:
    """The messages of one object; what is torn or no message is left out, and said."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        _LOGGER.warning("messages %s are left out: %s", key, error)
        return []
    given = found if isinstance(found, list) else [None]
    messages: list[Letter] = [one for one in given if isinstance(one, dict) and "type" in one]
    if len(messages) < len(given):
        _LOGGER.warning("%s holds something that is no message; it is left out", key)
    return messages
