"""What jobs that are needed have stored comes to the machine whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cut_objects import CutAnswers
from tests.runs.cloud_as_told import Clock
from tests.storage.checkpoints.test_stale_listings import Stale

from ebbtide.agent import patience, restoring
from ebbtide.agent.config import AgentConfig, Assignment
from ebbtide.agent.folders import outputs_id
from ebbtide.agent.inputs import DamagedInputError, Input, fetch_inputs
from ebbtide.agent.machine import ThisMachine
from ebbtide.agent.results import TaskResult, TaskResults
from ebbtide.errors import DamagedCheckpointError, LostCheckpointError, StorageError
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def saved(
    store: FolderStore, trial_id: str, place: Path, *, machines: int = 1, step: int = 10, **files: str
) -> None:
    folder = place / f"of-{trial_id}".replace("/", "-")
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    CheckpointStore(store, trial_id).begin_writing("m", attempt=1, machines=machines).save(folder, step)


def files_in(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_checkpoints_and_outputs_of_a_training(store: FolderStore, tmp_path: Path) -> None:
    saved(store, "run-000", tmp_path, weights="w")
    saved(store, outputs_id("run-000"), tmp_path, report="r")
    fetch_inputs(store, [Input("train", ("run-000",)), Input("sweep/1", ("run-007",))], tmp_path / "inputs")
    assert files_in(tmp_path / "inputs") == {"train/checkpoint/weights": "w", "train/outputs/report": "r"}
    # One that has stored nothing has a folder all the same.
    assert (tmp_path / "inputs" / "sweep" / "1").is_dir()


def test_outputs_that_cannot_be_read_are_not_left_out(tmp_path: Path) -> None:
    """Before, a job began without what the job that it needs had written, and nobody was told."""
    store = CutAnswers(tmp_path / "store")
    saved(store, outputs_id("run-000"), tmp_path, report="r")
    store.cuts = (30, 40)
    with pytest.raises(DamagedInputError):
        fetch_inputs(store, [Input("train", ("run-000",))], tmp_path / "inputs")
    fetch_inputs(store, [Input("train", ("run-000",))], tmp_path / "inputs")
    assert files_in(tmp_path / "inputs") == {"train/outputs/report": "r"}


def test_the_parts_of_machines_that_trained_as_one(store: FolderStore, tmp_path: Path) -> None:
    saved(store, "run-000", tmp_path, machines=2, part0="a")
    saved(store, "run-000-r1", tmp_path, machines=2, part1="b")
    fetch_inputs(store, [Input("gang", ("run-000", "run-000-r1"))], tmp_path / "inputs")
    assert files_in(tmp_path / "inputs") == {"gang/checkpoint/part0": "a", "gang/checkpoint/part1": "b"}


def test_results_of_an_array(store: FolderStore, tmp_path: Path) -> None:
    results = TaskResults(store, "run-000")
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "x.txt").write_text("x")
    assert results.keep(TaskResult(0, "a", "m", 1, 1.0, "printed"), tmp_path / "task")
    (tmp_path / "none").mkdir()
    assert results.keep(TaskResult(1, "b", "m", 1, 1.0, "more"), tmp_path / "none")
    fetch_inputs(store, [Input("prepare", ("run-000",), is_array=True)], tmp_path / "inputs")
    found = files_in(tmp_path / "inputs" / "prepare")
    assert found.pop("results/0/x.txt") == "x"
    lines = [json.loads(line) for line in found.pop("results.jsonl").splitlines()]
    assert [(line["value"], line["printed"]) for line in lines] == [("a", "printed"), ("b", "more")]
    assert found == {}


def test_inputs_that_a_listing_does_not_show_come_all_the_same(tmp_path: Path) -> None:
    """Before, a job began with three results of ten, or without its checkpoint, and nobody was told."""
    store = Stale(tmp_path / "store")
    store.stay("")
    results = TaskResults(store, "run-000")
    (tmp_path / "task").mkdir()
    for number in (0, 2, 3):
        assert results.keep(TaskResult(number, "v", "m", 1, 1.0, ""), tmp_path / "task")
    saved(store, "run-001", tmp_path, weights="w")
    saved(store, "run-002", tmp_path, machines=2, part0="a")
    saved(store, "run-002-r1", tmp_path, machines=2, part1="b")
    wanted = [
        Input("parts", ("run-000",), is_array=True, tasks=4, failed=(1,)),
        Input("train", ("run-001",), expected={"run-001": 1}),
        Input("gang", ("run-002", "run-002-r1"), expected={"run-002": 1, "run-002-r1": 1}),
    ]
    fetch_inputs(store, wanted, tmp_path / "inputs")
    found = files_in(tmp_path / "inputs")
    assert [json.loads(line)["task"] for line in found.pop("parts/results.jsonl").splitlines()] == [0, 2, 3]
    assert found == {
        "train/checkpoint/weights": "w",
        "gang/checkpoint/part0": "a",
        "gang/checkpoint/part1": "b",
    }


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (Input("parts", ("run-000",), is_array=True, tasks=1), "the result of task 0 was stored and is gone"),
        (Input("train", ("run-001",), expected={"run-001": 2}), "no checkpoint 2 of trial run-001"),
        (Input("gang", ("a", "b"), expected={"a": 2, "b": 1}), "no checkpoint 2 of trial a"),
    ],
)
def test_inputs_that_were_stored_and_are_gone_are_told(
    wanted: Input, problem: str, store: FolderStore, tmp_path: Path
) -> None:
    with pytest.raises(LostCheckpointError, match=problem):
        fetch_inputs(store, [wanted], tmp_path / "inputs")


def test_what_is_there_is_not_fetched_again_and_no_half_is_left(store: FolderStore, tmp_path: Path) -> None:
    saved(store, "run-000", tmp_path, weights="w")
    wanted, place = [Input("train", ("run-000",))], tmp_path / "inputs"
    fetch_inputs(store, wanted, place)
    (place / "train" / "checkpoint" / "weights").write_text("its own")
    fetch_inputs(store, wanted, place)
    assert files_in(place) == {"train/checkpoint/weights": "its own"}

    results = TaskResults(store, "run-001")
    assert results.keep(TaskResult(0, "a", "m", 1, 1.0, ""), tmp_path / "of-run-000")
    archive = next(key for key in store.keys("results/run-001/files/"))
    (tmp_path / "store" / archive).write_bytes(b"damaged")
    with pytest.raises(
        DamagedInputError, match="what array has stored cannot be had: the files of task 0 are damaged"
    ):
        fetch_inputs(store, [Input("array", ("run-001",), is_array=True)], place)
    assert sorted(path.name for path in place.iterdir()) == ["train"]


def test_an_assignment_carries_them() -> None:
    given = Assignment(
        "t",
        ("a",),
        0,
        "",
        inputs=(
            Input("x", ("run-000", "run-000-r1"), expected={"run-000": 3}),
            Input("y", ("z",), True, tasks=9, failed=(4,)),
        ),
    )
    assert Assignment.decode(json.loads(json.dumps(given.encode()))) == given
    old = {name: value for name, value in given.encode().items() if name != "inputs"}
    assert Assignment.decode(old).inputs == ()


def test_a_training_whose_inputs_are_damaged_fails_and_says_so(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "LACKS_S", 0.1)
    monkeypatch.setattr(patience, "_RETRY_S", 0.01)
    results = TaskResults(store, "run-000")
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "x").write_text("x")
    assert results.keep(TaskResult(0, "a", "m", 1, 1.0, ""), tmp_path / "task")
    archive = next(key for key in store.keys("results/run-000/files/"))
    (tmp_path / "store" / archive).write_bytes(b"damaged")
    config = AgentConfig("run", "m-1", str(tmp_path / "store"), str(tmp_path / "work"))
    said: list[str] = []
    found = restoring.restored(
        config,
        ThisMachine(config),
        Assignment("run-001", ("true",), 0, "", inputs=(Input("parts", ("run-000",), True),)),
        tmp_path / "work" / "checkpoints",
        tmp_path / "work" / "code",
        is_over=lambda: False,
        say=said.append,
    )
    assert found is not None
    assert found.writer is None
    assert "what parts has stored cannot be had: the files of task 0 are damaged" in found.problem
    assert len(said) == 1


def test_damage_and_failures_in_turn_are_waited_for_no_longer_than_damage() -> None:
    """Before, each request that failed began the wait anew, and a machine was paid without end."""
    clock = Clock()
    patient = patience.Patience(clock, 300.0, lambda _: None)
    while patient.ends_with(DamagedCheckpointError("checkpoint 3 is damaged")) is None:
        assert patient.ends_with(StorageError("the service is not available")) is None
        assert clock.now_s < 900.0
    assert clock.now_s > 300.0
    # Time in which storage does not answer does not count.
    away = patience.Patience(clock, 300.0, lambda _: None)
    for _ in range(1_000):
        assert away.ends_with(StorageError("the service is not available")) is None
    assert away.ends_with(DamagedInputError("what parts has stored cannot be had")) is None


def test_storage_that_refuses_is_told_after_a_minute_and_given_up_after_half_an_hour() -> None:
    """Before, the machine was paid to the budget's end, and nobody was told."""
    clock, said = Clock(), list[tuple[float, str]]()
    patient = patience.Patience(clock, 300.0, lambda line: said.append((clock.now_s, line)))
    while (given_up := patient.ends_with(StorageError("AccessDenied (403)"))) is None:
        assert clock.now_s < 2_000.0
    assert said == [(60.0, "ebbtide: storage does not answer: AccessDenied (403); asked again")]
    assert clock.now_s > 1_800.0
    # Another machine may have the right to it.
    assert given_up == patience.GivenUp("storage did not answer for 30 min: AccessDenied (403)", of_machine=True)


