"""Fetches what a trial has stored: its newest complete checkpoint, its output files, and its log."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.agent.folders import outputs_id
from ebbtide.agent.inputs import fetch_checkpoint
from ebbtide.clouds.settings import RunFolder
from ebbtide.errors import DamagedCheckpointError, InputError
from ebbtide.jobs.job_list import runnable
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.tree import remove_tree
from ebbtide.storage.objects import object_store

_CHECKPOINT, _OUTPUTS, _LOG = "checkpoint", "outputs", "log.txt"


@dataclass(frozen=True)
class FetchedTrial:
    """Result of fetching one trial: its checkpoint, its output files and its log.

    Attributes:
        folder: Local folder with `checkpoint/`, `outputs/` and `log.txt`, as far as the trial has them.
        step: Training step of the checkpoint; None: the trial has none.
        metric: Value of the trial's metric with which the checkpoint was stored; None: not known.
        is_new: Whether anything was written; false if the same files were there already.
        outputs: Sizes in bytes of the files that the program left in its folder, by name.
        problem: Why these files could not be fetched; empty: they are, or there are none.
    """

    folder: Path
    step: int | None
    is_new: bool
    metric: float | None = None
    outputs: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


def fetch_trial(run: RunFolder, trial_id: str, into: Path, *, best: str = "", ranks: int = 1) -> FetchedTrial:
    """Fetch one trial, completely or not at all; each file is checked against its stored checksum.

    Args:
        run: Folder of the run.
        trial_id: Id of the trial in storage.
        into: Folder below which a folder with the trial's id is made.
        best: Direction of the metric, `minimize` or `maximize`: the checkpoint with the best value is fetched.
            Empty: the newest is.
        ranks: Most machines that train it as one, each of which may have stored a part of the checkpoint.

    Raises:
        InputError: The trial has stored nothing, the folder holds other files already, or `into` is a file.
        OSError: Storage does not answer, or the folder cannot be written.
    """
    if into.exists() and not into.is_dir():
        raise InputError("is a file; name a folder", file=into)
    objects = object_store(run.settings.store)
    target = into / trial_id
    coming = into / f".{trial_id}.coming"
    remove_tree(coming)
    coming.mkdir(parents=True)
    try:
        ids = [trial_id, *(f"{trial_id}-r{rank}" for rank in range(1, ranks))]
        try:
            manifest = fetch_checkpoint(objects, ids, coming / _CHECKPOINT, best=best)
        except DamagedCheckpointError as error:
            raise InputError(f"the checkpoint of trial {trial_id} cannot be fetched: {error}") from None
        problem, outputs = "", None
        try:
            store = CheckpointStore(objects, outputs_id(trial_id))
            outputs = store.restore(coming / _OUTPUTS, skips_missing=False, skips_damaged=False)
        except DamagedCheckpointError as error:
            problem = f"the outputs of trial {trial_id} cannot be fetched: {error}"
        log = run.log_of(trial_id)
        if log.is_file():
            shutil.copyfile(log, coming / _LOG)
        elif manifest is None and outputs is None:
            raise InputError(
                problem or f"trial {trial_id} has stored nothing yet: no checkpoint, no output and no log"
            )
        is_new = not target.exists()
        if is_new:
            coming.rename(target)
        elif outputs is not None and not (target / _OUTPUTS).exists() and _same(coming, target, but=_OUTPUTS):
            # They could not be read before.
            (coming / _OUTPUTS).rename(target / _OUTPUTS)
            is_new = True
        elif not _same(coming, target, but=_OUTPUTS if problem else ""):
            raise InputError("holds something else; move it away, or name another folder by --into", file=target)
        left = target / _OUTPUTS
        found = {
            path.relative_to(left).as_posix(): path.stat().st_size
            for path in sorted(left.rglob("*"))
            if path.is_file()
        }
        if manifest is None:
            return FetchedTrial(target, None, is_new, outputs=found, problem=problem)
        return FetchedTrial(target, manifest.step, is_new, manifest.metric, found, problem)
    finally:
        remove_tree(coming)


def ranks_of_trial(run: RunFolder, number: int) -> int:
    """Number of machines of a trial that may have stored a part of its checkpoint."""
    return runnable(run.settings.sweep).part_of(number)[0].ranks


def best_of(run: RunFolder, number: int) -> str:
    """Direction of a trial's metric, `minimize` or `maximize`; empty: it has no metric."""
    part = runnable(run.settings.sweep).part_of(number)[0]
    return str(part.direction) if part.metric else ""


def _same(one: Path, other: Path, but: str = "") -> bool:
    """Return whether two folders hold the same files with the same content, beside a folder of a name."""
    names = [
        sorted(
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and path.relative_to(folder).parts[0] != but
        )
        for folder in (one, other)
    ]
    if names[0] != names[1]:
        return False
    return all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])
