"""Checkpoints of a gang: each machine stores its own part, and a checkpoint is whole once all parts are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ebbtide.base.runtime import RUNTIME, Runtime
from ebbtide.errors import DamagedCheckpointError, LostCheckpointError
from ebbtide.storage.checkpoints.manifest import Manifest
from ebbtide.storage.checkpoints.store import CheckpointStore, is_better
from ebbtide.storage.objects import ObjectStore

# Trials whose manifests are read at the same time.
_AT_A_TIME = 8

# A part of a whole checkpoint: the trial of the machine that stored it, and the number that it has there.
Part = tuple[str, int]


@dataclass(frozen=True)
class Whole:
    """A checkpoint that each of several machines has stored a part of.

    Attributes:
        step: Training step that it holds.
        parts: The manifest of each part by rank; without ranks whose machines store none.
    """

    step: int
    parts: dict[int, Manifest]

    @property
    def number(self) -> int:
        """Number of its first part, which identifies the checkpoint."""
        return self._first.number

    @property
    def _first(self) -> Manifest:
        return self.parts[min(self.parts)]

    @property
    def metric(self) -> float | None:
        """Value of the metric that it was saved with, as the first machine that knows it says; None: none does."""
        return next((part.metric for part in self.parts.values() if part.metric is not None), None)

    def numbers(self) -> dict[str, int]:
        """Numbers of its parts, by the id under which each is stored."""
        return {part.trial_id: part.number for part in self.parts.values()}

    def parts_for(self, rank: int) -> tuple[Part, ...]:
        """The parts that a machine resumes from, its own first.

        Programs that save the whole state on each machine, or on one, need one part: their own, or else the first.
        If machines save files with different names, each has a share of the state, and all parts are needed.
        """
        own = self.parts.get(rank, self._first)
        names = {frozenset(file.path for file in part.files) for part in self.parts.values()}
        others = [part for part in self.parts.values() if part is not own] if len(names) > 1 else []
        return tuple((part.trial_id, part.number) for part in (own, *others))


def newest_whole(
    objects: ObjectStore,
    trial_ids: Sequence[str],
    *,
    expected: Mapping[str, int] = MappingProxyType({}),
    savers: Collection[int] = (),
    aside: Collection[int] = (),
    skips_damaged: bool = False,
    runtime: Runtime = RUNTIME,
) -> Whole | None:
    """The newest checkpoint that is whole; None: there is none, and training starts from the beginning.

    A machine that has stored nothing at all counts as having nothing to store: in many programs only the first
    process saves. If a machine saves for the first time after a checkpoint without it counted as whole, that
    checkpoint, the expected one, still is.

    Args:
        objects: Storage that holds the checkpoints.
        trial_ids: Ids under which the machines save, by rank; of all ranks that there have been.
        expected: Numbers of the parts of a whole checkpoint that is known to be stored, by id of the machine.
        savers: Ranks of machines that are known to save, whatever storage has of them.
        aside: Numbers of whole checkpoints that must not be resumed from.
        skips_damaged: Whether an older checkpoint is taken where the newest is damaged.
        runtime: Gives the time, and reads of several trials at once.

    Raises:
        LostCheckpointError: Storage lacks a checkpoint that is known to be stored, or gives it damaged.
        OSError: Storage does not answer.
    """
    stores = [
        CheckpointStore(objects, trial_id, runtime, expected=expected.get(trial_id, 0)) for trial_id in trial_ids
    ]
    try:
        stored = _manifests(stores, runtime, skips_damaged=skips_damaged)
    except DamagedCheckpointError as error:
        raise LostCheckpointError(str(error)) from None
    # One all of whose parts are set aside or damaged has saved all the same: no checkpoint is whole without it.
    with runtime.pool(_AT_A_TIME) as pool:
        has_saved = list(pool.map(lambda store, found: bool(found) or _has_saved(store), stores, stored))
    if next((expected[trial_id] for trial_id in trial_ids if trial_id in expected), 0) not in aside:
        for store, manifests in zip(stores, stored, strict=True):
            number = expected.get(store.trial_id, 0)
            newest = max((each.number for each in manifests), default=0)
            # One that is there may be damaged or set aside.
            if newest < number and max(store.stored(), default=0) < number:
                raise LostCheckpointError(
                    f"storage has no checkpoint {number} of trial {store.trial_id}, which was stored: is it "
                    "mounted?"
                )
    known = {rank for rank, trial_id in enumerate(trial_ids) if trial_id in expected or has_saved[rank]}
    wholes = [*_wholes(stored, known.union(savers)), *_expected_whole(stored, expected)]
    return next((whole for whole in wholes if whole.number not in aside), None)


def _has_saved(store: CheckpointStore) -> bool:
    """Return whether a machine has stored any checkpoint, set aside and damaged ones included."""
    return bool(store.aside()) or any(map(store.is_stored, store.stored()))


def _expected_whole(stored: Sequence[Sequence[Manifest]], expected: Mapping[str, int]) -> Iterator[Whole]:
    """The checkpoint of the expected parts, if all are there."""
    parts = {
        rank: manifest
        for rank, manifests in enumerate(stored)
        for manifest in manifests
        if expected.get(manifest.trial_id) == manifest.number
    }
    steps = {manifest.step for manifest in parts.values()}
    if len(parts) == len(expected) and len(steps) == 1:
        yield Whole(steps.pop(), parts)


def best_whole(
    objects: ObjectStore,
    trial_ids: Sequence[str],
    direction: str,
    runtime: Runtime = RUNTIME,
    *,
    skips_damaged: bool = True,
) -> Whole | None:
    """The newest whole checkpoint of the best value of the metric.

    Args:
        objects: Storage that holds the checkpoints.
        trial_ids: Ids under which the machines save, by rank; of all ranks that there have been.
        direction: Whether a lower or a higher value is better, `minimize` or `maximize`; empty: none is.
        runtime: Reads of several trials at once.
        skips_damaged: Whether checkpoints that cannot be read are passed over.

    Returns:
        The checkpoint; None: no whole checkpoint has a known value.

    Raises:
        LostCheckpointError: A checkpoint that may be the best cannot be read.
        OSError: Storage does not answer.
    """
    found: Whole | None = None
    if not direction:
        return None
    stores = [CheckpointStore(objects, trial_id, runtime) for trial_id in trial_ids]
    stored = _manifests(stores, runtime)
    if not skips_damaged:
        try:
            with runtime.pool(_AT_A_TIME) as pool:
                list(pool.map(CheckpointStore.check_all_readable, stores))
        except DamagedCheckpointError as error:
            raise LostCheckpointError(str(error)) from None
    for each in _wholes(stored):
        if is_better(each.metric, None if found is None else found.metric, direction):
            found = each
    return found


def _wholes(stored: Sequence[Sequence[Manifest]], known: Collection[int] = ()) -> Iterator[Whole]:
    """All whole checkpoints, the newest first, of the manifests of each machine.

    Args:
        stored: Manifests of each machine, by rank.
        known: Ranks of machines that are known to save, whatever is listed of them.
    """
    by_moment: dict[tuple[int, int, int], dict[int, Manifest]] = {}
    for rank, manifests in enumerate(stored):
        for manifest in manifests:
            moment = manifest.attempt, manifest.step, manifest.machines
            by_moment.setdefault(moment, {}).setdefault(rank, manifest)
    savers = {rank for rank, manifests in enumerate(stored) if manifests or rank in known}
    for (_, step, machines), parts in sorted(by_moment.items(), reverse=True):
        is_whole = all(rank in parts for rank in savers if rank < machines)
        if is_whole:
            yield Whole(step, dict(sorted(parts.items())))


def newest_attempt(objects: ObjectStore, trial_ids: Sequence[str], runtime: Runtime = RUNTIME) -> int:
    """Number of the last assignment that any of the machines has stored a checkpoint in; 0: none has.

    Args:
        objects: Storage that holds the checkpoints.
        trial_ids: Ids under which the machines save.
        runtime: Reads of several trials at once.

    Raises:
        OSError: Storage does not answer.
    """
    stored = _manifests([CheckpointStore(objects, trial_id, runtime) for trial_id in trial_ids], runtime)
    return max((manifest.attempt for manifests in stored for manifest in manifests), default=0)


def _manifests(
    stores: Sequence[CheckpointStore], runtime: Runtime, *, skips_damaged: bool = True
) -> list[list[Manifest]]:
    """The manifests of each, the newest first."""
    with runtime.pool(_AT_A_TIME) as pool:
        return list(pool.map(lambda store: list(store.manifests(skips_damaged=skips_damaged)), stores))
