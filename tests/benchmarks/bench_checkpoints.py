"""How fast a checkpoint is stored, beside the bare copy and the bare upload in the same run."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from ebbtide.storage.buckets import S3Store
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore

pytestmark = pytest.mark.usefixtures("processes")

GIB = 1 << 30
ROUNDS = 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    with (folder / "model.pt").open("wb") as file:
        block = os.urandom(1 << 24)
        for _ in range(GIB // len(block)):
            file.write(block)
    return folder


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A process of its own: it is not to share our interpreter's lock.
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=f"http://127.0.0.1:{port}")
    for _ in range(100):
        try:
            client.create_bucket(Bucket="bench")
            break
        except EndpointConnectionError:
            time.sleep(0.1)
    yield S3Store("bench", "", client)
    server.kill()
    server.wait()


def in_turn(*works: Callable[[int], object]) -> list[float]:
    """Medians of some rounds, in turn and each first as often: the disk is not as fast at one time as at another."""
    taken: list[list[float]] = [[] for _ in works]
    for turn in range(ROUNDS * len(works)):
        for place in range(len(works)):
            which = (turn + place) % len(works)
            os.sync()
            began = time.perf_counter()
            works[which](turn)
            taken[which].append(time.perf_counter() - began)
    return [statistics.median(times) for times in taken]


def told(what: str, ours: float, bare: float) -> None:
    print(f"\n{what}: {1 / ours:.2f} GiB/s, bare {1 / bare:.2f} GiB/s, ratio {bare / ours:.2f} (target 0.8)")


def test_saving_to_a_folder(checkpoint: Path, tmp_path: Path) -> None:
    store = CheckpointStore(FolderStore(tmp_path / "objects"), "t")

    def copied(turn: int, name: str, *, synced: bool) -> None:
        # As with checkpoints, the old one goes when the new one is there.
        target = tmp_path / f"{name}-{turn}"
        subprocess.run(["cp", str(checkpoint / "model.pt"), str(target)], check=True)
        if synced:
            # To disk: a copy that a crash loses is none.
            subprocess.run(["sync", str(target)], check=True)
        for old in tmp_path.glob(f"{name}-*"):
            if old != target:
                old.unlink()

    ours, synced, left = in_turn(
        # A new writer knows of nothing that is stored already.
        lambda turn: store.begin_writing("bench").save(checkpoint, turn, keep=1),
        lambda turn: copied(turn, "synced", synced=True),
        lambda turn: copied(turn, "cached", synced=False),
    )
    told("folder, beside cp and sync", ours, synced)
    told("folder, beside cp alone, which leaves it in memory", ours, left)
    shutil.rmtree(tmp_path / "objects")


def test_saving_to_s3(checkpoint: Path, s3: S3Store) -> None:
    store = CheckpointStore(s3, "t")
    client = s3._client
    ours, bare = in_turn(
        lambda turn: store.begin_writing("bench").save(checkpoint, turn, keep=1),
        lambda _: client.upload_file(str(checkpoint / "model.pt"), "bench", "bare"),
    )
    told("S3 (moto), beside upload_file", ours, bare)


class Counted(FolderStore):
    """Storage that counts what is uploaded."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.uploaded_bytes = 0

    def put_file(self, key: str, path: Path) -> None:
        # Before the sum is read: other threads add to it.
        size_bytes = path.stat().st_size
        self.uploaded_bytes += size_bytes
        super().put_file(key, path)


@pytest.mark.parametrize(("files", "size_bytes"), [(1, GIB), (100, GIB // 100), (5_000, 1_000)])
def test_saving_many_files_and_again_with_one_changed(tmp_path: Path, files: int, size_bytes: int) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:05d}").write_bytes(os.urandom(size_bytes))
    objects = Counted(tmp_path / "objects")
    writer = CheckpointStore(objects, "t").begin_writing("bench")
    rows = []
    for what in ("first", "unchanged", "one file changed"):
        if what == "one file changed":
            (folder / "00000").write_bytes(os.urandom(size_bytes))
        os.sync()
        objects.uploaded_bytes, began = 0, time.perf_counter()
        writer.save(folder, len(rows))
        rows.append((what, time.perf_counter() - began, objects.uploaded_bytes))
    began = time.perf_counter()
    subprocess.run(["cp", "-a", str(folder), str(tmp_path / "copy")], check=True)
    subprocess.run(["sync", "-f", str(tmp_path / "copy")], check=True)
    bare_s = time.perf_counter() - began
    for what, taken_s, uploaded in rows:
        print(
            f"\n{files:,} files, {what}: {taken_s:.2f} s, {uploaded / 1e6:,.1f} MB uploaded; cp and sync {bare_s:.2f} s"
        )


def test_a_third_checkpoint_of_five_gigabytes(tmp_path: Path) -> None:
    """As `save_total_limit: 3` leaves them: at each save one is new, and the oldest has gone."""
    folder, size_bytes = tmp_path / "here", 5 * 10**9
    objects = Counted(tmp_path / "objects")
    writer = CheckpointStore(objects, "t").begin_writing("bench")
    for number in range(1, 5):
        new = folder / f"checkpoint-{number}"
        new.mkdir(parents=True)
        subprocess.run(
            ["head", "-c", str(size_bytes), "/dev/urandom"], stdout=(new / "model").open("wb"), check=True
        )
        shutil.rmtree(folder / f"checkpoint-{number - 3}", ignore_errors=True)
        os.sync()
        objects.uploaded_bytes, began = 0, time.perf_counter()
        writer.save(folder, number, keep=1)
        held = sum(path.stat().st_size for path in folder.rglob("model")) / 1e9
        print(
            f"\n{held:.0f} GB in the folder: {time.perf_counter() - began:.1f} s, "
            f"{objects.uploaded_bytes / 1e9:.1f} GB uploaded"
        )
