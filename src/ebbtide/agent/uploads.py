"""Moves checkpoints to storage while training continues: one at a time, always the newest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.errors import SupersededWriterError
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointWriter
from ebbtide.storage.checkpoints.tree import remove_tree

_LOGGER = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.2
# Tries after which the user is told that a checkpoint is not stored.
_TRIES_UNTOLD = 5
_LONGEST_RETRY_S = 10.0


@dataclass(frozen=True)
class Uploaded:
    """The end of an upload: the checkpoint is in storage, or never will be.

    Attributes:
        step: Training step of the checkpoint.
        manifest: Manifest of the stored checkpoint; None: another machine has taken the trial over.
        seconds: Duration of the last try in seconds.
        left_out: What the checkpoint lacks, and why, by path.
    """

    step: int
    manifest: Manifest | None
    seconds: float
    left_out: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Waiting:
    only: str
    step: int
    folder: Path
    metric: float | None
    is_best: bool


class Uploads:
    """Uploads one trial's checkpoints in a thread of its own.

    Args:
        writer: Writer of the trial's checkpoints.
        folder: Local folder whose files, or folders, are checkpoints.
        keep: How many checkpoints stay in storage; 0: those from number `oldest` on.
        on_done: Called, from the thread, when an upload has ended.
        on_refused: Called, from the thread, with the step and the reason once several tries in a row have failed.
        runtime: Gives the time and the thread.

    Attributes:
        oldest: Number of the oldest checkpoint that stays, where `keep` is 0.
        kept: Numbers of checkpoints that stay whatever their age.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        folder: Path,
        keep: int,
        on_done: Callable[[Uploaded], None],
        on_refused: Callable[[int, str], None] = lambda _step, _why: None,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._writer, self._folder, self._keep = writer, folder, keep
        self._on_done, self._on_refused = on_done, on_refused
        # Tries in a row that failed, of whatever checkpoint: a newer one replaces one that waits.
        self._failed = 0
        self._runtime = runtime
        self.oldest = 0
        self.kept = writer.kept
        # Uploads that wait, in order: the newest, and perhaps a better one before it.
        self._waiting: list[_Waiting] = []
        self._busy = False
        self._closed = False
        self._lock = Lock()
        self._changed = runtime.flag()
        runtime.begin(self._run)

    @property
    def is_busy(self) -> bool:
        """True if an upload is under way or waiting."""
        with self._lock:
            return self._busy or bool(self._waiting)

    def add(
        self,
        only: str,
        step: int,
        copy: Path | None = None,
        *,
        metric: float | None = None,
        is_best: bool = False,
    ) -> None:
        """Upload a checkpoint. An older one that still waits is dropped, unless it is the best and this is not.

        Args:
            only: Name of the checkpoint's folder below the local folder; empty: all of the local folder.
            step: Training step of the checkpoint.
            copy: A copy to be uploaded instead of the local folder; None: there is none.
            metric: Value of the trial's metric that it was saved with; None: not known.
            is_best: Whether that is the best so far.
        """
        with self._lock:
            best = [each for each in self._waiting if each.is_best and not is_best]
            self._waiting = [*best[-1:], _Waiting(only, step, copy or self._folder, metric, is_best)]
        self._changed.set()

    def close(self) -> None:
        """Accept no more; an upload under way continues to its end, or to the end of this process."""
        self._closed = True
        self._changed.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                given = self._waiting.pop(0) if self._waiting else None
                self._busy = given is not None
            if given is None:
                if self._closed:
                    return
                self._changed.wait()
                self._changed.clear()
                continue
            found = self._uploaded(given)
            if found is not None:
                self._on_done(found)
            # Only now: a caller that finds no upload under way must have been told of the end of each.
            self._busy = False

    def _uploaded(self, given: _Waiting) -> Uploaded | None:
        """Upload a checkpoint; None: it was dropped, since it is gone or a newer one waits."""
        folder, only, step = given.folder, given.only, given.step
        retry_s = _FIRST_RETRY_S
        while True:
            began = self._runtime.monotonic_s()
            try:
                oldest = None if self._keep else self.oldest
                self._writer.kept = self.kept
                manifest = self._writer.save(
                    folder, step, only=only, keep=self._keep, oldest=oldest, metric=given.metric
                )
            except SupersededWriterError as error:
                _LOGGER.warning("%s", error)
                return Uploaded(step, None, self._runtime.monotonic_s() - began)
            except Exception as error:
                if not (folder / only).exists():
                    return None
                _LOGGER.warning("checkpoint of step %d is not stored yet: %s", step, error)
                self._failed += 1
                if self._failed == _TRIES_UNTOLD:
                    self._on_refused(step, str(error))
                self._changed.wait(retry_s)
                self._changed.clear()
                # The best checkpoint gives way only to a better one.
                if any(each.is_best or not given.is_best for each in self._waiting) or self._closed:
                    return None
                retry_s = min(2.0 * retry_s, _LONGEST_RETRY_S)
                continue
            self._failed = 0
            self._clear(only)
            seconds = self._runtime.monotonic_s() - began
            return Uploaded(step, manifest, seconds, self._writer.left_out)

    def _clear(self, only: str) -> None:
        """Remove checkpoints from this machine that are older than the one just stored."""
        if only:
            # Without the folder, the training is over on this machine.
            for path in self._folder.iterdir() if self._folder.is_dir() else ():
                if path.is_dir() and path.name < only and not path.name.startswith("."):
                    remove_tree(path)
