"""The contract of object stores refuses stores that break it, each by the test that says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S

from ebbtide.storage.objects import FolderStore, ObjectStore
from ebbtide.testing.contracts.stores import _WRITERS, ObjectStoreContract


class Replacing(FolderStore):
    def put_once(self, key: str, content: bytes) -> bool:
        self.delete(key)
        return super().put_once(key, content)


class LooksFirst(FolderStore):
    """Whether there is an object is asked before it is written, and not as it is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._all_have_looked = threading.Barrier(_WRITERS)

    def put_once(self, key: str, content: bytes) -> bool:
        if self.has(key):
            return False
        self._all_have_looked.wait(LIMIT_S)
        super().put_once(key, content)
        return True


class InPieces(FolderStore):
    """A file is written piece by piece, and a reader, if there is one, comes between two pieces."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._was_read = threading.Event()

    def get(self, key: str) -> bytes:
        content = super().get(key)
        self._was_read.set()
        return content

    def put_file(self, key: str, path: Path) -> None:
        target = self._folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        with target.open("wb") as file:
            for start in range(0, len(content), 100_000):
                file.write(content[start : start + 100_000])
                file.flush()
                self._was_read.clear()
                self._was_read.wait(1.0)


class OfText(FolderStore):
    def get(self, key: str) -> bytes:
        return super().get(key).decode("utf-8", errors="replace").encode()


class Unsorted(FolderStore):
    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter(reversed(list(super().keys(prefix))))


class OnePage(FolderStore):
    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter(list(super().keys(prefix))[:100])


class Sized(FolderStore):
    def versions(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        return ((key, str(self.size_bytes(key))) for key in self.keys(prefix))


class Silent(FolderStore):
    def get(self, key: str) -> bytes:
        return super().get(key) if self.has(key) else b""


class Trusting(FolderStore):
    def has(self, key: str) -> bool:
        return (self._folder / key).is_file()


class Sweeping(FolderStore):
    def delete(self, key: str) -> None:
        for one in list(self.keys(key)):
            super().delete(one)


@pytest.mark.parametrize(
    ("kind", "check", "problem"),
    [
        (Replacing, "an_object_is_written_once", "says it wrote although there was an object"),
        (LooksFirst, "the_first_of_many_writers_wins", r"told \d of 8 writers that they wrote one object"),
        (InPieces, "a_reader_never_sees_a_part", "bytes that were never written in one piece"),
        (OfText, "what_is_written_is_read", "gives other bytes than were written"),
        (Unsorted, "keys_are_listed_in_order_and_by_prefix", r"is right"),
        (OnePage, "many_keys_are_all_listed", "leaves keys out"),
        (Sized, "a_version_changes_with_its_object_alone", "its version was not"),
        (Silent, "an_object_that_is_not_there_is_told_by_its_error", "gave b''; MissingObjectError is right"),
        (Trusting, "no_key_leads_out_of_the_store", "with a bad key gave .*; InputError is right"),
        (Sweeping, "what_is_deleted_is_gone_and_nothing_else", "delete removed another object"),
    ],
)
def test_a_store_that_breaks_it_is_refused(
    kind: Callable[[Path], ObjectStore], check: str, problem: str, tmp_path: Path
) -> None:
    class Checked(ObjectStoreContract):
        def make_store(self, folder: Path) -> ObjectStore:
            return kind(folder)

    with pytest.raises(AssertionError, match=problem):
        getattr(Checked(), f"test_{check}")(tmp_path)
