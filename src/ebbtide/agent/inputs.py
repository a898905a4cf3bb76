"""Stored results of the jobs that a job needs, fetched to the machine before its program begins.

The folder of inputs has a folder for each needed job, by name. A training's folder has `checkpoint`, its newest
checkpoint, and `outputs`, the files that it left. A sweep's folder has such a folder for each trial, by number.
An array's folder has `results`, with a folder for each task that wrote files, by number, and `results.jsonl`, with
a line for every task.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ebbtide.agent.folders import outputs_id
from ebbtide.agent.result_archive import DamagedResultError
from ebbtide.agent.results import TaskResults, plain_result
from ebbtide.errors import (
    CheckpointError,
    DamagedCheckpointError,
    LostCheckpointError,
    MissingObjectError,
    MissingPartError,
)
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.whole import best_whole, newest_whole
from ebbtide.storage.objects import ObjectStore


class DamagedInputError(CheckpointError):
    """Stored results of a needed job are damaged."""


@dataclass(frozen=True)
class Input:
    """Stored results of one training or array that a job needs.

    Attributes:
        folder: Path below the folder of inputs, made of plain names.
        trial_ids: Ids under which the machines of the training save, by rank.
        is_array: Whether the needed job is an array, which has results.
        expected: Numbers of checkpoints that are known to be stored, by id of the machine, listed or not.
        tasks: Number of the array's tasks, all of which have a result but the failed ones; 0: it is not known.
        failed: Numbers of the tasks that failed.
    """

    folder: str
    trial_ids: tuple[str, ...]
    is_array: bool = False
    expected: Mapping[str, int] = field(default_factory=dict)
    tasks: int = 0
    failed: tuple[int, ...] = ()

    def encode(self) -> dict[str, Any]:
        """The input as plain values, for a message."""
        listed = {"trial_ids": list(self.trial_ids), "failed": list(self.failed)}
        return {**vars(self), "expected": dict(self.expected), **listed}

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> Input:
        """Decode what `encode` gave, or what a former version did, which knew less."""
        return cls(
            folder=str(content["folder"]),
            trial_ids=tuple(map(str, content["trial_ids"])),
            is_array=bool(content["is_array"]),
            expected={str(name): int(number) for name, number in content.get("expected", {}).items()},
            tasks=int(content.get("tasks", 0)),
            failed=tuple(map(int, content.get("failed", ()))),
        )


def inputs_beside(code: Path) -> Path:
    """The folder of a machine's inputs, beside that of the user's code."""
    return code.parent / "inputs"


def fetch_inputs(objects: ObjectStore, inputs: Sequence[Input], into: Path) -> None:
    """Fetch the inputs that are not there yet, each whole or not at all.

    Args:
        objects: The storage of the run.
        inputs: Results that the job needs.
        into: Folder of inputs, made if it is not there.

    Raises:
        OSError: Storage does not answer, or the folder cannot be written.
        DamagedInputError: The stored results of a needed job are damaged.
        LostCheckpointError: Storage lacks what a needed job has stored: it may not be mounted yet.
    """
    into.mkdir(parents=True, exist_ok=True)
    for each in inputs:
        target = into / each.folder
        if target.exists():
            continue
        with tempfile.TemporaryDirectory(dir=into, prefix=".", ignore_cleanup_errors=True) as place:
            coming = Path(place) / "coming"
            coming.mkdir()
            try:
                _fetch(objects, each, coming)
            except MissingPartError as error:
                raise LostCheckpointError(
                    f"what {each.folder} has stored is not there: {error}; is storage mounted?"
                ) from None
            except (DamagedCheckpointError, DamagedResultError) as error:
                raise DamagedInputError(f"what {each.folder} has stored cannot be had: {error}") from None
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                coming.rename(target)
            except OSError:
                # Another training on this machine may have fetched the same input meanwhile.
                if not target.exists():
                    raise
                shutil.rmtree(coming, ignore_errors=True)


def _fetch(objects: ObjectStore, each: Input, into: Path) -> None:
    if each.is_array:
        _fetch_results(objects, each, into)
        return
    fetch_checkpoint(objects, each.trial_ids, into / "checkpoint", expected=each.expected)
    outputs = CheckpointStore(objects, outputs_id(each.trial_ids[0]))
    outputs.restore(into / "outputs", skips_missing=False, skips_damaged=False)


def fetch_checkpoint(
    objects: ObjectStore,
    trial_ids: Sequence[str],
    into: Path,
    *,
    best: str = "",
    expected: Mapping[str, int] = MappingProxyType({}),
) -> Manifest | None:
    """Put the newest or best checkpoint of a training into a folder, with the parts of all its machines.

    Args:
        objects: Storage that holds it.
        trial_ids: Ids under which its machines save, by rank.
        into: Folder whose content is replaced.
        best: As for `CheckpointStore.restore`: the checkpoint of the best metric is taken, if there is one.
        expected: Numbers of checkpoints that are known to be stored, by id.

    Returns:
        The manifest of the first part; None: there is none.

    Raises:
        MissingPartError: Storage lacks a part of a checkpoint.
        DamagedCheckpointError: A part is damaged.
        LostCheckpointError: Storage lacks a checkpoint that is known to be stored.
        OSError: Storage does not answer.
    """
    if len(trial_ids) == 1:
        number = expected.get(trial_ids[0], 0)
        store = CheckpointStore(objects, trial_ids[0], expected=number)
        found = store.restore(into, best=best, skips_missing=not number, skips_damaged=not number)
        if not best and (0 if found is None else found.number) < number and number not in store.aside():
            store.check_is_there()
            raise DamagedCheckpointError(f"checkpoint {number} of trial {trial_ids[0]} is damaged")
        return found
    whole = best_whole(objects, trial_ids, best)
    whole = whole or newest_whole(objects, trial_ids, expected=expected, skips_damaged=not expected)
    if whole is None and expected:
        raise DamagedCheckpointError(f"no checkpoint of trial {trial_ids[0]} is whole")
    first = None
    for place, (trial_id, number) in enumerate(() if whole is None else whole.parts_for(0)):
        store = CheckpointStore(objects, trial_id)
        manifest = store.manifest(number)
        if place == 0:
            first = manifest
            store.fetch(manifest, into)
        else:
            store.add(manifest, into)
    return first


def _fetch_results(objects: ObjectStore, each: Input, into: Path) -> None:
    results = TaskResults(objects, each.trial_ids[0])
    # A listing may not show for minutes what is stored, and each result can be asked for by its name.
    wanted = set(range(each.tasks)) - set(each.failed)
    lines = []
    for number in sorted(wanted or results.numbers()):
        try:
            result = results.result(number)
        except MissingObjectError:
            if number in wanted:
                raise LostCheckpointError(
                    f"the result of task {number} was stored and is gone: is storage mounted?"
                ) from None
            continue
        if result.archive:
            results.fetch(result, into / "results" / str(number))
        lines.append(json.dumps(plain_result(result)))
    (into / "results.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
