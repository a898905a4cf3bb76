"""Objects in a folder and on a real S3 API keep the contract of object stores; and what is special to each."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from tests.cut_objects import CutAnswers
from tests.runs.sweeps import steady

from ebbtide.errors import InputError, StorageError
from ebbtide.storage import buckets
from ebbtide.storage.buckets import S3Store, gcs_client
from ebbtide.storage.google_tokens import GoogleTokens
from ebbtide.storage.objects import FolderStore, ObjectStore, decoded_object, object_store, stored_from
from ebbtide.testing.contracts.stores import ObjectStoreContract
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in


class TestFolder(ObjectStoreContract):
    def make_store(self, folder: Path) -> ObjectStore:
        return object_store(folder)

    def open_again(self, folder: Path) -> ObjectStore:
        return object_store(folder)


class TestS3(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _client(self, aws_server: str, aws_credentials: None) -> None:  # noqa: ARG002
        self.client = boto3.client("s3", endpoint_url=aws_server, region_name="us-east-1")

    def make_store(self, folder: Path) -> ObjectStore:
        self.client.create_bucket(Bucket=_bucket(folder))
        return self.open_again(folder)

    def open_again(self, folder: Path) -> ObjectStore:
        return S3Store(_bucket(folder), "runs/1", self.client)

    def test_what_other_programs_put_there_is_no_object(self, tmp_path: Path) -> None:
        """Before, a folder that somebody made in the console of S3 ended every run of a team."""
        store = self.make_store(tmp_path / "store")
        store.put_once("a/b", b"1")
        for name in ("", "a/", "a/b (copy)", "a/.DS_Store", "a/b.part", "a//b"):
            self.client.put_object(Bucket=_bucket(tmp_path / "store"), Key=f"runs/1/{name}", Body=b"")
        assert list(store.keys()) == list(store.keys("a/")) == ["a/b"]


class TestGcs(ObjectStoreContract):
    """On a stand-in that speaks Google's XML API, with tokens by Google's standard chain."""

    @pytest.fixture(autouse=True)
    def _stand_in(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("gcs") / "stand-in"
        with gcp_stand_in(folder, steady()) as (self.api, _, _):
            self.client = gcs_client(GoogleTokens())
            yield

    def make_store(self, folder: Path) -> ObjectStore:
        self.client.create_bucket(Bucket=_bucket(folder))
        return self.open_again(folder)

    def open_again(self, folder: Path) -> ObjectStore:
        return object_store(f"gs://{_bucket(folder)}/runs/1")

    def test_a_token_that_is_refused_is_renewed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path / "store")
        store.put_once("a", b"1")
        self.api.expired.update(self.api.given)
        with pytest.raises(StorageError, match="Invalid Credentials"):
            store.get("a")
        assert store.get("a") == b"1"


def _bucket(folder: Path) -> str:
    return f"b{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    store = FolderStore(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        store.put_once("a/x", b"1")
    assert not list(store.keys())
    assert not list((tmp_path / "a").iterdir())


def test_objects_in_a_shared_folder_may_be_read_by_others(tmp_path: Path) -> None:
    """Before, those that are written once were private, so that a team's quota worked for one user alone."""
    store = FolderStore(tmp_path)
    (tmp_path / "new").touch()
    (tmp_path / "file").write_bytes(b"2")
    store.put_once("quotas/1", b"1")
    store.put_file("quotas/2", tmp_path / "file")
    modes = {(tmp_path / name).stat().st_mode for name in ("new", "quotas/1", "quotas/2")}
    assert len(modes) == 1


def test_addresses() -> None:
    with pytest.raises(InputError, match="names no bucket"):
        object_store("s3:///prefix")
    with pytest.raises(InputError, match="is no place for objects"):
        object_store("ftp://host/x")


