"""Checkpoints of machines that train as one: which one is whole, and what of it each machine resumes from."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cut_objects import CutAnswers

from ebbtide.errors import DamagedCheckpointError, LostCheckpointError, StorageError
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.checkpoints.whole import Whole, best_whole, newest_whole
from ebbtide.storage.objects import FolderStore

IDS = ("t", "t-r1", "t-r2", "t-r3")


def save(
    objects: FolderStore,
    rank: int,
    step: int,
    *,
    attempt: int = 1,
    machines: int = 3,
    oldest: int = 0,
    metric: float | None = None,
    **files: str,
) -> int:
    """Store one machine's checkpoint; returns its number."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, content in (files or {"state": f"{rank} at {step}"}).items():
            (folder / name).write_text(content)
        writer = CheckpointStore(objects, IDS[rank]).begin_writing("m", attempt=attempt, machines=machines)
        return writer.save(folder, step, oldest=oldest, metric=metric).number


def found(objects: FolderStore, **options: object) -> Whole | None:
    return newest_whole(objects, IDS, **options)  # type: ignore[arg-type]


@pytest.fixture
def objects(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "objects")


def test_nothing_stored_is_the_beginning(objects: FolderStore) -> None:
    assert found(objects) is None


def test_the_newest_step_that_all_have_is_whole(objects: FolderStore) -> None:
    for rank, steps in ((0, (10, 20, 30)), (1, (10, 20)), (2, (10, 20, 30))):
        for step in steps:
            save(objects, rank, step)
    whole = found(objects)
    assert whole is not None
    assert (whole.step, whole.number) == (20, 2)
    assert [whole.parts_for(rank) for rank in range(4)] == [
        (("t", 2),),
        (("t-r1", 2),),
        (("t-r2", 2),),
        (("t", 2),),
    ]
    older = found(objects, aside=[2])
    assert older is not None
    assert older.step == 10


def test_a_step_of_another_assignment_makes_nothing_whole(objects: FolderStore) -> None:
    """After going back, the same step is trained again, and may come out otherwise."""
    for rank in range(3):
        save(objects, rank, 10)
    save(objects, 0, 20)
    save(objects, 1, 20, attempt=2)
    save(objects, 2, 20, attempt=2)
    whole = found(objects)
    assert whole is not None
    assert whole.step == 10


def test_fewer_machines_make_a_whole_one_of_their_own(objects: FolderStore) -> None:
    for rank in range(3):
        save(objects, rank, 10)
    for rank in range(2):
        save(objects, rank, 20, attempt=2, machines=2)
    whole = found(objects)
    assert whole is not None
    assert (whole.step, sorted(whole.parts)) == (20, [0, 1])
    assert whole.parts_for(2) == (("t", 2),)


def test_where_the_first_alone_saves_all_resume_from_its(objects: FolderStore) -> None:
    save(objects, 0, 10)
    whole = found(objects)
    assert whole is not None
    assert [whole.parts_for(rank) for rank in range(3)] == [(("t", 1),)] * 3


def test_shares_of_one_state_are_all_resumed_from(objects: FolderStore, tmp_path: Path) -> None:
    for rank in range(3):
        files = {f"shard-{rank}": str(rank), "all": f"of {rank}"}
        save(objects, rank, 10, **files)  # type: ignore[arg-type]
    whole = found(objects)
    assert whole is not None
    assert whole.parts_for(1) == (("t-r1", 1), ("t", 1), ("t-r2", 1))
    folder = tmp_path / "restored"
    store, *others = (CheckpointStore(objects, trial_id) for trial_id, _ in whole.parts_for(1))
    store.fetch(store.manifest(1), folder)
    for other in others:
        other.add(other.manifest(1), folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "all": "of 1",
        "shard-0": "0",
        "shard-1": "1",
        "shard-2": "2",
    }
    with pytest.raises(DamagedCheckpointError, match="checkpoint 5 of trial t-r1"):
        store.manifest(5)


@pytest.mark.parametrize("expected", [{"t": 2, "t-r1": 2}, {}])
def test_a_damaged_answer_is_no_reason_to_take_an_older_checkpoint(
    objects: FolderStore, monkeypatch: pytest.MonkeyPatch, expected: dict[str, int]
) -> None:
    """Before, a gang began at 0, or lost the steps since the checkpoint before; also where nothing is expected."""
    for step in (10, 20):
        for rank in range(2):
            save(objects, rank, step)
    get = FolderStore.get

    def cut(store: FolderStore, key: str) -> bytes:
        content = get(store, key)
        return content[:-9] if key == "trials/t-r1/manifests/00000002" else content

    monkeypatch.setattr(FolderStore, "get", cut)
    with pytest.raises(LostCheckpointError, match="checkpoint 2 of trial t-r1 has no whole manifest"):
        found(objects, expected=expected)
    # Once it has been so for long.
    older = found(objects, skips_damaged=True)
    assert older is not None
    assert older.step == 10


