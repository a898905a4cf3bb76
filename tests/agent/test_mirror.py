"""Programs that know nothing of Ebbtide: what they write is stored while they train, and only whole."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.waiting import LIMIT_S, eventually, holds

from ebbtide.agent.checkpoint_watch import Mirror, Span, held
from ebbtide.agent.folders import link_checkpoints, linked_view
from ebbtide.agent.open_files import open_for_writing
from ebbtide.storage.checkpoints.tree import tree_of

pytestmark = pytest.mark.usefixtures("processes")

Started = Callable[..., subprocess.Popen[str]]

# Two files of one checkpoint, the second a while after the first; each next one on the line that is read.
PAIRS = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
for number, _ in enumerate(sys.stdin):
    for name in ("model", "optimizer"):
        time.sleep(0.3)
        part = folder / f".{name}"
        part.write_text(str(number)); part.rename(folder / name)
"""
# Never a moment without writing.
ALWAYS = """
import itertools, pathlib, sys, time
for number in itertools.count():
    part = pathlib.Path(sys.argv[1]) / ".model"
    part.write_text(str(number)); part.rename(pathlib.Path(sys.argv[1]) / "model"); time.sleep(0.01)
"""
# In place, and slowly: the file is torn for as long as it is open.
SLOWLY = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[1]) / "model"
while True:
    with path.open("w") as file:
        for part in range(10):
            file.write("x" * 100); file.flush(); time.sleep(float(sys.argv[2]) / 10)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    processes = []
    (tmp_path / "checkpoints").mkdir()

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(tmp_path / "checkpoints"), *map(str, arguments)]
        processes.append(subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of all looks at folders."""
    times_s: list[float] = []
    look = Mirror._look

    def noted(self: Mirror, now_s: float) -> None:
        look(self, now_s)
        times_s.append(now_s)

    monkeypatch.setattr(Mirror, "_look", noted)
    return times_s


def looked(looks: list[float]) -> None:
    """Wait for some more looks, of which the first may be under way already."""
    before = len(looks)
    eventually(lambda: len(looks) >= before + 5)


def mirror(folder: Path, process: subprocess.Popen[str], copies: list[dict[str, str]], **options: float) -> Mirror:
    def found(copy: Path, _written: Span) -> None:
        copies.append({path.name: path.read_text() for path in copy.iterdir()})

    return Mirror(folder / "checkpoints", folder / "copies", process.pid, found, lambda: False, **options)


def test_files_of_one_checkpoint_are_copied_together(started: Started, tmp_path: Path) -> None:
    copies: list[dict[str, str]] = []
    process = started(PAIRS)
    assert process.stdin is not None
    watching = mirror(tmp_path, process, copies, quiet_s=2.0)
    for count in (1, 2):
        print(file=process.stdin, flush=True)
        eventually(lambda least=count: len(copies) >= least)
    watching.close()
    assert all(set(copy) == {"model", "optimizer"} and copy["model"] == copy["optimizer"] for copy in copies)


def test_one_that_never_rests_is_copied_between_two_writes(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.agent.checkpoint_watch._RESTLESS_S", 1.0)
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, started(SLOWLY, 0.3, 0.4), copies, quiet_s=5.0)
    eventually(lambda: len(copies) >= 2)
    watching.close()
    # Never one that was open.
    assert {copy["model"] for copy in copies} == {"x" * 1000}


def test_what_is_stored_already_is_not_copied(started: Started, tmp_path: Path, looks: list[float]) -> None:
    process = started("import time; time.sleep(600)")
    (tmp_path / "checkpoints" / "model").write_text("restored")
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, process, copies, quiet_s=0.2)
    looked(looks)
    assert looks[-1] - looks[0] > 0.2
    assert copies == []
    assert not watching.has_new(0)
    (tmp_path / "checkpoints" / "model").write_text("trained on")
    eventually(lambda: copies)
    watching.close()
    assert copies == [{"model": "trained on"}]
    assert not watching.has_new(0)


def test_a_save_without_room_for_its_copy_is_not_taken_for_stored(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[float]
) -> None:
    """The next copy has the files of that save, none of a former one."""
    free = [1 << 40]
    room = SimpleNamespace(disk_usage=lambda _path: SimpleNamespace(free=free[0]))
    monkeypatch.setattr("ebbtide.agent.checkpoint_watch.shutil", room)
    folder, copies = tmp_path / "checkpoints", []
    watching = mirror(tmp_path, started("import time; time.sleep(600)"), copies, quiet_s=0.2)
    for name in ("best", "last"):
        (folder / name).write_text("of step 10")
    eventually(lambda: copies)
    free[0] = 0
    for name in ("best", "last"):
        (folder / name).write_text("of step 20, longer")
    since = len(looks)
    eventually(lambda: len(looks) > since and looks[-1] - looks[since] > 1.0)
    assert len(copies) == 1
    assert watching.has_new(0)
    free[0] = 1 << 40
    (folder / "last").write_text("of step 30, longer still")
    eventually(lambda: len(copies) > 1)
    eventually(lambda: copies[-1]["last"] == "of step 30, longer still")
    watching.close()
    assert {copy["best"] for copy in copies[1:]} == {"of step 20, longer"}


def test_no_copy_is_made_while_one_is_uploaded(started: Started, tmp_path: Path) -> None:
    busy, copies, asked = threading.Event(), [], []
    busy.set()
    process = started("import time; time.sleep(600)")

    def is_busy() -> bool:
        asked.append(busy.is_set())
        return asked[-1]

    watching = Mirror(
        tmp_path / "checkpoints",
        tmp_path / "copies",
        process.pid,
        lambda copy, _written: copies.append(copy),
        is_busy,
        quiet_s=0.1,
    )
    (tmp_path / "checkpoints" / "model").write_text("1")
    # It would have been copied, each time.
    eventually(lambda: len(asked) >= 4)
    assert copies == []
    busy.clear()
    eventually(lambda: copies)
    watching.close()


def test_it_dies_between_two_writes_and_what_it_leaves_is_whole(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is open for nine tenths of the time: killed anywhere it would mostly be torn."""
    monkeypatch.setattr("ebbtide.agent.checkpoint_watch.MOST_WAIT_S", LIMIT_S)
    process = started(SLOWLY, 0.5, 0.05)
    watching = mirror(tmp_path, process, [], quiet_s=60.0)
    eventually((tmp_path / "checkpoints" / "model").exists)
    watching.ask_to_leave()
    assert process.wait(LIMIT_S) == -signal.SIGTERM
    watching.close()
    assert watching.has_new(-signal.SIGTERM)
    assert (tmp_path / "checkpoints" / "model").read_text() == "x" * 1000


def test_what_is_torn_is_not_taken(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.agent.checkpoint_watch.MOST_WAIT_S", 0.3)
    process = started(SLOWLY, 600, 0)
    watching = mirror(tmp_path, process, [], quiet_s=60.0)
    eventually((tmp_path / "checkpoints" / "model").exists)
    watching.ask_to_leave()
    assert process.wait(LIMIT_S) == -signal.SIGTERM
    watching.close()
    assert not watching.has_new(-signal.SIGTERM)


def test_what_a_dead_program_left_is_not_copied_however_long_it_rests(
    started: Started, tmp_path: Path, looks: list[float]
) -> None:
    process = started(SLOWLY, 600, 0)
    eventually((tmp_path / "checkpoints" / "model").exists)
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, process, copies, quiet_s=0.2)
    (tmp_path / "checkpoints" / "more").touch()
    os.kill(process.pid, signal.SIGKILL)
    looked(looks)
    assert looks[-1] - looks[-5] > 0.2
    watching.close()
    assert copies == []
    assert not watching.has_new(-signal.SIGKILL)


def test_who_ends_by_itself_has_written_what_it_wanted(started: Started, tmp_path: Path) -> None:
    handles = """
import pathlib, signal, sys, time
def stop(*_):
    (pathlib.Path(sys.argv[1]) / "model").write_text("saved at the signal"); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(pathlib.Path(sys.argv[1]) / "ready").touch()
time.sleep(600)
"""
    process = started(handles)
    eventually((tmp_path / "checkpoints" / "ready").exists)
    watching = mirror(tmp_path, process, [], quiet_s=60.0)
    watching.ask_to_leave()
    assert process.wait(LIMIT_S) == 0
    watching.close()
    assert watching.has_new(0)


def test_one_is_held_for_an_instant_and_goes_on(started: Started, tmp_path: Path) -> None:
    process = started(ALWAYS)
    eventually((tmp_path / "checkpoints" / "model").exists)
    with held(process.pid) as is_held:
        assert is_held
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        before = tree_of(tmp_path / "checkpoints")
        holds(lambda: tree_of(tmp_path / "checkpoints") == before, duration_s=0.5)
    eventually(lambda: tree_of(tmp_path / "checkpoints") != before)
    process.kill()
    process.wait()
    with held(process.pid) as is_held:
        assert not is_held


def test_files_that_any_process_writes_are_seen_and_those_that_are_read_are_not(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"x" * 4096)
    about = path.stat()
    inode = about.st_dev, about.st_ino
    other = path.with_name("other")
    with path.open(), other.open("w"):
        assert open_for_writing([inode]) == {}
    with path.open("a"):
        assert open_for_writing([inode]) == {inode: os.getpid()}
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    # Closed, and still being written through memory, as NumPy's memory maps are.
    assert open_for_writing([inode]) == {inode: os.getpid()}
    mapped.close()
    assert open_for_writing([inode]) == {}


@pytest.mark.parametrize("checkpoints", ["ckpt", "out/ckpt", "new/deep/ckpt"])
def test_the_program_s_own_folder_is_the_one_that_is_stored(tmp_path: Path, checkpoints: str) -> None:
    source, folder = tmp_path / "source", tmp_path / "checkpoints"
    for path in (source / "out" / "ckpt" / "old", source / "ckpt", folder):
        path.mkdir(parents=True)
    (source / "train.py").write_text("pass")
    (source / "out" / "data").write_text("data")
    runs_in = linked_view(source, tmp_path / "run")
    link_checkpoints(runs_in, checkpoints, folder)
    (runs_in / checkpoints / "model").write_text("1")
    assert (folder / "model").read_text() == "1"
    assert (runs_in / "train.py").read_text() == "pass"
    assert (runs_in / "out" / "data").read_text() == "data"
    # What the user has there stays as it is, and is not seen.
    assert sorted(path.name for path in (source / "out").rglob("*")) == ["ckpt", "data", "old"]
    assert [path.name for path in (runs_in / checkpoints).iterdir()] == ["model"]


# The first save has files that no later one has, and saves come faster than these are waited for.
FIRST_HAS_MORE = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "best").write_text("0"); (folder / "config").write_text("0")
for number in range(1000):
    (folder / "last").write_text(str(number))
    time.sleep(1.0)
