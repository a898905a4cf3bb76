"""Objects in a folder and on a real S3 API: written once, whole or not at all, never outside their place."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from ebbtide.errors import InputError, MissingObjectError, StorageError
from ebbtide.live import storage as object_storage
from ebbtide.live.storage import FolderStore, ObjectStore, S3Store, object_store


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return object_store(tmp_path / "objects")
    request.getfixturevalue("aws_credentials")
    client = boto3.client("s3", endpoint_url=request.getfixturevalue("aws_server"), region_name="us-east-1")
    bucket = f"b{abs(hash(tmp_path)) % 10**9}"
    client.create_bucket(Bucket=bucket)
    return S3Store(bucket, "runs/1", client)


def test_what_is_written_is_read(store: ObjectStore) -> None:
    assert not store.has("a/b.tile")
    with pytest.raises(MissingObjectError):
        store.get("a/b.tile")
    assert store.put_once("a/b.tile", b"one")
    assert store.put_once("a/c.tile", b"")
    assert store.get("a/b.tile") == b"one"
    assert store.get("a/c.tile") == b""
    assert store.has("a/b.tile")
    assert list(store.keys()) == ["a/b.tile", "a/c.tile"]
    assert list(store.keys("a/c")) == ["a/c.tile"]
    store.delete("a/b.tile")
    store.delete("a/b.tile")
    assert list(store.keys()) == ["a/c.tile"]


def test_the_first_of_many_writers_wins(store: ObjectStore) -> None:
    won: list[int] = []

    def write(number: int) -> None:
        if store.put_once("x", bytes([number]) * 100_000):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("x") == bytes(won) * 100_000


@pytest.mark.parametrize("key", ["", "../x", "a/../../x", "/x", "a//b", ".hidden", "a b", "x.part", "a/", "x\n"])
def test_no_key_leads_out_of_the_store(store: ObjectStore, key: str) -> None:
    for use in (store.get, store.has, lambda key: store.put_once(key, b"")):
        with pytest.raises(InputError, match="is no key of an object"):
            use(key)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    store = FolderStore(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        store.put_once("a/x", b"1")
    assert not list(store.keys())
    assert not list((tmp_path / "a").iterdir())


def test_addresses() -> None:
    with pytest.raises(InputError, match="names no bucket"):
        object_store("s3:///prefix")
    with pytest.raises(InputError, match="is no place for objects"):
        object_store("ftp://host/x")


def test_credentials_that_were_renewed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, expired: bool) -> None:
            self.expired = expired

        def get_object(self, **_: object) -> dict[str, io.BytesIO]:
            if self.expired:
                answer = {
                    "Error": {"Code": "ExpiredToken", "Message": "no"},
                    "ResponseMetadata": {"HTTPStatusCode": 400},
                }
                raise ClientError(answer, "GetObject")  # type: ignore[arg-type]
            return {"Body": io.BytesIO(b"found")}

    clients = [Client(True), Client(False)]
    monkeypatch.setattr(object_storage, "_s3_client", lambda: clients.pop(0))
    store = S3Store("bucket")
    with pytest.raises(StorageError, match="ExpiredToken"):
        store.get("a")
    assert store.get("a") == b"found"
