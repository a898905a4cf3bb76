"""Instance metadata: EC2's with tokens, and GCP's, which do not say when the machine is taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cut_answers import CUTS, cut_answers

from ebbtide.agent.metadata import GoogleMetadata, MachineNotice, Metadata, notice_reader
from ebbtide.testing.metadata_server import MetadataServer


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    served = MetadataServer()
    yield served
    served.close()


def test_what_will_happen_is_told_once_it_is_known(server: MetadataServer) -> None:
    metadata = Metadata(server.url)
    assert metadata.notice() == MachineNotice(None, rebalance=False)
    server.rebalance = True
    assert metadata.notice() == MachineNotice(None, rebalance=True)
    server.taken_at_s = 1_800_000_000.0
    assert metadata.notice() == MachineNotice(1_800_000_000.0, rebalance=True)
    assert server.service.tokens == 1


def test_a_token_that_has_run_out_is_asked_for_again(server: MetadataServer) -> None:
    metadata = Metadata(server.url)
    metadata.notice()
    server.service.forget_tokens()
    assert metadata.notice() == MachineNotice()
    assert server.service.tokens == 1


def test_who_does_not_answer_is_told_of() -> None:
    with pytest.raises(OSError, match="refused"):
        Metadata("http://127.0.0.1:9").notice()


@pytest.mark.parametrize("where", CUTS)
def test_an_answer_that_is_cut_off_is_no_answer(where: str) -> None:
    with cut_answers(where) as url:
        for reader in (Metadata(url), GoogleMetadata(url, 30.0)):
            with pytest.raises(OSError, match="is cut off"):
                reader.notice()


def test_a_notice_of_gcp_is_counted_from_the_last_look_without_one(server: MetadataServer) -> None:
    times = iter([1000.0, 1004.0, 1005.0, 1006.0])
    metadata = GoogleMetadata(server.url, 30.0, lambda: next(times))
    assert metadata.notice() == metadata.notice() == MachineNotice()
    server.taken_at_s = 1_800_000_000.0
    server.rebalance = True
    # It may have begun right after the second look; and the third does not move it.
    assert metadata.notice() == metadata.notice() == MachineNotice(1034.0, rebalance=True)


def test_a_notice_of_gcp_at_the_first_look_is_counted_from_there(server: MetadataServer) -> None:
    server.taken_at_s = 1_800_000_000.0
    assert GoogleMetadata(server.url, 120.0, lambda: 1000.0).notice() == MachineNotice(1120.0)


def test_each_cloud_has_its_reader(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
    for cloud, kind in (("aws", Metadata), ("gcp", GoogleMetadata)):
        reader = notice_reader(cloud, "", 30.0)
        assert isinstance(reader, kind)
        assert reader.notice() == MachineNotice()
    with pytest.raises(OSError, match="refused"):
        GoogleMetadata("http://127.0.0.1:9", 30.0).notice()
