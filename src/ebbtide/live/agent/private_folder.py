"""The folder that a program runs in: its own copy of the user's code, so no trial writes over another's files."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from ebbtide.live.agent.checkpoint_folder import linked_view
from ebbtide.live.checkpoints.manifest import Manifest
from ebbtide.live.checkpoints.store import CheckpointStore
from ebbtide.live.storage import ObjectStore

_LOGGER = logging.getLogger(__name__)

# Of what a finished program leaves in its folder, so much is kept.
MOST_OUTPUT_BYTES = 1 << 30
_TRIES, _RETRY_S = 4, 2.0
# Where runs are kept: a program has no business there.
_LEFT_OUT = frozenset({".ebbtide", ".git"})


class PrivateFolder:
    """One, made anew.

    Args:
        path: Where; there is nothing yet.
        code: A folder whose files are copied; or else
        linked: a folder whose entries are linked to, since it is too large to be copied: they can be read, and
            what is written beside them is private.
    """

    def __init__(self, path: Path, *, code: Path | None = None, linked: Path | None = None) -> None:
        self.path = path
        if code is not None:
            shutil.copytree(code, path)
        elif linked is not None:
            linked_view(linked, path, _LEFT_OUT)
        else:
            path.mkdir(parents=True)
        self._before = {file: _stamp(file) for file in _files(path)}

    def leave_outputs(self) -> int:
        """Remove all but what was written since; returns its size in bytes."""
        size = 0
        for file in [path for path in self.path.rglob("*") if path.is_symlink()]:
            file.unlink()
        for cache in list(self.path.rglob("__pycache__")):
            shutil.rmtree(cache, ignore_errors=True)
        for file in _files(self.path):
            stamp = _stamp(file)
            if self._before.get(file) == stamp:
                file.unlink()
            else:
                size += stamp[0]
        return size


def outputs_id(trial_id: str) -> str:
    """Under which name what a finished trial left in its folder is kept, beside its checkpoints."""
    return f"{trial_id}-outputs"


def keep_outputs(objects: ObjectStore, trial_id: str, private: PrivateFolder, machine: str, step: int) -> str:
    """Store what a finished program left in its folder.

    Returns:
        Why it is not kept, for the program's log; empty: it is, or there is none.
    """
    size = private.leave_outputs()
    if not any(path.is_file() for path in private.path.rglob("*")):
        return ""
    if size > MOST_OUTPUT_BYTES:
        return (
            f"the files that the program left in its folder are not kept: {size / 2**30:.1f} GiB, "
            f"{MOST_OUTPUT_BYTES >> 30} at most; write them into EBBTIDE_CHECKPOINT_DIR"
        )
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_RETRY_S)
        try:
            manifest: Manifest = (
                CheckpointStore(objects, outputs_id(trial_id))
                .begin_writing(machine)
                .save(private.path, step, keep=1)
            )
        except Exception as error:
            _LOGGER.warning("outputs of trial %s are not stored yet: %s", trial_id, error)
            problem = str(error)
            continue
        _LOGGER.info("outputs of trial %s: %d files", trial_id, len(manifest.files))
        return ""
    return f"the files that the program left in its folder are not kept: {problem}"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
