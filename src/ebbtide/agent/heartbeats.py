"""Heartbeats: numbered objects by which a run's controller tells its machines that it still runs.

Only the order of the numbers counts, no clock: a machine whose clock differs from the controller's is not misled.
Each heartbeat lists the machines that it keeps alive, each with a seal by that machine's key; a machine that
should end is left out. Objects without a valid seal are ignored, whatever their number, so that nobody else who
may write to the storage can keep machines alive or have them end.

A controller's numbers are above all numbers of its predecessor, which may go on writing for a while, and skip
numbers. Otherwise machines would not notice the new controller until it had caught up.
"""

from __future__ import annotations

import hmac
import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from ebbtide.agent.protocol import key_of, mac_of
from ebbtide.errors import MissingObjectError
from ebbtide.storage.object_keys import checked_key
from ebbtide.storage.objects import ObjectStore, decoded_object, numbers_below

# Number of heartbeats in the time after which a machine without any ends.
_BEATS_IN_LIMIT = 24
_LEAST_S, _MOST_S = 0.25, 30.0
# Number of heartbeats kept in storage: no machine depends on older ones, however slowly it reads.
_KEPT = _BEATS_IN_LIMIT
# Heartbeat numbers reserved for each controller of a run.
_OF_EACH = 1_000_000
# Most objects read at a look; objects without a valid seal are read only once.
_MOST_READ = 500
_SEAL_DIGITS = 32
# Former versions, whose heartbeats had no seal, never reached higher numbers.
_MOST_UNSEALED = 10**10
# Stands for the controller in place of a machine's id, which is never empty.
_CONTROLLER = ""


class _Newest:
    """Finds the newest heartbeat that is sealed with a key.

    Args:
        objects: Storage in which heartbeats are left.
        run: Id of the run.
        key: The key.
        name: Holder of the key: the id of a machine, or the controller.
    """

    def __init__(self, objects: ObjectStore, run: str, key: bytes, name: str) -> None:
        self._objects, self._run, self._key, self._name = objects, run, key, name
        self.folder = checked_key(f"runs/{run}/alive")
        self.number = 0
        self._others = set[int]()

    def look(self) -> int:
        """Return the number of the newest heartbeat; 0: there was none yet.

        Raises:
            OSError: Storage does not answer.
        """
        there = numbers_below(self._objects, self.folder)
        # Deleted objects need not be remembered.
        self._others &= there
        unread = sorted((number for number in there - self._others if number > self.number), reverse=True)
        for number in unread[:_MOST_READ]:
            if self._is_sealed(number):
                self.number = number
                break
            self._others.add(number)
        return self.number

    def _is_sealed(self, number: int) -> bool:
        def is_ours(content: bytes) -> bool:
            # Raises an error if the answer was cut off.
            json.loads(content)
            return is_sealed_for(self._name, content, self._key, self._run, number)

        try:
            return decoded_object(self._objects, _key_of(self.folder, number), is_ours)
        except (MissingObjectError, ValueError, RecursionError):
            return False


class HeartbeatReader(_Newest):
    """Heartbeats as one machine reads them.

    Args:
        objects: Storage in which heartbeats are left.
        run: Id of the run.
        machine: Id of the machine.
        key: The machine's key.
        limit_s: Seconds without a heartbeat after which machines end.
    """

    def __init__(self, objects: ObjectStore, run: str, machine: str, key: bytes, limit_s: float) -> None:
        super().__init__(objects, run, key, machine)
        self.every_s = every_s_of(limit_s)


class Heartbeats:
    """Heartbeats of a run's controller.

    Args:
        objects: Storage in which heartbeats are left.
        run: Id of the run.
        run_key: The run's key, from which those of its machines are made.
        limit_s: Seconds without a heartbeat after which machines end.

    Attributes:
        epoch: Number of this controller in the run, counted from 1; 0: not known yet.
    """

    def __init__(self, objects: ObjectStore, run: str, run_key: bytes, limit_s: float) -> None:
        self._objects, self._run, self._run_key = objects, run, run_key
        self._before = _Newest(objects, run, run_key, _CONTROLLER)
        self.every_s = every_s_of(limit_s)
        self.epoch = 0
        self._number: int | None = None
        self._written = deque[int]()

    def beat(self, machines: Iterable[str]) -> None:
        """Write the next heartbeat. To be called every `every_s`.

        Args:
            machines: Ids of the machines that it keeps alive.

        Raises:
            OSError: Storage does not answer.
        """
        if self._number is None:
            self._number = self._begin()
        self._number = max(self._number, self.epoch * _OF_EACH)
        kept, skips = list(machines), 1
        while not self._objects.put_once(
            _key_of(self._before.folder, self._number + 1), self._content(self._number + 1, kept)
        ):
            # The number was taken by a write that seemed to fail, by another controller, or by a stranger who may
            # have left many: skip more numbers each time.
            self._number += skips
            skips *= 2
        self._number += 1
        self._written.append(self._number)
        while len(self._written) > _KEPT:
            self._objects.delete(_key_of(self._before.folder, self._written[0]))
            self._written.popleft()

    def _begin(self) -> int:
        """Number of the newest heartbeat of an earlier controller; older ones are deleted from now on."""
        newest = self._before.look()
        there = numbers_below(self._objects, self._before.folder)
        if not newest:
            # A former version sealed none, and its machines wait for a number above all that they have seen.
            newest = max((number for number in there if number <= _MOST_UNSEALED), default=0)
        self._written.extend(sorted(number for number in there if number <= newest))
        return newest

    def _content(self, number: int, machines: Iterable[str]) -> bytes:
        alive: dict[str, Any] = {
            machine: _seal(key_of(self._run_key, machine), self._run, number) for machine in machines
        }
        return json.dumps({"alive": alive | {_CONTROLLER: _seal(self._run_key, self._run, number)}}).encode()


def is_sealed_for(name: str, content: bytes, key: bytes, run: str, number: int) -> bool:
    """Tell whether a heartbeat keeps a machine alive.

    Args:
        name: Id of the machine.
        content: Content of the heartbeat's object, whoever wrote it.
        key: The machine's key.
        run: Id of the run.
        number: Number of the heartbeat.
    """
    try:
        given = json.loads(content)["alive"][name]
        return hmac.compare_digest(given.encode(), _seal(key, run, number).encode())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def every_s_of(limit_s: float) -> float:
    """Seconds between heartbeats.

    Args:
        limit_s: Seconds without a heartbeat after which machines end.
    """
    return min(max(limit_s / _BEATS_IN_LIMIT, _LEAST_S), _MOST_S)


def _key_of(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}"


def _seal(key: bytes, run: str, number: int) -> str:
    return mac_of(key, "heartbeat", run, number)[:_SEAL_DIGITS]