def test_time_in_which_storage_was_read_is_no_silence() -> None:
    """Before, a restore of forty minutes whose connection broke twice was given up."""
    clock = Clock()
    patient = patience.Patience(clock, 300.0, lambda _: None)
    for _ in range(3):
        assert patient.ends_with(StorageError("the connection was reset")) is None
        clock.now_s += 2_400.0


def test_what_a_training_is_restored_from_is_not_stored_again(store: FolderStore, tmp_path: Path) -> None:
    saved(store, "run-001", tmp_path, table="t" * 1000, weights="w")
    config = AgentConfig("run", "m-1", str(tmp_path / "store"), str(tmp_path / "work"))
    before = set(store.keys("trials/run-001/data/"))
    for resume in (None, (("run-001", 1),)):
        place = tmp_path / f"work-{resume is None}"
        given = Assignment("run-001", ("true",), 0, "", resume=resume)
        found = restoring.restored(
            config, ThisMachine(config), given, place, tmp_path / "code", is_over=lambda: False, say=print
        )
        assert found is not None
        assert found.writer is not None
        # A program writes all of it anew, and only its weights are other ones.
        (place / "table").write_text("t" * 1000)
        (place / "weights").write_text(f"of {resume}")
        found.writer.save(place, 20, keep=9)
        new = set(store.keys("trials/run-001/data/")) - before
        assert [store.size_bytes(key) for key in new] == [len(f"of {resume}")]
        before |= new


