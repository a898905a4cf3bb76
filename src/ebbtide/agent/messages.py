"""Messages in storage: numbered objects, each written once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ebbtide.agent.protocol import (
    ORDERS,
    BadMessageError,
    Channel,
    Envelope,
    read_messages,
)
from ebbtide.errors import MissingObjectError
from ebbtide.storage.object_keys import checked_key
from ebbtide.storage.objects import ObjectStore, decoded_object, numbers_below

# Bytes that are kept of an object that cannot be read.
_SHOWN_BYTES = 2_000
_LOOKS_FOR_LATER = 10


@dataclass(frozen=True)
class Unreadable:
    """Something that was received and cannot be read.

    Attributes:
        key: Key of its object in storage.
        place: Its place in the object, from 0.
        why: What is wrong with it.
        content: How the object begins.
    """

    key: str
    place: int
    why: str
    content: bytes


class MessageLog:
    """Messages in one direction between the controller and one machine, in order.

    Args:
        objects: Storage in which messages are kept.
        channel: The machine, the direction and the key of the messages.
        read: Number of the last message object that was read; 0: none.
    """

    def __init__(self, objects: ObjectStore, channel: Channel, read: int = 0) -> None:
        self._objects, self._channel = objects, channel
        kind = "orders" if channel.kinds is ORDERS else "reports"
        self._folder = checked_key(f"machines/{channel.machine}/{kind}")
        self.read = read
        # Looks in a row at which the next object was missing.
        self._looks = 0
        # Number of the first later object, if the next one is lost.
        self._later = 0
        # The next object: its number, its content (None: it is missing), and whether it is lost.
        self._fetched: tuple[int, bytes | None, bool] | None = None

    def fetch(self) -> None:
        """Ask storage for the next object, so that `new` need not wait for it. Several logs may do so at a time.

        Raises:
            OSError: Storage does not answer.
        """
        try:
            found: tuple[bytes | None, bool] = self._objects.get(f"{self._folder}/{self.read + 1:08d}"), False
        except MissingObjectError:
            found = None, self._is_lost()
        self._fetched = self.read + 1, *found

    def new(self) -> Iterator[Envelope | Unreadable]:
        """Yield the unread messages in order. An object counts as read once all messages in it were taken.

        A missing object with later ones after it was lost: after a while it is yielded as unreadable and skipped.

        Raises:
            OSError: Storage does not answer.
        """
        while True:
            key = f"{self._folder}/{self.read + 1:08d}"
            if self._fetched is None or self._fetched[0] != self.read + 1:
                self.fetch()
            assert self._fetched is not None
            _, content, is_lost = self._fetched
            self._fetched = None
            if content is None:
                if not is_lost:
                    return
                yield Unreadable(key, 0, "is missing, though later ones are there", b"")
                self.read = max(self.read + 1, self._later - 1)
                continue
            self._looks = 0
            try:
                given = decoded_object(self._objects, key, read_messages, content)
            except BadMessageError as error:
                yield Unreadable(key, 0, str(error), content[:_SHOWN_BYTES])
                given = []
            for place, values in enumerate(given):
                try:
                    envelope = self._channel.open(values)
                except BadMessageError as error:
                    yield Unreadable(key, place, str(error), content[:_SHOWN_BYTES])
                else:
                    yield envelope
            self.read += 1

    def _is_lost(self) -> bool:
        """Return whether the next object is lost. This needs a listing, which only every tenth call makes."""
        self._looks += 1
        if self._looks % _LOOKS_FOR_LATER:
            return False
        # Many may be missing, such as for a reader whose journal is old: go on at the first that is there.
        self._later = next((number for number in self._after() if self._is_ours(number)), 0)
        return self._later > self.read + 1

    def delete(self, numbers: Iterable[int]) -> None:
        """Delete the objects of these numbers, if they exist.

        Raises:
            OSError: Storage does not answer.
        """
        for number in numbers:
            self._objects.delete(f"{self._folder}/{number:08d}")

    def clear(self) -> None:
        """Delete all objects of this log, whoever wrote them.

        Raises:
            OSError: Storage does not answer.
        """
        for key in list(self._objects.keys(f"{self._folder}/")):
            self._objects.delete(key)

    def _after(self) -> list[int]:
        """Numbers of later objects, the lowest first."""
        return sorted(number for number in numbers_below(self._objects, self._folder) if number > self.read)

    def last(self) -> int:
        """Number of the last object with a message sealed for this log; 0: there is none.

        Objects that others wrote are ignored: they say nothing of the objects before them.
        """
        return next((number for number in reversed(self._after()) if self._is_ours(number)), self.read)

    def _is_ours(self, number: int) -> bool:
        try:
            given = decoded_object(self._objects, f"{self._folder}/{number:08d}", read_messages)
        except (MissingObjectError, BadMessageError):
            return False
        return any(self._channel.is_sealed(values) for values in given)

    def write(self, number: int, messages: Sequence[Envelope]) -> bool:
        """Write some messages as one object; False if an object of that number exists already."""
        sealed = [self._channel.seal(message) for message in messages]
        return self._objects.put_once(f"{self._folder}/{number:08d}", json.dumps(sealed).encode())