def test_credentials_that_were_renewed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self, expired: bool) -> None:
            self.expired = expired

        def get_object(self, **_: object) -> dict[str, object]:
            if self.expired:
                answer = {
                    "Error": {"Code": "ExpiredToken", "Message": "no"},
                    "ResponseMetadata": {"HTTPStatusCode": 400},
                }
                raise ClientError(answer, "GetObject")  # type: ignore[arg-type]
            return {"Body": io.BytesIO(b"found"), "ETag": "1"}

    clients = [Client(True), Client(False)]
    monkeypatch.setattr(buckets, "_s3_client", lambda _within_s: clients.pop(0))
    store = S3Store("bucket")
    with pytest.raises(StorageError, match="ExpiredToken"):
        store.get("a")
    assert store.get("a") == b"found"


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        ({}, "unable to locate credentials"),
        ({"AWS_ACCESS_KEY_ID": "half"}, "partial credentials found"),
        ({"AWS_PROFILE": "none-such"}, "the config profile .*none-such.* could not be found"),
    ],
)
def test_missing_credentials_are_told_with_the_store_and_what_to_do(
    known: dict[str, str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=f"(?i)^s3://bucket/x cannot be used: {problem}") as refused:
        object_store("s3://bucket/x").put_once("a", b"1")
    for help_with in ("`aws configure`", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "role"):
        assert help_with in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_bucket_that_says_for_long_that_another_writes_does_not_answer() -> None:
    asked: list[str] = []

    class Conflicted:
        def put_object(self, **given: str) -> None:
            asked.append(given["Key"])
            answer = {"Error": {"Code": "ConditionalRequestConflict"}, "ResponseMetadata": {"HTTPStatusCode": 409}}
            raise ClientError(answer, "PutObject")  # type: ignore[arg-type]

    with pytest.raises(StorageError, match="ConditionalRequestConflict"):
        S3Store("bucket", client=Conflicted()).put_once("a", b"1")
    assert 1 < len(asked) < 100


def test_a_folder_that_cannot_be_written_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose disk has turned read-only, or is not mounted: whoever writes asks again."""
    store, file = FolderStore(tmp_path / "store"), tmp_path / "file"
    file.write_text("1")
    store.put_file("a/b", file)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OSError, match="nothing may be written in"):
        store.put_file("a/b", file)
    monkeypatch.undo()
    with pytest.raises(OSError, match="is a file"):
        store.put_file("a/b/c", file)
    (tmp_path / "store" / "a" / "d").mkdir()
    with pytest.raises(OSError, match="is a folder"):
        store.put_file("a/d", file)
    assert store.get("a/b") == b"1"


def test_an_answer_that_is_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    store = CutAnswers(tmp_path)
    store.put_once("table", b'{"a": 1}')
    store.cuts = [3]
    assert decoded_object(store, "table", json.loads) == {"a": 1}
    assert decoded_object(store, "table", json.loads, b'{"a"') == {"a": 1}
    # What is cut off each time in another way says nothing of what is stored.
    store.cuts = [3, 4]
    with pytest.raises(StorageError, match="table is damaged each time"):
        decoded_object(store, "table", json.loads)
    store.put_once("torn", b"{")
    with pytest.raises(json.JSONDecodeError):
        decoded_object(store, "torn", json.loads)


def test_objects_counted_in_a_row_end_at_the_first_that_is_missing(tmp_path: Path) -> None:
    objects = FolderStore(tmp_path)
    for name in ("a/3", "a/4", "a/6"):
        objects.put_once(name, b"1")
    assert list(stored_from(objects, "a/{}".format, 3)) == ["a/3", "a/4"]
    assert list(stored_from(objects, "a/{}".format, 5)) == []


def test_storage_that_says_it_has_everything_is_asked_no_end_of_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderStore, "has", lambda *_: True)
    with pytest.raises(StorageError, match="says that it has a/1 and 9,999 more"):
        list(stored_from(FolderStore(tmp_path), "a/{}".format, 1))
