"""Uploads of checkpoints: the newest, once it can be stored, and nothing that is newer is removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.agent.uploads import Uploaded, Uploads
from ebbtide.base.runtime import Flag, Runtime
from ebbtide.errors import StorageError, SupersededWriterError


class HeldFlag:
    """A flag for which nobody waits: how long each would have waited is kept."""

    def __init__(self) -> None:
        self.waited_s: list[float | None] = []
        self.on_wait: Callable[[], None] = bool

    def set(self) -> None:
        """Let nobody go on."""

    clear = set

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout)
        self.on_wait()
        return False


class HeldRuntime(Runtime):
    """A clock that each save of the writer moves; the thread runs when it is called."""

    def __init__(self) -> None:
        self.now_s, self.changed = 100.0, HeldFlag()
        self.run: Callable[[], None] = bool

    def monotonic_s(self) -> float:
        return self.now_s

    def begin(self, target: Callable[[], None]) -> None:
        self.run = target

    def flag(self) -> Flag:
        return self.changed


class Writer:
    """A writer of checkpoints that fails as a test has it; each save takes three seconds."""

    def __init__(self, runtime: HeldRuntime, *errors: Exception) -> None:
        self._runtime, self.errors = runtime, list(errors)
        self.kept, self.left_out = frozenset[int](), ()
        self.metrics: list[float | None] = []
        self.saved: list[tuple[Path, int, str, int, int | None]] = []

    def save(
        self, folder: Path, step: int, *, only: str, keep: int, oldest: int | None, metric: float | None
    ) -> Any:
        self._runtime.now_s += 3.0
        self.metrics.append(metric)
        if self.errors:
            raise self.errors.pop(0)
        self.saved.append((folder, step, only, keep, oldest))
        return f"manifest of {step}"


def stored(folder: Path, *errors: Exception, keep: int = 2) -> tuple[Uploads, Writer, HeldRuntime, list[Uploaded]]:
    runtime, done = HeldRuntime(), list[Uploaded]()
    writer = Writer(runtime, *errors)
    return Uploads(writer, folder, keep, done.append, runtime=runtime), writer, runtime, done  # type: ignore[arg-type]


def run(uploads: Uploads, runtime: HeldRuntime) -> None:
    """Upload what waits, to its end."""
    runtime.changed.on_wait = uploads.close
    runtime.run()


def test_of_what_waits_the_newest_is_stored(tmp_path: Path) -> None:
    uploads, writer, runtime, done = stored(tmp_path)
    assert not uploads.is_busy
    uploads.add("", 1)
    uploads.add("", 2, tmp_path / "copy")
    assert uploads.is_busy
    run(uploads, runtime)
    assert writer.saved == [(tmp_path / "copy", 2, "", 2, None)]
    assert done == [Uploaded(2, "manifest of 2", 3.0)]  # type: ignore[arg-type]
    assert not uploads.is_busy


@pytest.mark.parametrize(("keep", "oldest"), [(0, 7), (1, None), (3, None)])
def test_checkpoints_from_the_oldest_on_stay_only_where_no_number_of_them_is_given(
    keep: int, oldest: int | None, tmp_path: Path
) -> None:
    uploads, writer, runtime, _ = stored(tmp_path, keep=keep)
    uploads.oldest = 7
    uploads.add("", 3)
    run(uploads, runtime)
    assert writer.saved == [(tmp_path, 3, "", keep, oldest)]


def test_storage_that_does_not_answer_is_asked_again_after_longer_and_longer(tmp_path: Path) -> None:
    uploads, writer, runtime, done = stored(tmp_path, *(StorageError("away") for _ in range(8)))
    uploads.add("", 5)
    waited_s = runtime.changed.waited_s
    runtime.changed.on_wait = lambda: uploads.close() if waited_s[-1] is None else None
    runtime.run()
    assert waited_s == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, None])
    # The time of the last try is what saving takes.
    assert done == [Uploaded(5, "manifest of 5", 3.0)]  # type: ignore[arg-type]
    assert len(writer.saved) == 1


def test_while_storage_does_not_answer_a_newer_one_takes_the_place_of_the_older(tmp_path: Path) -> None:
    uploads, writer, runtime, done = stored(tmp_path, StorageError("away"))
    uploads.add("", 5)
    waited_s = runtime.changed.waited_s
    runtime.changed.on_wait = lambda: uploads.close() if waited_s[-1] is None else uploads.add("", 6)
    runtime.run()
    assert [step for _, step, *_ in writer.saved] == [6]
    assert [one.step for one in done] == [6]


def test_storage_that_refuses_is_told_after_some_tries_though_newer_ones_replace_each_other(
    tmp_path: Path,
) -> None:
    """Before, nobody was told of a program that saves more often than its uploads are tried."""
    runtime, told = HeldRuntime(), list[tuple[int, str]]()
    writer = Writer(runtime, *(StorageError("AccessDenied (403)") for _ in range(9)))
    uploads = Uploads(writer, tmp_path, 2, lambda _: None, lambda *about: told.append(about), runtime)  # type: ignore[arg-type]
    uploads.add("", 1)
    steps = iter(range(2, 12))
    runtime.changed.on_wait = lambda: uploads.add("", step) if (step := next(steps, 0)) else uploads.close()
    runtime.run()
    assert told == [(5, "AccessDenied (403)")]
    assert uploads._failed == 0


def test_what_is_gone_or_another_machine_s_by_now_is_not_stored(tmp_path: Path) -> None:
    uploads, writer, runtime, done = stored(tmp_path, StorageError("gone"))
    uploads.add("removed", 5)
    run(uploads, runtime)
    assert (writer.saved, done) == ([], [])
    uploads, writer, runtime, done = stored(tmp_path, SupersededWriterError("taken over"))
    uploads.add("", 5)
    run(uploads, runtime)
    assert (writer.saved, done) == ([], [Uploaded(5, None, 3.0)])


def test_older_checkpoints_go_from_the_machine_and_no_others(tmp_path: Path) -> None:
    for name in ("step-1", "step-2", "step-3", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-file").write_text("stays")
    uploads, _, runtime, _ = stored(tmp_path)
    uploads.add("step-2", 2)
    run(uploads, runtime)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a-file", "step-2", "step-3"]


def test_the_best_that_waits_is_stored_before_the_newest(tmp_path: Path) -> None:
    uploads, writer, runtime, _ = stored(tmp_path)
    uploads.add("", 1, metric=0.5)
    uploads.add("", 2, metric=0.2, is_best=True)
    uploads.add("", 3, metric=0.4)
    uploads.add("", 4, metric=0.3)
    run(uploads, runtime)
    assert [(step, metric) for (_, step, *_), metric in zip(writer.saved, writer.metrics, strict=True)] == [
        (2, 0.2),
        (4, 0.3),
    ]


def test_the_best_gives_way_to_a_better_one_alone(tmp_path: Path) -> None:
    uploads, writer, runtime, _ = stored(tmp_path, *[OSError("away")] * 2)
    uploads.add("", 2, metric=0.2, is_best=True)
    waits = iter([lambda: uploads.add("", 3, metric=0.4), lambda: uploads.add("", 4, metric=0.1, is_best=True)])
    runtime.changed.on_wait = lambda: next(waits, uploads.close)()
    runtime.run()
    assert [step for _, step, *_ in writer.saved] == [4]