def test_what_is_not_there_is_fetched_beside_what_is(store: FolderStore, tmp_path: Path) -> None:
    saved(store, "run-000", tmp_path, weights="w")
    saved(store, "run-001", tmp_path, weights="v")
    place = tmp_path / "inputs"
    fetch_inputs(store, [Input("first", ("run-000",))], place)
    fetch_inputs(store, [Input("first", ("run-000",)), Input("second", ("run-001",))], place)
    assert files_in(place) == {"first/checkpoint/weights": "w", "second/checkpoint/weights": "v"}


def test_a_training_whose_code_is_gone_fails_and_says_so(tmp_path: Path) -> None:
    """Before, its machine was paid for ever, and nobody was told."""
    clock = Clock()
    config = AgentConfig("run", "m-1", str(tmp_path / "store"), str(tmp_path / "work"))
    machine = ThisMachine(config)
    machine.runtime = clock  # type: ignore[assignment]
    said: list[str] = []
    found = restoring.restored(
        config,
        machine,
        Assignment("run-001", ("true",), 0, "", code="runs/run/code.tar.gz"),
        tmp_path / "work" / "checkpoints",
        tmp_path / "work" / "code",
        is_over=lambda: clock.now_s > 1_000.0,
        say=said.append,
    )
    assert found is not None
    assert "runs/run/code.tar.gz was stored and is gone" in found.problem
    assert 300.0 <= clock.now_s < 400.0
    assert ["asked again" in line for line in said] == [True]
