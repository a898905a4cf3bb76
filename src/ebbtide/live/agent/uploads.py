"""Moves checkpoints to storage while training continues: one at a time, always the newest."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import SupersededWriterError
from ebbtide.live.checkpoints.manifest import Manifest
from ebbtide.live.checkpoints.store import CheckpointWriter

_LOGGER = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0


@dataclass(frozen=True)
class Uploaded:
    """The end of an upload: the checkpoint is in storage, or never will be.

    Attributes:
        step: Training step of the checkpoint.
        manifest: Manifest of the stored checkpoint; None: another machine has taken the trial over.
        seconds: Duration of the last try in seconds.
    """

    step: int
    manifest: Manifest | None
    seconds: float


class Uploads:
    """Uploads one trial's checkpoints in a thread of its own.

    Args:
        writer: Writer of the trial's checkpoints.
        folder: Local folder whose files, or folders, are checkpoints.
        keep: How many checkpoints stay in storage.
        on_done: Called, from the thread, when an upload has ended.
    """

    def __init__(
        self, writer: CheckpointWriter, folder: Path, keep: int, on_done: Callable[[Uploaded], None]
    ) -> None:
        self._writer, self._folder, self._keep, self._on_done = writer, folder, keep, on_done
        self._next: tuple[str, int, Path] | None = None
        self._busy = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether an upload is under way or waits."""
        with self._changed:
            return self._busy or self._next is not None

    def add(self, only: str, step: int, copy: Path | None = None) -> None:
        """Upload a checkpoint; one that still waits is older, and is dropped.

        Args:
            only: Name of the checkpoint's folder below the local folder; empty: all of the local folder.
            step: Training step of the checkpoint.
            copy: A copy to be uploaded instead of the local folder; None: there is none.
        """
        with self._changed:
            self._next = (only, step, copy or self._folder)
            self._changed.notify()

    def close(self) -> None:
        """Accept no more; an upload under way continues to its end, or to the end of this process."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next is not None)
                if self._next is None:
                    return
                (only, step, folder), self._next = self._next, None
                self._busy = True
            found = self._uploaded(folder, only, step)
            with self._changed:
                self._busy = False
            if found is not None:
                self._on_done(found)

    def _uploaded(self, folder: Path, only: str, step: int) -> Uploaded | None:
        """None: the checkpoint was dropped, since it is gone or a newer one waits."""
        retry_s = _FIRST_RETRY_S
        while True:
            began = time.monotonic()
            try:
                manifest = self._writer.save(folder, step, only=only, keep=self._keep)
            except SupersededWriterError as error:
                _LOGGER.warning("%s", error)
                return Uploaded(step, None, time.monotonic() - began)
            except Exception as error:
                if not (folder / only).exists():
                    return None
                _LOGGER.warning("checkpoint of step %d is not stored yet: %s", step, error)
                with self._changed:
                    if self._next is not None or self._closed:
                        return None
                    self._changed.wait(retry_s)
                retry_s = min(2.0 * retry_s, _LONGEST_RETRY_S)
                continue
            self._clear(only)
            return Uploaded(step, manifest, time.monotonic() - began)

    def _clear(self, only: str) -> None:
        """Remove checkpoints from this machine that are older than the one just stored."""
        if only:
            for path in self._folder.iterdir():
                if path.is_dir() and path.name < only and not path.name.startswith("."):
                    shutil.rmtree(path, ignore_errors=True)
