"""Contract tests of object stores: the behaviour that `ebbtide.storage.objects.ObjectStore` promises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ebbtide.errors import InputError, MissingObjectError
from ebbtide.storage.objects import ObjectStore
from ebbtide.testing.contracts._checking import refused

_WRITERS = 8
_EVERY_BYTE = bytes(range(256)) * 3
# More than one part of boto3's multipart uploads, whose parts have 8 MiB.
_BIG_BYTES = 20 * 2**20

_GOOD_KEYS = ("a", "A/b", "0/1/2/3/4/5", "lr=0.1_seed=7/step-00001200.tar.gz", "under_score/=x", "x" * 200)
_BAD_KEYS = (
    "",
    "../x",
    "a/../../x",
    "/x",
    "a//b",
    ".hidden",
    "a b",
    "x.part",
    "a/",
    "x\n",
    "a\\b",
    "tür",
    "a\0b",
    "~",
)


class ObjectStoreContract:
    """Tests of an object store. Inherit from this class in one whose name begins with `Test`, and open your store:

    from ebbtide.testing import ObjectStoreContract

    class TestMine(ObjectStoreContract):
        def make_store(self, folder):
            return MyStore(...)
    """

    def make_store(self, folder: Path) -> ObjectStore:
        """Open a store without objects.

        Args:
            folder: Path of an empty folder of the test, for a store that needs one.
        """
        raise NotImplementedError("a test class of ObjectStoreContract needs make_store(self, folder)")

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        for key, content in (("a/b.bin", _EVERY_BYTE), ("a/empty", b""), ("a/text", "löß\r\n\0".encode())):
            assert not store.has(key), f"has({key!r}) is true before anything was written"
            assert store.put_once(key, content), f"put_once({key!r}) was refused although there was no object"
            assert store.get(key) == content, f"get({key!r}) gives other bytes than were written"
            assert store.has(key), f"has({key!r}) is false after it was written"
            assert store.size_bytes(key) == len(content), f"size_bytes({key!r}) is not {len(content)}"

    def test_an_object_that_is_not_there_is_told_by_its_error(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        store.put_once("a/b/c", b"1")
        for key in ("none", "a", "a/b", "a/b/cc", "a/b/c/d"):
            for name, call in (("get", store.get), ("size_bytes", store.size_bytes)):
                error = refused(MissingObjectError, lambda: call(key), f"{name}({key!r}) of no object")  # noqa: B023
                assert key in str(error), f"{name}({key!r}): the error does not name the key: {error}"
            read = tmp_path / "read"
            refused(MissingObjectError, lambda: store.get_file(key, read), f"get_file({key!r}) of no object")  # noqa: B023
            assert not store.has(key), f"has({key!r}) is true; only a/b/c was written"

    def test_an_object_is_written_once(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        assert store.put_once("epoch", b"first")
        assert not store.put_once("epoch", b"second"), "put_once says it wrote although there was an object"
        assert store.get("epoch") == b"first", "put_once replaced an object"
        store.delete("epoch")
        assert store.put_once("epoch", b"third"), "put_once was refused after the object was deleted"

    def test_the_first_of_many_writers_wins(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        won: list[int] = []

        def write(number: int) -> None:
            if store.put_once("x", bytes([number]) * 100_000):
                won.append(number)

        _together([lambda number=number: write(number) for number in range(_WRITERS)])  # type: ignore[misc]
        assert len(won) == 1, f"put_once told {len(won)} of {_WRITERS} writers that they wrote one object"
        assert store.get("x") == bytes(won) * 100_000, "the object is not that of the writer who was told so"

    def test_a_reader_never_sees_a_part(self, tmp_path: Path) -> None:
        """Readers of an object that is replaced repeatedly see the old or the new content, whole."""
        store = self.make_store(tmp_path / "store")
        contents = [bytes([number]) * 300_000 for number in range(2)]
        files = [tmp_path / f"file-{number}" for number in range(2)]
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
        store.put_file("state", files[0])
        torn: list[int] = []

        written = threading.Event()

        def write() -> None:
            try:
                for number in range(10):
                    store.put_file("state", files[number % 2])
            finally:
                written.set()

        def read() -> None:
            while not written.is_set():
                found = store.get("state")
                if found not in contents:
                    torn.append(len(found))

        _together([write, read, read])
        assert not torn, f"get gave {torn[0]} bytes that were never written in one piece"

    def test_files_are_written_in_place_of_others_and_read_back(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        big, read = tmp_path / "big", tmp_path / "read"
        big.write_bytes(_EVERY_BYTE * (_BIG_BYTES // len(_EVERY_BYTE)))
        store.put_once("models/1", b"before")
        store.put_file("models/1", big)
        store.get_file("models/1", read)
        assert store.size_bytes("models/1") == big.stat().st_size, "size_bytes is not that of the file written"
        assert read.read_bytes() == big.read_bytes(), "get_file gives another file than put_file wrote"

    def test_keys_are_listed_in_order_and_by_prefix(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        assert list(store.keys()) == [], "keys() of a new store gives keys"
        written = ["b/2", "a/10", "a/9", "ab", "a-c/1", "a/b/c", "B"]
        for key in written:
            store.put_once(key, b"1")
        for prefix in ("", "a", "a/", "a/b", "a/1", "b/2", "none"):
            expected = sorted(key for key in written if key.startswith(prefix))
            found = list(store.keys(prefix))
            assert found == expected, f"keys({prefix!r}) gives {found}; {expected} is right"

    def test_many_keys_are_all_listed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        written = [f"reports/{number:08d}" for number in range(120)]
        for key in written:
            store.put_once(key, b"")
        assert list(store.keys("reports/")) == written, "keys() leaves keys out, or gives some twice"

    def test_a_version_changes_with_its_object_alone(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        content = tmp_path / "content"
        for key in ("a/1", "a/2", "b"):
            store.put_once(key, b"before")
        before = dict(store.versions("a/"))
        assert list(before) == list(store.keys("a/")), f"versions('a/') gives the keys {list(before)}"
        content.write_bytes(b"after!")
        store.put_file("a/1", content)
        after = dict(store.versions("a/"))
        assert not before["a/1"] or after["a/1"] != before["a/1"], "an object was replaced; its version was not"
        assert after["a/2"] == before["a/2"], "a version changed without its object"

    def test_what_is_deleted_is_gone_and_nothing_else(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        for key in ("a/b", "a/bc", "a/b-c/d"):
            store.put_once(key, b"1")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("a/none")
        store.delete("a")
        assert not store.has("a/b"), "delete left the object"
        assert list(store.keys()) == ["a/b-c/d", "a/bc"], "delete removed another object, or left it in the list"

    def test_every_good_key_is_taken(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        for key in _GOOD_KEYS:
            assert store.put_once(key, key.encode()), f"put_once({key!r}) was refused"
        for key in _GOOD_KEYS:
            assert store.get(key) == key.encode(), f"get({key!r}) gives the object of another key"

    def test_no_key_leads_out_of_the_store(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        file = tmp_path / "file"
        file.write_bytes(b"1")
        uses: dict[str, Callable[[str], object]] = {
            "put_once": lambda key: store.put_once(key, b""),
            "put_file": lambda key: store.put_file(key, file),
            "get": store.get,
            "get_file": lambda key: store.get_file(key, tmp_path / "read"),
            "has": store.has,
            "size_bytes": store.size_bytes,
            "delete": store.delete,
        }
        for key in _BAD_KEYS:
            for name, use in uses.items():
                refused(InputError, lambda: use(key), f"{name}({key!r}) with a bad key")  # noqa: B023

    def test_two_stores_at_one_place_see_the_same_objects(self, tmp_path: Path) -> None:
        """A machine writes and its controller reads, each with its own store object."""
        one, other = self.make_store(tmp_path / "store"), self.open_again(tmp_path / "store")
        if other is None:
            return
        one.put_once("a", b"1")
        assert other.get("a") == b"1", "another store object at the same place does not see what was written"
        assert not other.put_once("a", b"2"), "another store object at the same place replaced an object"

    def open_again(self, folder: Path) -> ObjectStore | None:
        """Open a second store object at the same place as the last one; None: not possible."""
        del folder
        return None


def _together(calls: list[Callable[[], None]]) -> None:
    """Make the calls at the same time, each in a thread; raises the first error."""
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