"""


def test_what_the_first_save_alone_had_holds_up_later_ones_for_a_while_only(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.agent.saves._LEAST_PATIENCE_S", 2.0)
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, started(FIRST_HAS_MORE), copies, quiet_s=0.3)
    eventually(lambda: len(copies) >= 4)
    watching.close()
    assert {name for copy in copies for name in copy} == {"best", "config", "last"}


# A log and a database that stay open, and a file that a killed save left under a temporary name.
WITH_LOGS = """
import pathlib, sqlite3, sys, time
folder = pathlib.Path(sys.argv[1])
log = (folder / "events.out.tfevents.1").open("ab", buffering=0)
study = sqlite3.connect(folder / "study.db"); study.execute("CREATE TABLE t (x)")
(folder / "model.pt.tmp").write_text("left")
for number in range(1000):
    log.write(b"x"); study.execute("INSERT INTO t VALUES (1)"); study.commit()
    if number % 20 == 0:
        part = folder / "model.pt.part"
        part.write_text(str(number)); part.rename(folder / "model.pt")
    time.sleep(0.05)
"""


@pytest.mark.long
def test_logs_that_stay_open_and_what_a_killed_save_left_hold_up_nothing(started: Started, tmp_path: Path) -> None:
    copies: list[set[str]] = []

    def found(copy: Path, _written: Span) -> None:
        with contextlib.closing(sqlite3.connect(copy / "study.db")) as study:
            assert study.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        copies.append({path.name for path in copy.iterdir()})

    process = started(WITH_LOGS)
    watching = Mirror(
        tmp_path / "checkpoints", tmp_path / "copies", process.pid, found, lambda: False, quiet_s=0.2
    )
    eventually(lambda: len(copies) >= 2)
    watching.close()
    assert {"events.out.tfevents.1", "study.db", "model.pt"} <= copies[-1]
    assert "model.pt.part" not in copies[-1]


def test_a_copy_that_is_under_way_at_the_end_is_not_taken_for_stored(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[dict[str, str]] = []
    reached = threading.Event()

    def closes(*_: object) -> None:
        watching.close()
        reached.set()

    monkeypatch.setattr("ebbtide.agent.checkpoint_watch.copy_databases", closes)
    watching = mirror(tmp_path, started("import time; time.sleep(600)"), copies, quiet_s=0.1)
    (tmp_path / "checkpoints" / "model").write_text("1")
    assert reached.wait(LIMIT_S)
    assert watching.has_new(0)
    assert copies == []


def test_a_save_of_unknown_files_is_complete_once_the_program_makes_a_step(
    started: Started, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.agent.saves._LEAST_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr("ebbtide.agent.saves._MOST_PATIENCE_S", LIMIT_S)
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, started("import time; time.sleep(600)"), copies, quiet_s=0.1)
    watching.stepped()
    for name in ("config", "model"):
        (tmp_path / "checkpoints" / name).write_text("1")
        looked(looks)
        assert copies == []
    eventually(lambda: watching.stepped() or copies)
    # What is written once is not waited for.
    (tmp_path / "checkpoints" / "model").write_text("2")
    eventually(lambda: watching.stepped() or len(copies) == 2)
    watching.close()
    assert copies == [{"config": "1", "model": "1"}, {"config": "1", "model": "2"}]


def test_steps_say_nothing_of_a_program_that_saves_beside_them(
    started: Started, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.agent.saves._LEAST_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr("ebbtide.agent.saves._MOST_PATIENCE_S", LIMIT_S)
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, started("import time; time.sleep(600)"), copies, quiet_s=1.0)

    def save(step: int, *parts: str) -> None:
        for part in parts:
            path = tmp_path / "checkpoints" / f"{part}-{step}"
            path.write_text(str(step))
            # The kernel's clock for files is a little behind.
            os.utime(path, (time.time() + 0.05,) * 2)
            looked(looks)
            watching.stepped()

    monkeypatch.setattr(watching, "_quiet_s", LIMIT_S)
    save(4, "model", "optimizer")
    monkeypatch.setattr(watching, "_quiet_s", 0.1)
    monkeypatch.setattr("ebbtide.agent.saves._LEAST_PATIENCE_S", 0.0)
    eventually(lambda: copies)
    monkeypatch.setattr("ebbtide.agent.saves._LEAST_PATIENCE_S", LIMIT_S)
    save(8, "model")
    looked(looks)
    assert len(copies) == 1
    save(8, "optimizer")
    eventually(lambda: len(copies) == 2)
    watching.close()


def test_a_folder_in_which_nothing_was_written_for_long_is_not_one_that_never_rests(
    started: Started, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first file of a save was stored for the whole of it, if the step before was told late."""
    monkeypatch.setattr("ebbtide.agent.checkpoint_watch._RESTLESS_S", LIMIT_S)
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, started("import time; time.sleep(600)"), copies, quiet_s=LIMIT_S)
    # As after minutes of training without a save.
    watching._rested_s -= 2 * LIMIT_S
    looked(looks)
    (tmp_path / "checkpoints" / "model").write_text("1")
    looked(looks)
    watching.stepped()
    looked(looks)
    assert copies == []
    watching.close()


