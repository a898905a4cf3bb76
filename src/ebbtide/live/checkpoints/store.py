"""The checkpoints of one trial in object storage.

Below `trials/<id>/` are data (`data/<number>-<writer>/<file>`), manifests (`manifests/<number>`), claims of
writers (`writers/<n>`) and notes of checkpoints set aside (`aside/<number>`). Data is written first and the
manifest last, and never overwritten, so a checkpoint with a manifest is complete, and of two writers of the same
number one wins.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ebbtide.errors import (
    DamagedCheckpointError,
    InputError,
    MissingObjectError,
    StorageError,
    SupersededWriterError,
)
from ebbtide.live.checkpoints.manifest import Manifest, StoredFile, checksum_of, is_known, relative_path
from ebbtide.live.object_keys import checked_key
from ebbtide.live.runtime import RUNTIME, Runtime
from ebbtide.live.storage import ObjectStore, numbers_below

_LOGGER = logging.getLogger(__name__)

# Files moved at the same time: several for speed, but not so many that memory runs out.
_FILES_AT_A_TIME = 4
# What was not written to for so long was left by a writer that was killed.
_LEFT_FOR_S = 60.0


class CheckpointStore:
    """Reads the checkpoints of a trial.

    Args:
        objects: Storage that holds the checkpoints.
        trial_id: Id of the trial, the same on every machine; letters, digits and . _ = -.
        runtime: Gives the time, and moves several files at once.

    Raises:
        InputError: The id could lead to another place in storage.
    """

    def __init__(self, objects: ObjectStore, trial_id: str, runtime: Runtime = RUNTIME) -> None:
        if "/" in trial_id:
            raise InputError(f"{trial_id!r} is no id of a trial: use letters, digits and . _ = -")
        self.objects, self.runtime = objects, runtime
        self.trial_id = trial_id
        self.folder = checked_key(f"trials/{trial_id}")

    def manifests(self) -> Iterator[Manifest]:
        """Manifests of complete checkpoints, the newest first, without those set aside or damaged."""
        aside = self.numbers("aside")
        for number in sorted(self.numbers("manifests"), reverse=True):
            if number in aside:
                continue
            manifest = self._manifest(number)
            if manifest is not None:
                yield manifest

    def has(self, number: int) -> bool:
        """Whether the checkpoint of a number is complete, and is not set aside."""
        return self._manifest(number) is not None and number not in self.numbers("aside")

    def _manifest(self, number: int) -> Manifest | None:
        """A manifest under its own trial and number; None: there is none, or it is damaged or of another."""
        try:
            found = Manifest.decode(self.objects.get(f"{self.folder}/manifests/{number:08d}"))
        except MissingObjectError:
            return None
        except InputError as error:
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

    def restore(self, folder: Path) -> Manifest | None:
        """Put the newest undamaged checkpoint into a folder, in place of what is there.

        Returns:
            Its manifest; None: there is no such checkpoint, and the folder is unchanged.
        """
        for manifest in self.manifests():
            try:
                self.fetch(manifest, folder)
            except DamagedCheckpointError as error:
                _LOGGER.warning("checkpoint %d of trial %s is skipped: %s", manifest.number, self.trial_id, error)
                continue
            return manifest
        return None

    def fetch(self, manifest: Manifest, folder: Path) -> None:
        """Put one checkpoint into a folder, in place of what is there.

        Raises:
            DamagedCheckpointError: A file is missing, or differs from what the manifest says.
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
        shutil.rmtree(coming, ignore_errors=True)
        coming.mkdir(parents=True)

        def take(place: int, file: StoredFile) -> None:
            path = coming / relative_path(file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.objects.get_file(self.data_key(manifest.number, manifest.writer, place), path)
            except MissingObjectError:
                raise DamagedCheckpointError(f"{file.path} is missing") from None
            is_whole = path.stat().st_size == file.size_bytes and (
                not can_check or checksum_of(path, manifest.algorithm)[1] == file.checksum
            )
            if not is_whole:
                raise DamagedCheckpointError(f"{file.path} is not what was saved")

        try:
            with self.runtime.pool(_FILES_AT_A_TIME) as pool:
                list(pool.map(take, range(len(manifest.files)), manifest.files))
            shutil.rmtree(folder, ignore_errors=True)
            coming.rename(folder)
        finally:
            shutil.rmtree(coming, ignore_errors=True)

    def set_aside(self, number: int, why: str) -> None:
        """Never resume from a checkpoint again, because training fails from it."""
        self.objects.put_once(f"{self.folder}/aside/{number:08d}", why.encode())

    def add(self, manifest: Manifest, folder: Path) -> None:
        """Put those files of a checkpoint into a folder that it lacks.

        Raises:
            DamagedCheckpointError: A file is missing, or differs from what the manifest says.
        """
        more = folder.with_name(f".{folder.name}.more")
        try:
            self.fetch(manifest, more)
            for file in manifest.files:
                path = folder / relative_path(file.path)
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    (more / relative_path(file.path)).rename(path)
        finally:
            shutil.rmtree(more, ignore_errors=True)

    def manifest(self, number: int) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            DamagedCheckpointError: There is none, or it is damaged.
        """
        found = self._manifest(number)
        if found is None:
            raise DamagedCheckpointError(f"checkpoint {number} of trial {self.trial_id} has no whole manifest")
        return found

    def begin_writing(self, who: str, *, attempt: int = 0, machines: int = 1) -> CheckpointWriter:
        """Take the trial over: an earlier writer can complete no further checkpoint.

        Args:
            who: Id of the machine that writes from now on.
            attempt: Number of the assignment that checkpoints are saved in.
            machines: Number of machines that train it as one.
        """
        try:
            # Whoever wrote before writes no more: what it left is of no use to anybody.
            self.objects.clear_unfinished(f"{self.folder}/data/", _LEFT_FOR_S)
        except OSError as error:
            _LOGGER.warning("what earlier writers of trial %s left is not removed: %s", self.trial_id, error)
        number = max(self.numbers("writers"), default=0) + 1
        while not self.objects.put_once(f"{self.folder}/writers/{number:06d}", who.encode()):
            number += 1
        return CheckpointWriter(self, number, attempt=attempt, machines=machines)

    def numbers(self, kind: str) -> set[int]:
        """All numbers of one kind: of `manifests`, of `writers`, or of checkpoints set `aside`."""
        return numbers_below(self.objects, f"{self.folder}/{kind}")

    def data_key(self, number: int, writer: int, place: int) -> str:
        """Key of one file of a checkpoint, by its place in the manifest."""
        return f"{self.folder}/data/{number:08d}-{writer:06d}/{place:06d}"


class CheckpointWriter:
    """Writes the checkpoints of a trial, until another writer takes it over.

    Args:
        store: Checkpoints of the trial.
        writer: Number of this writer, counted from 1.
        attempt: Number of the assignment that checkpoints are saved in.
        machines: Number of machines that train it as one.
    """

    def __init__(self, store: CheckpointStore, writer: int, *, attempt: int = 0, machines: int = 1) -> None:
        self._store = store
        self._attempt, self._machines = attempt, machines
        self._objects = store.objects
        self.writer = writer
        self._next = max(store.numbers("manifests"), default=0) + 1

    def save(
        self, folder: Path, step: int, *, only: str = "", keep: int = 2, oldest: int | None = None
    ) -> Manifest:
        """Write a folder as the newest checkpoint, and remove those before the newest `keep`.

        Args:
            folder: Folder whose files are written, except hidden ones and those in hidden folders.
            step: Training step of the checkpoint.
            only: Name of a folder below `folder` to which the checkpoint is limited; empty: all of it.
            keep: How many complete checkpoints stay in storage.
            oldest: Instead, the number of the oldest one that stays.

        Raises:
            SupersededWriterError: Another writer has taken the trial over.
            OSError: A file cannot be read, or storage cannot be written.
        """
        while True:
            self._check_current()
            manifest = self._upload(folder, folder / only, step)
            self._check_current()
            key = f"{self._store.folder}/manifests/{manifest.number:08d}"
            try:
                is_written = self._objects.put_once(key, manifest.encode())
            except OSError:
                # It may have been, and then the data of this number must never be written again.
                self._next += 1
                raise
            if is_written:
                break
            # An earlier writer was slightly faster, before it could see this one. Again, with the next number.
            self._next = max(self._store.numbers("manifests")) + 1
        self._next += 1
        if oldest is None:
            self._prune(manifest, keep)
        else:
            self._remove_before(oldest)
        return manifest

    def _upload(self, folder: Path, below: Path, step: int) -> Manifest:
        """Write all data, which no reader sees before its manifest is written."""
        found = {path.relative_to(folder): path for path in below.rglob("*") if path.is_file()}
        whole = sorted(name for name in found if not any(part.startswith(".") for part in name.parts))
        names, paths = [name.as_posix() for name in whole], [found[name] for name in whole]
        keys = [self._store.data_key(self._next, self.writer, place) for place in range(len(paths))]
        with self._store.runtime.pool(_FILES_AT_A_TIME) as pool:
            # Checksums are computed while files are moved, so that they take no extra time.
            sums = [pool.submit(checksum_of, path) for path in paths]
            moved = [pool.submit(self._move, key, path) for key, path in zip(keys, paths, strict=True)]
            for move in moved:
                move.result()
            files = tuple(StoredFile(name, *each.result()) for name, each in zip(names, sums, strict=True))
        return Manifest(
            self._store.trial_id,
            self._next,
            self.writer,
            step,
            self._store.runtime.epoch_s(),
            files,
            attempt=self._attempt,
            machines=self._machines,
        )

    def _move(self, key: str, path: Path) -> None:
        """Store one file, and check its length: an upload may be cut short, and reported as complete."""
        self._objects.put_file(key, path)
        stored, wanted = self._objects.size_bytes(key), path.stat().st_size
        if stored != wanted:
            raise StorageError(f"of {path.name} {stored} of {wanted} bytes are stored")

    def _check_current(self) -> None:
        newest = max(self._store.numbers("writers"), default=0)
        if newest > self.writer:
            raise SupersededWriterError(
                f"trial {self._store.trial_id} has writer {newest}; this is {self.writer}, and it ends"
            )

    def _prune(self, newest: Manifest, keep: int) -> None:
        """Remove all checkpoints before the newest `keep`.

        A listing may not show all that there is, so nothing is removed only because it has no manifest, and
        nothing at all where fewer checkpoints are listed than stay: the others may be listed later.

        Args:
            newest: The checkpoint just written.
            keep: How many complete checkpoints stay.
        """
        others = (manifest for manifest in self._store.manifests() if manifest.number != newest.number)
        kept = [newest, *islice(others, max(keep, 1) - 1)]
        if len(kept) < keep:
            return
        self._remove_before(min(manifest.number for manifest in kept))

    def _remove_before(self, oldest: int) -> None:
        """Remove manifests of lower numbers, and then their data."""
        for number in self._store.numbers("manifests"):
            if number < oldest:
                self._objects.delete(f"{self._store.folder}/manifests/{number:08d}")
        prefix = f"{self._store.folder}/data/"
        for key in list(self._objects.keys(prefix)):
            digits = key.removeprefix(prefix).partition("-")[0]
            if digits.isdecimal() and int(digits) < oldest:
                self._objects.delete(key)
