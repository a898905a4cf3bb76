"""Instance metadata with tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ebbtide.live.agent.metadata import Metadata, Notice
from ebbtide.testing.metadata_server import MetadataServer


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    served = MetadataServer()
    yield served
    served.close()


def test_what_will_happen_is_told_once_it_is_known(server: MetadataServer) -> None:
    metadata = Metadata(server.url)
    assert metadata.notice() == Notice(None, rebalance=False)
    server.rebalance = True
    assert metadata.notice() == Notice(None, rebalance=True)
    server.taken_at_s = 1_800_000_000.0
    assert metadata.notice() == Notice(1_800_000_000.0, rebalance=True)
    assert server.service.tokens == 1


def test_a_token_that_has_run_out_is_asked_for_again(server: MetadataServer) -> None:
    metadata = Metadata(server.url)
    metadata.notice()
    server.service.forget_tokens()
    assert metadata.notice() == Notice()
    assert server.service.tokens == 1


def test_who_does_not_answer_is_told_of() -> None:
    with pytest.raises(OSError, match="refused"):
        Metadata("http://127.0.0.1:9").notice()