def test_the_last_file_of_a_save_may_be_seen_after_the_step_that_follows_it(
    started: Started, tmp_path: Path
) -> None:
    """Else it was taken for the first one of a save, of which the rest was then not waited for."""
    watching = mirror(tmp_path, started("import time; time.sleep(600)"), [], quiet_s=LIMIT_S)
    watching.close()
    began_s = watching._began_s - 10.0
    watching._look(began_s - 1.0)

    def write(name: str, age_s: float) -> None:
        path = tmp_path / "checkpoints" / name
        path.write_text(name)
        os.utime(path, (time.time() - age_s,) * 2)

    write("model-6", 10.0)
    watching._look(began_s)
    write("latest-6", 0.05)
    watching.stepped()
    watching._look(began_s + 10.0)
    assert watching._began_s == began_s
    write("model-12", -0.05)
    watching._look(began_s + 11.0)
    assert watching._began_s == began_s + 11.0


def test_a_copy_is_of_the_newest_save_though_there_was_no_time_for_those_before(
    started: Started, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[tuple[float, float]] = []
    process = started("import time; time.sleep(600)")
    watching = Mirror(
        tmp_path / "checkpoints",
        tmp_path / "copies",
        process.pid,
        lambda _copy, written: spans.append(written),
        lambda: False,
        quiet_s=LIMIT_S,
    )
    monkeypatch.setattr("ebbtide.agent.checkpoint_watch._RESTLESS_S", LIMIT_S)
    for number in range(3):
        (tmp_path / "checkpoints" / "model").write_text(str(number))
        looked(looks)
        watching.stepped()
    monkeypatch.setattr(watching, "_quiet_s", 0.1)
    eventually(lambda: spans)
    watching.close()
    (began_s, ended_s) = spans[0]
    assert began_s == ended_s


def test_half_of_a_save_does_not_pass_for_the_whole_of_one_that_waits_for_its_upload(
    started: Started, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.agent.saves._LEAST_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr("ebbtide.agent.saves._MOST_PATIENCE_S", LIMIT_S)
    folder, busy = tmp_path / "checkpoints", threading.Event()
    copies: list[dict[str, str]] = []
    process = started("import time; time.sleep(600)")

    def save(number: int, *names: str) -> None:
        for name in names:
            (folder / name).write_text(str(number))
        looked(looks)

    def found(copy: Path, _written: Span) -> None:
        copies.append({path.name: path.read_text() for path in copy.iterdir()})

    save_of_one = ("metadata", "weights")
    for name in save_of_one:
        (folder / name).write_text("0")
    watching = Mirror(folder, tmp_path / "copies", process.pid, found, busy.is_set, quiet_s=0.1)
    busy.set()
    save(1, *save_of_one)
    watching.stepped()
    save(2, "weights")
    # This line may have been printed before that file was written.
    watching.stepped()
    busy.clear()
    looked(looks)
    assert copies == []
    save(2, "metadata")
    eventually(lambda: copies)
    watching.close()
    assert copies == [{"metadata": "2", "weights": "2"}]


def test_a_program_that_saves_at_each_step_is_stored_though_it_never_rests(
    started: Started, tmp_path: Path, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.agent.saves._LEAST_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr("ebbtide.agent.saves._MOST_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr("ebbtide.agent.checkpoint_watch._RESTLESS_S", 1.0)
    copies: list[dict[str, str]] = []
    watching = mirror(tmp_path, started("import time; time.sleep(600)"), copies, quiet_s=LIMIT_S)
    # Each step is told before its save is seen.
    for number in range(20):
        if copies:
            break
        watching.stepped()
        (tmp_path / "checkpoints" / "model").write_text(str(number))
        looked(looks)
    watching.close()
    assert copies