def test_a_damaged_part_of_the_expected_checkpoint_is_waited_for_though_a_newer_part_is_stored(
    objects: FolderStore,
) -> None:
    """Before, no checkpoint was whole, and the gang began at 0."""
    for rank in range(2):
        save(objects, rank, 100)
    save(objects, 0, 200)
    key = "trials/t/manifests/00000001"
    objects.delete(key)
    objects.put_once(key, b"{")
    with pytest.raises(LostCheckpointError, match="checkpoint 1 of trial t has no whole manifest"):
        found(objects, expected={"t": 1, "t-r1": 1})


def test_a_checkpoint_that_may_be_the_best_and_cannot_be_read_is_told(objects: FolderStore) -> None:
    for step, metric in ((10, 0.1), (20, 0.4)):
        for rank in range(2):
            save(objects, rank, step, metric=metric)
    key = "trials/t-r1/manifests/00000001"
    objects.delete(key)
    objects.put_once(key, b"{")
    with pytest.raises(LostCheckpointError, match="checkpoint 1 of trial t-r1 has no whole manifest"):
        best_whole(objects, IDS, "minimize", skips_damaged=False)
    best = best_whole(objects, IDS, "minimize")
    assert best is not None
    assert best.step == 20


def test_a_machine_all_of_whose_checkpoints_are_damaged_has_saved(objects: FolderStore) -> None:
    """Before, it resumed from the part of another machine."""
    for rank in range(2):
        save(objects, rank, 10)
    key = "trials/t-r1/manifests/00000001"
    objects.delete(key)
    objects.put_once(key, b"{")
    assert found(objects, skips_damaged=True) is None


def test_an_answer_that_is_cut_off_once_changes_nothing(tmp_path: Path) -> None:
    cuts = CutAnswers(tmp_path)
    for rank in range(2):
        save(cuts, rank, 10, metric=0.1)
        save(cuts, rank, 20, metric=0.4)
    cuts.cuts = [9]
    whole = found(cuts)
    assert whole is not None
    assert whole.step == 20
    cuts.cuts = [9]
    best = best_whole(cuts, IDS, "minimize")
    assert best is not None
    assert best.step == 10


def test_a_checkpoint_that_counted_as_whole_is_so_when_another_machine_begins_to_save(
    objects: FolderStore,
) -> None:
    """Before, no checkpoint was whole any more, and the job was over, though nothing was damaged."""
    for step in (100, 200, 300):
        save(objects, 0, step)
    save(objects, 1, 350)
    whole = found(objects, expected={"t": 3})
    assert whole is not None
    assert (whole.step, whole.numbers()) == (300, {"t": 3})
    assert found(objects, expected={"t": 3}, aside=[3]) is None


def test_storage_that_lacks_what_was_stored_is_not_believed(objects: FolderStore) -> None:
    with pytest.raises(StorageError, match="no checkpoint 3 of trial t, which was stored: is it mounted"):
        found(objects, expected={"t": 3})
    save(objects, 0, 10)
    assert found(objects, expected={"t": 1}) is not None


@settings(max_examples=30)
@given(data=st.data())
def test_as_by_trying_every_step(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Machines that store some of the steps, as their uploads allow."""
    objects = FolderStore(tmp_path_factory.mktemp("objects") / "store")
    steps = data.draw(st.lists(st.integers(1, 5), unique=True, min_size=1).map(sorted))
    stored = [data.draw(st.sets(st.sampled_from(steps))) for _ in range(3)]
    for rank, own in enumerate(stored):
        for step in sorted(own):
            save(objects, rank, step)
    common = set(steps).intersection(*[own for own in stored if own]) if any(stored) else set()
    whole = found(objects)
    assert (whole.step if whole is not None else None) == max(common, default=None)


def test_what_is_older_than_asked_for_goes(objects: FolderStore) -> None:
    for step in (10, 20, 30):
        save(objects, 0, step)
    store = CheckpointStore(objects, "t")
    assert store.numbers("manifests") == {1, 2, 3}
    save(objects, 0, 40, oldest=3)
    assert store.numbers("manifests") == {3, 4}
    assert {key.split("/")[3].partition("-")[0] for key in objects.keys("trials/t/data/")} == {
        "00000003",
        "00000004",
    }


def test_the_best_whole_checkpoint_is_that_of_the_best_metric(objects: FolderStore) -> None:
    for step, loss in ((10, 0.3), (20, 0.2), (30, 0.25), (40, 0.2), (50, 0.1)):
        # Only one of the machines knows the metric, and the last checkpoint is not whole.
        save(objects, 0, step, machines=2, metric=loss)
        if step < 50:
            save(objects, 1, step, machines=2)
    best = best_whole(objects, IDS, "minimize")
    assert best is not None
    assert (best.step, best.metric, best.numbers()) == (40, 0.2, {"t": 4, "t-r1": 4})
    worst = best_whole(objects, IDS, "maximize")
    assert worst is not None
    assert worst.step == 10
    assert best_whole(objects, IDS, "") is None


def test_without_a_metric_no_whole_checkpoint_is_the_best(objects: FolderStore) -> None:
    assert best_whole(objects, IDS, "minimize") is None
    for rank in range(2):
        save(objects, rank, 10, machines=2)
    assert best_whole(objects, IDS, "minimize") is None
