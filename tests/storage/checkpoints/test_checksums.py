"""Checksums by either algorithm: written by what is installed, read by the name in the manifest."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from tests.waiting import LIMIT_S

from ebbtide.errors import DamagedCheckpointError, InputError
from ebbtide.storage.checkpoints import manifest
from ebbtide.storage.checkpoints.manifest import BLAKE2B, XXH3, Manifest, StoredFile, checksum, checksum_of
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore

CONTENT = b"weights" * 1000


@pytest.fixture
def saved(tmp_path: Path) -> CheckpointStore:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.pt").write_bytes(CONTENT)
    return CheckpointStore(FolderStore(tmp_path / "objects"), "t")


def without_xxhash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(manifest._DIGESTS, XXH3)


def rewritten(store: CheckpointStore, content: bytes) -> None:
    key = "trials/t/manifests/00000001"
    store.objects.delete(key)
    assert store.objects.put_once(key, content)


def test_both_are_the_well_known_ones(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT * 400)
    for algorithm, expected in (
        (XXH3, xxhash.xxh3_128_hexdigest(CONTENT * 400)),
        (BLAKE2B, hashlib.blake2b(CONTENT * 400, digest_size=16).hexdigest()),
    ):
        assert checksum(CONTENT * 400, algorithm) == expected
        assert checksum_of(tmp_path / "file", algorithm) == (len(CONTENT) * 400, expected)
    with pytest.raises(ValueError, match="crc"):
        checksum(b"", "crc")


@pytest.mark.usefixtures("processes")
def test_a_python_without_xxhash_writes_what_one_with_it_verifies(saved: CheckpointStore, tmp_path: Path) -> None:
    source = str(Path(manifest.__file__).parents[3])
    program = """
import sys; sys.modules["xxhash"] = None; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ebbtide.storage.checkpoints.store import CheckpointStore
from ebbtide.storage.objects import FolderStore
store = CheckpointStore(FolderStore(Path("objects")), "t")
found = store.begin_writing("machine").save(Path("here"), 5)
assert store.restore(Path("back")) == found
print(found.algorithm)
"""
    told = subprocess.run(
        [sys.executable, "-c", program, source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert told.stdout.strip() == BLAKE2B
    found = saved.restore(tmp_path / "there")
    assert found is not None
    assert found.algorithm == BLAKE2B
    assert (tmp_path / "there" / "model.pt").read_bytes() == CONTENT
    # It is verified, and not believed.
    (tmp_path / "objects" / saved.data_key(1, 1, 0)).write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DamagedCheckpointError, match="model.pt of checkpoint 1 of trial t is not what was saved"):
        saved.restore(tmp_path / "there")


def test_manifests_that_name_no_algorithm_are_by_xxh3(saved: CheckpointStore, tmp_path: Path) -> None:
    written = saved.begin_writing("old").save(tmp_path / "here", 5)
    outer = json.loads(written.encode())
    body = json.loads(outer["manifest"])
    del body["algorithm"]
    text = json.dumps(body, sort_keys=True)
    rewritten(saved, json.dumps({"checksum": xxhash.xxh3_128_hexdigest(text.encode()), "manifest": text}).encode())
    assert saved.restore(tmp_path / "there") == written
    (tmp_path / "objects" / saved.data_key(1, 1, 0)).write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DamagedCheckpointError, match="model.pt of checkpoint 1 of trial t is not what was saved"):
        saved.restore(tmp_path / "there")


def test_what_cannot_be_verified_here_is_not_thrown_away(
    saved: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = saved.begin_writing("old").save(tmp_path / "here", 5)
    without_xxhash(monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert saved.restore(tmp_path / "there") == written
    assert "only lengths are checked" in caplog.text
    (tmp_path / "objects" / saved.data_key(1, 1, 0)).write_bytes(CONTENT[:-1])
    with pytest.raises(DamagedCheckpointError):
        saved.restore(tmp_path / "there")


def test_an_algorithm_of_no_version_is_damage() -> None:
    found = Manifest("t", 1, 1, 5, 0.0, (StoredFile("a", 1, "0"),)).encode().replace(XXH3.encode(), b"xxh3-129")
    with pytest.raises(InputError, match="xxh3-129"):
        manifest.Manifest.decode(found)
