"""The checkpoints of one trial in object storage.

Below `trials/<id>/` are data (`data/<number>-<writer>/<part>`), manifests (`manifests/<number>`), claims of
writers (`writers/<n>`) and notes of checkpoints set aside (`aside/<number>`). Data is written first and the
manifest last, and neither is overwritten, so a checkpoint with a manifest is complete, and of two writers of the
same number one wins. A manifest names the part that holds the content of each file: unchanged content stays in
parts of earlier checkpoints, and small files share a part.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.errors import (
    DamagedAnswerError,
    DamagedCheckpointError,
    InputError,
    LostCheckpointError,
    MissingObjectError,
    MissingPartError,
    StorageError,
    SupersededWriterError,
)
from ebbtide.storage.checkpoints.manifest import (
    ALGORITHM,
    Manifest,
    StoredFile,
    StoredFolder,
    StoredLink,
    checksum_of,
    is_known,
    relative_path,
)
from ebbtide.storage.checkpoints.tree import (
    Tree,
    TreeEntry,
    blocks_of,
    copy_file,
    extents_of,
    finish_folders,
    remove_tree,
    set_attributes,
    set_time_of_link,
    tree_of,
    write_extents,
)
from ebbtide.storage.object_keys import checked_key
from ebbtide.storage.objects import ObjectStore, decoded_object, numbers_below

_LOGGER = logging.getLogger(__name__)

# Files moved at the same time: several for speed, but not so many that memory runs out.
_FILES_AT_A_TIME = 4
# Unfinished data that was not written to for this long was left by a killed writer.
_LEFT_FOR_S = 60.0
# Smaller files are stored together: a request for each would take longer than their content.
_SMALL_BYTES, _TOGETHER_BYTES = 256 << 10, 16 << 20
# Numbers in a row without a manifest after which there is none: each write that fails leaves its number out.
_MISSING = 6
# Numbers before one that is known to be stored that are asked for by name.
_BEFORE = 16


class CheckpointStore:
    """Reads the checkpoints of a trial.

    Args:
        objects: Storage that holds the checkpoints.
        trial_id: Id of the trial, the same on every machine; letters, digits and . _ = -.
        runtime: Gives the time, and moves several files at once.
        expected: Number of a checkpoint that is known to be stored, whatever listings show; 0: none is.

    Raises:
        InputError: The id could lead to another place in storage.
    """

    def __init__(
        self, objects: ObjectStore, trial_id: str, runtime: Runtime = RUNTIME, *, expected: int = 0
    ) -> None:
        if "/" in trial_id:
            raise InputError(f"{trial_id!r} is no id of a trial: use letters, digits and . _ = -")
        self.objects, self.runtime = objects, runtime
        self.trial_id, self.expected = trial_id, expected
        # Numbers that were set aside here, which listings may not show for minutes.
        self._aside: set[int] = set()
        self.folder = checked_key(f"trials/{trial_id}")

    def manifests(self, *, skips_damaged: bool = True) -> Iterator[Manifest]:
        """Manifests of complete checkpoints, the newest first, without those set aside or damaged.

        Args:
            skips_damaged: Whether a damaged manifest is left out though it is newer than all others.

        Raises:
            LostCheckpointError: All that are known are gone: the listing is some time old, and newer ones exist.
            DamagedCheckpointError: The newest manifest is damaged, which is not left out.
        """
        numbers = self.stored()
        is_gone = bool(numbers) and not any(map(self.has_manifest, sorted(numbers, reverse=True)))
        # Stray objects are no checkpoints: nothing is stored with them.
        if is_gone and any(True for _ in self.objects.keys(f"{self.folder}/data/")):
            raise LostCheckpointError(
                f"the checkpoints of trial {self.trial_id} are listed as they were a while ago"
            )
        return self.manifests_of(numbers, skips_damaged=skips_damaged)

    def manifests_of(self, numbers: Iterable[int], *, skips_damaged: bool = True) -> Iterator[Manifest]:
        """Those of these numbers that are complete; arguments and errors are those of `manifests`."""
        aside, has_newer = self.aside(), False
        for number in sorted(numbers, reverse=True):
            if number in aside:
                continue
            manifest = self.read(number)
            if manifest is not None:
                has_newer = True
                yield manifest
            elif not skips_damaged and number == self.expected and self.has_manifest(number):
                raise self._unreadable(number)
            elif has_newer:
                continue
            elif number == self.expected and not self.has_manifest(number):
                raise self._lost()
            elif not skips_damaged and self.is_stored(number):
                raise self._unreadable(number)

    def _unreadable(self, number: int) -> DamagedCheckpointError:
        return DamagedCheckpointError(f"checkpoint {number} of trial {self.trial_id} has no whole manifest")

    def unreadable(self, readable: Iterable[int]) -> set[int]:
        """Numbers of checkpoints that are stored, or listed, beside those that could be read.

        Stray manifests do not count: nothing is stored with them.
        """
        others = self.stored() - self.aside() - set(readable)
        return {number for number in others if self.is_stored(number) or not self.has_manifest(number)}

    def check_all_readable(self) -> None:
        """Raise `DamagedCheckpointError` if a checkpoint is stored, or listed, that cannot be read now."""
        for number in self.unreadable(each.number for each in self.manifests()):
            raise self._unreadable(number)

    def check_is_there(self) -> None:
        """Raise `LostCheckpointError` if the expected checkpoint is missing: storage cannot be the run's."""
        if max(self.stored(), default=0) < self.expected:
            raise self._lost()

    def _lost(self) -> LostCheckpointError:
        return LostCheckpointError(
            f"storage has no checkpoint {self.expected} of trial {self.trial_id}, which was stored: is it mounted?"
        )

    def stored(self) -> set[int]:
        """Numbers of manifests, with new ones that a listing may not show for minutes: each is asked for by name.

        A deleted one may still be listed.
        """
        numbers = self.numbers("manifests")
        # The one that is known may be damaged, so those just before it are asked for, too.
        number, missing = max(max(numbers, default=0) + 1, self.expected - _BEFORE), 0
        while number <= self.expected or missing < _MISSING:
            is_there = self.has_manifest(number)
            numbers |= {number} if is_there else set()
            number, missing = number + 1, 0 if is_there else missing + 1
        return numbers

    def has_manifest(self, number: int) -> bool:
        """Return whether there is a manifest of a number, damaged or not."""
        return self.objects.has(self.manifest_key(number))

    def is_stored(self, number: int) -> bool:
        """Return whether there is a checkpoint of a number, damaged or not: a stray manifest has no data."""
        if not self.has_manifest(number):
            return False
        return number == self.expected or any(True for _ in self.objects.keys(f"{self.folder}/data/{number:08d}-"))

    def aside(self) -> set[int]:
        """Numbers of checkpoints set aside."""
        return self.numbers("aside") | self._aside

    def best(self, direction: str) -> Manifest | None:
        """The newest of the checkpoints with the best value of the trial's metric.

        Args:
            direction: Whether a lower or a higher value is better, `minimize` or `maximize`.

        Returns:
            Its manifest; None: no checkpoint has a known value.
        """
        return best_of(self.manifests(), direction)

    def has(self, number: int) -> bool:
        """Return whether the checkpoint of a number is complete and not set aside."""
        return self.read(number) is not None and number not in self.aside()

    def read(self, number: int) -> Manifest | None:
        """The manifest of a checkpoint; None: there is none, or it is damaged or of another trial or number."""
        try:
            found = decoded_object(self.objects, self.manifest_key(number), Manifest.decode)
        except MissingObjectError:
            return None
        except (InputError, DamagedAnswerError) as error:
            _LOGGER.warning("checkpoint %d of trial %s is skipped: %s", number, self.trial_id, error)
            return None
        if (found.trial_id, found.number) != (self.trial_id, number):
            _LOGGER.warning(
                "checkpoint %d of trial %s is skipped: its manifest is of checkpoint %d of trial %s",
                number,
                self.trial_id,
                found.number,
                found.trial_id,
            )
            return None
        return found

    def restore(
        self, folder: Path, *, best: str = "", skips_missing: bool = True, skips_damaged: bool = True
    ) -> Manifest | None:
        """Put the newest undamaged checkpoint into a folder, in place of what is there.

        Args:
            folder: The folder.
            best: Whether a lower or a higher metric is better, `minimize` or `maximize`: take the undamaged
                checkpoint with the best value, or the newest if no value is known. Empty: take the newest.
            skips_missing: Whether a checkpoint of which a part is missing is skipped.
            skips_damaged: Whether one whose manifest or content is not what was stored is skipped.

        Returns:
            Its manifest; None: there is no such checkpoint, and the folder is unchanged.

        Raises:
            MissingPartError: A part of a checkpoint is missing, which is not skipped, or no other is whole.
            DamagedCheckpointError: A checkpoint is damaged, which is not skipped, or no other is whole.
        """
        last: DamagedCheckpointError | None = None
        for manifest in self._from_best(best) if best else self.manifests(skips_damaged=skips_damaged):
            try:
                self._fetch_twice(manifest, folder)
            except DamagedCheckpointError as error:
                if not (skips_missing if isinstance(error, MissingPartError) else skips_damaged):
                    raise
                last = error
                _LOGGER.warning("checkpoint %d of trial %s is skipped: %s", manifest.number, self.trial_id, error)
                continue
            return manifest
        if last is not None:
            raise last
        return None

    def _fetch_twice(self, manifest: Manifest, folder: Path) -> None:
        """Fetch a checkpoint; once more if it is damaged, since an answer may have been cut off."""
        try:
            self.fetch(manifest, folder)
        except MissingPartError:
            raise
        except DamagedCheckpointError as error:
            _LOGGER.warning("%s; it is read again", error)
            self.fetch(manifest, folder)

    def _from_best(self, direction: str) -> list[Manifest]:
        """All manifests, the best value first, those without a value last, and the newest first among equals."""
        sign = -1.0 if direction == "maximize" else 1.0
        return sorted(self.manifests(), key=lambda each: math.inf if each.metric is None else sign * each.metric)

    def fetch(self, manifest: Manifest, folder: Path) -> None:
        """Put one checkpoint into a folder, in place of what is there.

        Raises:
            MissingPartError: Storage lacks the content of a file.
            DamagedCheckpointError: A file differs from what the manifest says.
        """
        can_check = is_known(manifest.algorithm)
        if not can_check:
            _LOGGER.warning(
                "checkpoint %d of trial %s has checksums by %s, unknown here: only lengths are checked",
                manifest.number,
                self.trial_id,
                manifest.algorithm,
            )
        coming = folder.with_name(f".{folder.name}.coming")
        remove_tree(coming)
        coming.mkdir(parents=True)
        by_part: dict[str, list[StoredFile]] = defaultdict(list)
        for place, file in enumerate(manifest.files):
            if not file.same_as:
                by_part[self.part_key(manifest, place)].append(file)

        def take(key: str, files: list[StoredFile]) -> None:
            try:
                self._take(key, files, coming)
            except MissingObjectError:
                raise MissingPartError(
                    f"{files[0].path} of checkpoint {manifest.number} of trial {self.trial_id} is missing"
                ) from None
            for file in files:
                if not _is_whole(file, coming / relative_path(file.path), manifest.algorithm if can_check else ""):
                    which = f"checkpoint {manifest.number} of trial {self.trial_id}"
                    raise DamagedCheckpointError(f"{file.path} of {which} is not what was saved")

        try:
            for name in sorted({*(each.path for each in manifest.folders), *_above(manifest)}):
                (coming / relative_path(name)).mkdir(parents=True, exist_ok=True)
            with self.runtime.pool(_FILES_AT_A_TIME) as pool:
                list(pool.map(take, by_part, by_part.values()))
            _finish(manifest, coming)
            remove_tree(folder)
            coming.rename(folder)
        finally:
            remove_tree(coming)

    def _take(self, key: str, files: list[StoredFile], coming: Path) -> None:
        """Read the files whose content is in one object."""
        first = files[0]
        if len(files) == 1 and not first.offset and first.extents is None:
            self.objects.get_file(key, coming / relative_path(first.path))
            # The object may also hold the content of other files, which have changed since.
            with (coming / relative_path(first.path)).open("r+b") as written:
                if written.seek(0, 2) > first.size_bytes:
                    written.truncate(first.size_bytes)
            return
        with tempfile.TemporaryDirectory(dir=coming.parent, prefix=".part") as place:
            part = Path(place) / "part"
            self.objects.get_file(key, part)
            for file in files:
                extents = ((0, file.size_bytes),) if file.extents is None and file.size_bytes else file.extents
                write_extents(part, coming / relative_path(file.path), extents or (), file.size_bytes, file.offset)

    def set_aside(self, number: int, why: str) -> None:
        """Never resume from a checkpoint again, because training fails from it."""
        self.objects.put_once(f"{self.folder}/aside/{number:08d}", why.encode())
        self._aside.add(number)

    def add(self, manifest: Manifest, folder: Path) -> None:
        """Add to a folder those files of a checkpoint that it lacks.

        Raises:
            DamagedCheckpointError: A file is missing, or differs from what the manifest says.
        """
        more = folder.with_name(f".{folder.name}.more")
        try:
            self.fetch(manifest, more)
            found = tree_of(more)
            for entry in found.entries if found is not None else ():
                path = folder / entry.path
                if entry.kind == "folder":
                    path.mkdir(exist_ok=True)
                elif not path.exists() and not path.is_symlink():
                    (more / entry.path).rename(path)
        finally:
            remove_tree(more)

    def manifest(self, number: int) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            MissingPartError: There is none.
            DamagedCheckpointError: It is damaged.
        """
        found = self.read(number)
        if found is None:
            is_there = self.has_manifest(number)
            raise (DamagedCheckpointError if is_there else MissingPartError)(
                f"checkpoint {number} of trial {self.trial_id} has no whole manifest"
            )
        return found

    def begin_writing(self, who: str, *, attempt: int = 0, machines: int = 1) -> CheckpointWriter:
        """Take the trial over: an earlier writer can complete no further checkpoint.

        Args:
            who: Id of the machine that writes from now on.
            attempt: Number of the assignment that checkpoints are saved in.
            machines: Number of machines that train it as one.
        """
        try:
            # Earlier writers write no more, so the data that they left unfinished is useless.
            self.objects.clear_unfinished(f"{self.folder}/data/", _LEFT_FOR_S)
        except OSError as error:
            _LOGGER.warning("what earlier writers of trial %s left is not removed: %s", self.trial_id, error)
        number = max(self.numbers("writers"), default=0) + 1
        while not self.objects.put_once(self.writer_key(number), who.encode()):
            number += 1
        return CheckpointWriter(self, number, attempt=attempt, machines=machines)

    def numbers(self, kind: str) -> set[int]:
        """All numbers of one kind: of `manifests`, of `writers`, or of checkpoints set `aside`."""
        return numbers_below(self.objects, f"{self.folder}/{kind}")

    def writer_key(self, number: int) -> str:
        """Key of the claim of a writer."""
        return f"{self.folder}/writers/{number:06d}"

    def manifest_key(self, number: int) -> str:
        """Key of the manifest of a checkpoint."""
        return f"{self.folder}/manifests/{number:08d}"

    def data_key(self, number: int, writer: int, place: int) -> str:
        """Key of a part by the checkpoint and the writer that stored it, and its place among theirs."""
        return f"{self.folder}/data/{_part_name(number, writer, place)}"

    def part_key(self, manifest: Manifest, place: int) -> str:
        """Key of the part that holds the content of a checkpoint's file, by the file's place in the manifest."""
        return f"{self.folder}/data/{_part(manifest, place)}"


class CheckpointWriter:
    """Writes the checkpoints of a trial, until another writer takes it over.

    Args:
        store: Checkpoints of the trial.
        writer: Number of this writer, counted from 1.
        attempt: Number of the assignment that checkpoints are saved in.
        machines: Number of machines that train it as one.

    Attributes:
        kept: Numbers of checkpoints that stay in storage whatever their age.
        unread: Numbers of checkpoints that could not be read when writing began, and stay: one may be the best.
        left_out: What the newest checkpoint lacks, and why, by path.
    """

    def __init__(self, store: CheckpointStore, writer: int, *, attempt: int = 0, machines: int = 1) -> None:
        self._store = store
        self._attempt, self._machines = attempt, machines
        self._objects = store.objects
        self.writer = writer
        self.kept: frozenset[int] = frozenset()
        self.unread: frozenset[int] = frozenset()
        self.left_out: tuple[tuple[str, str], ...] = ()
        self._next = max(store.stored() | {store.expected}) + 1
        self._place = 0
        # The files of the newest checkpoint by inode, length and time of change, and by content.
        self._unchanged: dict[tuple[object, ...], StoredFile] = {}
        # Manifests that are stored, whether a listing shows them yet or not.
        self._read: dict[int, Manifest | None] = {}
        self._contents: dict[tuple[object, ...], StoredFile] = {}
        # Parts that a manifest of this writer names, so that nobody removes them.
        self._checked: set[str] = set()
        # Bytes of each upload since the newest manifest was written, by whatever thread.
        self._uploaded_bytes: list[int] = []

    def knows(self, manifest: Manifest) -> None:
        """Note what was restored: files that have not changed since are not stored again.

        Args:
            manifest: The checkpoint; ignored if it is of another trial, or has checksums that are not made here.
        """
        if manifest.trial_id != self._store.trial_id or manifest.algorithm != ALGORITHM:
            return
        self._read[manifest.number] = manifest
        files = [replace(file, part=_part(manifest, place)) for place, file in enumerate(manifest.files)]
        self._contents = {_content(file): file for file in files if file.content_bytes and not file.same_as}

    def save(
        self,
        folder: Path,
        step: int,
        *,
        only: str = "",
        keep: int = 2,
        oldest: int | None = None,
        metric: float | None = None,
    ) -> Manifest:
        """Write a folder as the newest checkpoint, and remove those before the newest `keep`.

        Args:
            folder: Folder whose entries are written.
            step: Training step of the checkpoint.
            only: Name of a folder below `folder` to which the checkpoint is limited; empty: all of it.
            keep: How many complete checkpoints stay in storage, beside those in `kept`.
            oldest: Number of the oldest checkpoint that stays, instead of `keep`; None: `keep` applies.
            metric: Value of the trial's metric at that step; None: not known.

        Raises:
            SupersededWriterError: Another writer has taken the trial over.
            OSError: A file cannot be read, or the checkpoint cannot be written.
        """
        while True:
            self._check_current()
            manifest = replace(self._upload(folder, step, only), metric=metric)
            self._check_current()
            if not self._has_parts_of_others(manifest):
                # The previous writer has removed them since, so restored content must be stored again.
                self._unchanged, self._contents = {}, {}
                self._begin_number(self._next + 1)
                continue
            try:
                is_written = self._objects.put_once(self._store.manifest_key(manifest.number), manifest.encode())
            except OSError:
                # The manifest may have been written, so the data of this number must never be written again.
                self._begin_number(self._next + 1)
                raise
            if is_written:
                break
            # An earlier writer, which had not seen this one yet, was faster: try again with the next number.
            # A listing may not show for minutes which that is, and lower numbers may have data of this writer.
            number = max({self._next, *self._store.numbers("manifests")}) + 1
            while self._store.has_manifest(number):
                number += 1
            self._begin_number(number)
        self._begin_number(self._next + 1)
        self._uploaded_bytes.clear()
        self._read[manifest.number] = manifest
        try:
            if oldest is None:
                self._prune(manifest, keep)
            else:
                self._remove_before(oldest)
        except OSError as error:
            # The checkpoint is stored; older ones that are not removed now will be after the next save.
            _LOGGER.warning("older checkpoints of trial %s are not removed yet: %s", self._store.trial_id, error)
        return manifest

    def _has_parts_of_others(self, manifest: Manifest) -> bool:
        """Return whether storage still has the parts of a checkpoint that earlier writers stored."""
        parts = {file.part for file in manifest.files if file.content_bytes} - self._checked
        others = [part for part in parts if int(part.partition("/")[0].partition("-")[2]) != self.writer]
        try:
            for part in others:
                self._objects.size_bytes(f"{self._store.folder}/data/{part}")
        except MissingObjectError:
            return False
        self._checked |= parts
        return True

    def _begin_number(self, number: int) -> None:
        self._next, self._place = number, 0

    def _upload(self, folder: Path, step: int, only: str) -> Manifest:
        """Write all data, which no reader sees before its manifest is written."""
        tree = tree_of(folder, only)
        if tree is None:
            raise FileNotFoundError(f"{folder / only} is gone, or changed while it was read")
        self.left_out = tree.left_out
        found: dict[str, StoredFile] = {}
        first: dict[tuple[int, int], str] = {}
        new: list[TreeEntry] = []
        for entry in tree.of("file"):
            stored = self._unchanged.get(_identity(entry))
            if entry.inode in first:
                found[entry.path] = StoredFile(entry.path, 0, "", same_as=first[entry.inode])
                continue
            first[entry.inode] = entry.path
            if stored is None:
                new.append(entry)
            else:
                found[entry.path] = _as_entry(stored, entry)
        found |= {file.path: file for file in self._stored(folder, new)}
        for path, file in found.items():
            if file.same_as:
                found[path] = replace(found[file.same_as], path=path, same_as=file.same_as)
        files = tuple(found[entry.path] for entry in tree.of("file"))
        # Remember only what this checkpoint has: parts that no later manifest names may be removed.
        self._unchanged = {
            _identity(entry): file for entry, file in zip(tree.of("file"), files, strict=True) if not file.same_as
        }
        self._contents = {_content(file): file for file in files if file.content_bytes}
        return Manifest(
            trial_id=self._store.trial_id,
            number=self._next,
            writer=self.writer,
            step=step,
            saved_at_s=self._store.runtime.epoch_s(),
            files=files,
            attempt=self._attempt,
            machines=self._machines,
            links=tuple(StoredLink(entry.path, entry.target, entry.mtime_ns) for entry in tree.of("link")),
            folders=tuple(StoredFolder(entry.path, entry.mode, entry.mtime_ns) for entry in tree.of("folder")),
            uploaded_bytes=sum(self._uploaded_bytes),
            unreadable=tree.unreadable,
        )

    def _stored(self, folder: Path, entries: list[TreeEntry]) -> list[StoredFile]:
        """Store the files that have changed, unless their content is stored already."""
        sizes = {file.content_bytes for file in self._contents.values()}
        small = [entry for entry in entries if entry.size_bytes < _SMALL_BYTES]
        large = [entry for entry in entries if entry.size_bytes >= _SMALL_BYTES]
        with self._store.runtime.pool(_FILES_AT_A_TIME) as pool:
            waiting: list[Future[list[StoredFile]]] = [
                pool.submit(self._store_together, folder, group, self._new_part()) for group in _groups(small)
            ]
            sums: list[tuple[TreeEntry, str, Future[tuple[int, str]], Future[None]]] = []
            for entry in large:
                part, path = self._new_part(), folder / entry.path
                if entry.is_sparse or entry.size_bytes in sizes:
                    waiting.append(pool.submit(self._store_if_new, folder, entry, part))
                else:
                    # The checksum is computed while the file is moved, so that it takes no extra time.
                    sums.append(
                        (
                            entry,
                            part,
                            pool.submit(checksum_of, path),
                            pool.submit(self._move, part, path, entry.path),
                        )
                    )
            found = [file for each in waiting for file in each.result()]
            for entry, part, total, moved in sums:
                moved.result()
                found.append(_as_entry(StoredFile(entry.path, *total.result(), part=part), entry))
        return found

    def _new_part(self) -> str:
        self._place += 1
        return _part_name(self._next, self.writer, self._place - 1)

    def _store_together(self, folder: Path, entries: list[TreeEntry], part: str) -> list[StoredFile]:
        """Store small files in one part."""
        found, begins = [], 0
        with tempfile.TemporaryDirectory(prefix="ebbtide-") as place:
            together = Path(place) / "together"
            with together.open("wb") as written:
                for entry in entries:
                    size, total = checksum_of(folder / entry.path)
                    file = _as_entry(StoredFile(entry.path, size, total, part=part, offset=begins), entry)
                    known = self._contents.get(_content(file))
                    if known is None:
                        for block in blocks_of(folder / entry.path):
                            begins += written.write(block)
                        if begins != file.offset + size:
                            raise StorageError(f"{entry.path} changed while it was stored")
                    found.append(file if known is None else _as_entry(known, entry))
            if any(file.part == part for file in found):
                self._move(part, together, entries[0].path if len(entries) == 1 else f"{len(entries)} files")
        return found

    def _store_if_new(self, folder: Path, entry: TreeEntry, part: str) -> list[StoredFile]:
        """Store a file in a part of its own, unless its content is stored already."""
        path = folder / entry.path
        extents = extents_of(path) if entry.is_sparse else None
        if extents == ((0, entry.size_bytes),):
            extents = None
        _, total = checksum_of(path, extents=extents)
        file = StoredFile(entry.path, entry.size_bytes, total, part=part, extents=extents)
        known = self._contents.get(_content(file))
        if known is not None:
            return [_as_entry(known, entry)]
        if extents is None:
            self._move(part, path, entry.path)
        else:
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part") as place:
                dense = Path(place) / "dense"
                with dense.open("wb") as written:
                    for block in blocks_of(path, extents):
                        written.write(block)
                self._move(part, dense, entry.path)
        return [_as_entry(file, entry)]

    def _move(self, part: str, path: Path, what: str) -> None:
        """Store one part, and check its length: an upload may be cut short, and reported as complete."""
        key = f"{self._store.folder}/data/{part}"
        self._objects.put_file(key, path)
        stored, wanted = self._objects.size_bytes(key), path.stat().st_size
        if stored != wanted:
            raise StorageError(f"of {what} {stored} of {wanted} bytes are stored")
        self._uploaded_bytes.append(wanted)

    def _check_current(self) -> None:
        newest = max(self._store.numbers("writers"), default=0)
        # A listing may not show the next one for minutes.
        if newest <= self.writer and self._objects.has(self._store.writer_key(self.writer + 1)):
            newest = self.writer + 1
        if newest > self.writer:
            raise SupersededWriterError(
                f"trial {self._store.trial_id} has writer {newest}; this is {self.writer}, and it ends"
            )

    def _prune(self, newest: Manifest, keep: int) -> None:
        """Remove all checkpoints before the newest `keep`.

        A listing may be incomplete, so nothing is removed only because it has no manifest, and nothing at all if
        fewer checkpoints are listed than should stay: the others may be listed later.

        Args:
            newest: The checkpoint just written.
            keep: How many complete checkpoints stay.
        """
        others = (
            manifest
            for manifest in self._store.manifests_of(self._store.numbers("manifests"))
            if manifest.number != newest.number
        )
        kept = [newest, *islice(others, max(keep, 1) - 1)]
        if len(kept) < keep:
            return
        self._remove_before(min(manifest.number for manifest in kept))

    def _newest_readable(self, numbers: Iterable[int]) -> set[int]:
        """Number of the newest checkpoint that lacks no unreadable file: those that lack some replace none."""
        aside: set[int] | None = None
        for number in sorted(numbers, reverse=True):
            manifest = self._read.get(number) or self._store.read(number)
            if manifest is None or manifest.unreadable:
                # Training fails from those that are set aside; the newest of all is not.
                aside = self._store.aside() if aside is None else aside
            elif not aside or number not in aside:
                return {number}
        return set()

    def _remove_before(self, oldest: int) -> None:
        """Remove manifests of lower numbers, and then their data, unless another checkpoint uses it.

        One whose manifest cannot be read stays, with all that was stored before it: it may be the best, and be
        readable later.
        """
        numbers = self._store.numbers("manifests") | set(self._read)
        self._read = {number: self._read.get(number) or self._store.read(number) for number in numbers}
        unread = {number for number, found in self._read.items() if not found and self._store.is_stored(number)}
        unread |= self.unread
        old = {number for number in numbers if number < oldest}
        gone = old - self.kept - self._newest_readable(numbers) - unread
        self._read = {number: found for number, found in self._read.items() if number not in gone}
        parts = {file.part for manifest in self._read.values() if manifest for file in manifest.files}
        for number in gone:
            self._objects.delete(self._store.manifest_key(number))
        prefix = f"{self._store.folder}/data/"
        for key in list(self._objects.keys(prefix)):
            part = key.removeprefix(prefix)
            digits = part.partition("-")[0]
            is_old = (
                digits.isdecimal()
                and max(unread, default=0) < int(digits) < oldest
                and int(digits) not in self.kept | self._read.keys()
            )
            if is_old and part not in parts:
                self._objects.delete(key)


def _part_name(number: int, writer: int, place: int) -> str:
    """Name of a part by the checkpoint and the writer that stored it, and its place among theirs."""
    return f"{number:08d}-{writer:06d}/{place:06d}"


def _part(manifest: Manifest, place: int) -> str:
    """Name of the part that holds the content of a checkpoint's file, by the file's place in the manifest."""
    return manifest.files[place].part or _part_name(manifest.number, manifest.writer, place)


def stored_tree(manifest: Manifest) -> Tree:
    """The files and links of a checkpoint, as its manifest lists them."""
    files = [
        TreeEntry(each.path, "file", each.mode, each.mtime_ns, each.size_bytes, (0, 0)) for each in manifest.files
    ]
    links = [TreeEntry(link.path, "link", 0, link.mtime_ns, 0, (0, 0), link.target) for link in manifest.links]
    return Tree((*files, *links))


def best_of(manifests: Iterable[Manifest], direction: str) -> Manifest | None:
    """The first of the manifests with the best value of the metric; None: none has a known value."""
    found: Manifest | None = None
    for each in manifests:
        if is_better(each.metric, None if found is None else found.metric, direction):
            found = each
    return found


def is_better(value: float | None, other: float | None, direction: str) -> bool:
    """Return whether a metric is better than another; no metric (None) is worse than any.

    Args:
        value: Value of the metric.
        other: Value that it is compared with.
        direction: Whether a lower or a higher value is better, `minimize` or `maximize`; empty: no value is.
    """
    if not direction or value is None:
        return False
    return other is None or (value > other if direction == "maximize" else value < other)


def _groups(entries: Iterable[TreeEntry]) -> Iterator[list[TreeEntry]]:
    """Small files in groups, each of which is stored as one part."""
    group: list[TreeEntry] = []
    size = 0
    for entry in entries:
        if group and size + entry.size_bytes > _TOGETHER_BYTES:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size_bytes
    if group:
        yield group


def _identity(entry: TreeEntry) -> tuple[object, ...]:
    return (*entry.inode, entry.size_bytes, entry.mtime_ns)


def _content(file: StoredFile) -> tuple[object, ...]:
    return file.checksum, file.size_bytes, file.extents


def _as_entry(file: StoredFile, entry: TreeEntry) -> StoredFile:
    """The record of a file whose content is stored already, under the name and with the attributes of another."""
    return replace(file, path=entry.path, mode=entry.mode, mtime_ns=entry.mtime_ns, same_as="")


def _above(manifest: Manifest) -> set[str]:
    """Folders that contain files and links: manifests of former versions do not name them."""
    paths = [*(file.path for file in manifest.files), *(link.path for link in manifest.links)]
    return {path.rpartition("/")[0] for path in paths if "/" in path}


def _is_whole(file: StoredFile, path: Path, algorithm: str) -> bool:
    """Return whether a restored file is as it was stored; without an algorithm only its length is compared."""
    if path.stat().st_size != file.size_bytes:
        return False
    return not algorithm or checksum_of(path, algorithm, file.extents)[1] == file.checksum


def _finish(manifest: Manifest, folder: Path) -> None:
    """Make the links of a checkpoint, and give everything its permissions and times."""
    for file in manifest.files:
        path = folder / relative_path(file.path)
        if file.same_as:
            first = folder / relative_path(file.same_as)
            try:
                path.hardlink_to(first)
            except OSError:
                copy_file(first, path)  # a file system without hard links
        if file.mtime_ns or file.mode:
            set_attributes(path, file.mode, file.mtime_ns)
    for link in manifest.links:
        path = folder / relative_path(link.path)
        path.symlink_to(link.target)
        set_time_of_link(path, link.mtime_ns)
    finish_folders(folder, [(each.path, each.mode, each.mtime_ns) for each in manifest.folders])
