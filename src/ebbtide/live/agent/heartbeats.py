"""Heartbeats: numbered objects by which a run's controller tells its machines that it still runs.

Only the order of the numbers counts, no clock: a machine whose clock differs from the controller's is not misled.
Each heartbeat names the machines that are to end, which are not kept alive by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ebbtide.errors import MissingObjectError
from ebbtide.live.object_keys import checked_key
from ebbtide.live.storage import ObjectStore, numbers_below

# So many heartbeats in the time after which machines end without one.
_BEATS_IN_LIMIT = 24
_LEAST_S, _MOST_S = 0.25, 30.0
# Older ones are deleted.
_KEPT = 8


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
        self.every_s = min(max(limit_s / _BEATS_IN_LIMIT, _LEAST_S), _MOST_S)
        self._number: int | None = None

    def beat(self, ending: Iterable[str] = ()) -> None:
        """Leave the next heartbeat. To be called every `every_s`.

        Args:
            ending: Ids of machines that are to end.

        Raises:
            OSError: Storage does not answer.
        """
        if self._number is None:
            self._number = self.newest()
        content = json.dumps(sorted(ending)).encode()
        # One that is there already is from a write that seemed to fail, or from another controller.
        while not self._objects.put_once(self._key(self._number + 1), content):
            self._number += 1
        self._number += 1
        if self._number > _KEPT:
            self._objects.delete(self._key(self._number - _KEPT))

    def newest(self) -> int:
        """Number of the newest heartbeat; 0: there was none yet.

        Raises:
            OSError: Storage does not answer.
        """
        return max(numbers_below(self._objects, self._folder), default=0)

    def keeps_alive(self, number: int, machine: str) -> bool:
        """Whether a heartbeat is for a machine, too: those that are to end have none.

        Args:
            number: Number of the heartbeat.
            machine: Id of the machine.

        Raises:
            OSError: Storage does not answer.
        """
        try:
            return machine not in json.loads(self._objects.get(self._key(number)))
        except (MissingObjectError, ValueError, TypeError):
            return True

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:010d}"
