"""Moving checkpoints to storage while training goes on: one at a time, always the newest."""

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
    """A checkpoint is in storage, or never will be.

    Attributes:
        step: Of the training.
        manifest: None: another has taken the trial over.
        seconds: The last try took.
    """

    step: int
    manifest: Manifest | None
    seconds: float


class Uploads:
    """Uploads one trial's checkpoints in a thread of its own.

    Args:
        writer: Of the trial.
        folder: Whose files, or folders, are checkpoints.
        keep: How many stay in storage.
        tell: Called, from the thread, when one is done.
    """

    def __init__(
        self, writer: CheckpointWriter, folder: Path, keep: int, tell: Callable[[Uploaded], None]
    ) -> None:
        self._writer, self._folder, self._keep, self._tell = writer, folder, keep, tell
        self._next: tuple[str, int, Path] | None = None
        self._busy = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way or waits."""
        with self._changed:
            return self._busy or self._next is not None

    def add(self, only: str, step: int, copy: Path | None = None) -> None:
        """Upload a folder below ours, or all of ours, or a copy of it; whatever waits is older, and left out."""
        with self._changed:
            self._next = (only, step, copy or self._folder)
            self._changed.notify()

    def close(self) -> None:
        """Take no more; what is under way goes on to its end or to this process's."""
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
                self._tell(found)

    def _uploaded(self, folder: Path, only: str, step: int) -> Uploaded | None:
        """None: it was left out, since it is gone or a newer one waits."""
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
        """Remove from this machine what is older than what is stored."""
        if only:
            for path in self._folder.iterdir():
                if path.is_dir() and path.name < only and not path.name.startswith("."):
                    shutil.rmtree(path, ignore_errors=True)
