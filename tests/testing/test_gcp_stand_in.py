"""The stand-in for Google Cloud, asked by a client that is not ours: obstore, which speaks Google's API by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import GCSStore
from tests.runs.sweeps import steady

from ebbtide.storage.objects import ObjectStore, object_store
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in

BIG = 12 << 20


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ObjectStore, GCSStore]]:
    """Ours and obstore's, at the same place."""
    with gcp_stand_in(tmp_path / "stand-in", steady()) as (api, _, _):
        account = (tmp_path / "stand-in" / "service-account.json").read_text()
        with_address = account.removesuffix("}") + f', "gcs_base_url": "{api.url}"}}'
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
        theirs = GCSStore(
            "stand-in-gcs",
            prefix="x",
            service_account_key=with_address,
            client_options={"allow_http": True},
            credential_provider=lambda: {"token": api.given[-1], "expires_at": None},
        )
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "stand-in" / "service-account.json"))
        yield object_store("gs://stand-in-gcs/x"), theirs


def test_each_reads_and_lists_what_the_other_wrote(stores: tuple[ObjectStore, GCSStore]) -> None:
    ours, theirs = stores
    assert ours.put_once("a/ours-1", b"1")
    obstore.put(theirs, "a/theirs-1", b"2", mode="create")
    assert bytes(obstore.get(theirs, "a/ours-1").bytes()) == b"1"
    assert ours.get("a/theirs-1") == b"2"
    listed = [entry["path"] for page in obstore.list(theirs, "a") for entry in page]
    assert listed == list(ours.keys("a/")) == ["a/ours-1", "a/theirs-1"]
    obstore.delete(theirs, "a/theirs-1")
    assert not ours.has("a/theirs-1")


def test_neither_writes_over_what_the_other_wrote_once(stores: tuple[ObjectStore, GCSStore]) -> None:
    ours, theirs = stores
    ours.put_once("epoch", b"first")
    with pytest.raises(AlreadyExistsError):
        obstore.put(theirs, "epoch", b"second", mode="create")
    obstore.put(theirs, "number", b"first", mode="create")
    assert not ours.put_once("number", b"second")


def test_large_files_go_in_parts_both_ways(stores: tuple[ObjectStore, GCSStore], tmp_path: Path) -> None:
    ours, theirs = stores
    sent, read = tmp_path / "sent", tmp_path / "read"
    sent.write_bytes(os.urandom(BIG))
    ours.put_file("one", sent)
    assert bytes(obstore.get(theirs, "one").bytes()) == sent.read_bytes()
    obstore.put(theirs, "other", sent)
    ours.get_file("other", read)
    assert read.read_bytes() == sent.read_bytes()
