"""An object store in memory, shared by the controller and the agents of one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ebbtide.errors import MissingObjectError
from ebbtide.storage.object_keys import checked_key


class MemoryStore:
    """Objects by key, indexed by folder: long runs have many messages, and often list those of one machine."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._folders: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def put_once(self, key: str, content: bytes) -> bool:
        """Write an object, unless there is one under the key; returns whether it was written."""
        if checked_key(key) in self._objects:
            return False
        self._put(key, content)
        return True

    def put_file(self, key: str, path: Path) -> None:
        """Write a file as an object, in place of any under the key."""
        self._put(checked_key(key), path.read_bytes())

    def get_file(self, key: str, path: Path) -> None:
        """Read an object into a file."""
        path.write_bytes(self.get(key))

    def get(self, key: str) -> bytes:
        """Read an object.

        Raises:
            MissingObjectError: There is no such object.
        """
        try:
            return self._objects[checked_key(key)]
        except KeyError:
            raise MissingObjectError(key) from None

    def has(self, key: str) -> bool:
        """Return whether an object has this key."""
        return checked_key(key) in self._objects

    def size_bytes(self, key: str) -> int:
        """Return the length of an object in bytes."""
        return len(self.get(key))

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Return keys that begin with the prefix, in order."""
        folder = prefix.rpartition("/")[0]
        return iter(sorted(key for key in self._folders[folder] if key.startswith(prefix)))

    def versions(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Return keys as `keys` gives them; versions are not known."""
        return ((key, "") for key in self.keys(prefix))

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        if self._objects.pop(checked_key(key), None) is not None:
            for folder in _folders_of(key):
                del self._folders[folder][key]

    def clear_unfinished(self, prefix: str, older_s: float) -> None:
        """Do nothing: writes in memory are never left unfinished."""

    def _put(self, key: str, content: bytes) -> None:
        self._objects[key] = content
        for folder in _folders_of(key):
            self._folders[folder][key] = None


def _folders_of(key: str) -> list[str]:
    """Return every folder that contains a key, including the root, whose name is empty."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
