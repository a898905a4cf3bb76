"""Answers that are not EC2's or S3's, such as a proxy's pages: they say nothing of machines or objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.runs.sweeps import flapping

from ebbtide.clouds.ec2.cloud import Ec2Cloud
from ebbtide.clouds.ec2.settings import Ec2Region, Ec2Settings
from ebbtide.errors import CloudError, StorageError
from ebbtide.storage.objects import object_store

_PAGE = b"<html><body><p>Sign in</p></body></html>"
PAGES = {
    "empty": (200, b""),
    "a page that is well-formed": (200, _PAGE),
    "a page": (200, b"<!DOCTYPE html><p>Sign in<br>"),
    "another service's": (200, b'<?xml version="1.0"?><Envelope><a/></Envelope>'),
    "a redirection": (302, b""),
    "forbidden": (403, _PAGE),
    "not found": (404, _PAGE),
}


@dataclass
class Answer:
    """The answer to every request.

    Attributes:
        status: Its HTTP status.
        content: Its content.
    """

    status: int = 200
    content: bytes = b""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    given = Answer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(given.status)
            if given.status == 302:
                self.send_header("Location", "http://127.0.0.1:1/login")
            self.send_header("Content-Length", str(len(given.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.content)

        do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_address[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    yield given
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("page", PAGES)
def test_an_answer_that_is_not_ec2_s_lists_no_machines(answer: Answer, page: str) -> None:
    """Before, some of these ended the controller, and `ebbtide down`."""
    settings = Ec2Settings(regions={"us-east-1": Ec2Region(image_id="ami-0")}, store="s3://b/x")
    cloud = Ec2Cloud("run-12345678", settings, flapping)
    answer.status, answer.content = PAGES[page]
    with pytest.raises(CloudError):
        cloud.instances()
    with pytest.raises(CloudError):
        cloud._ask("us-east-1", "terminate_instances", InstanceIds=["i-0"])


@pytest.mark.parametrize("page", PAGES)
def test_an_answer_that_is_not_s3_s_shows_no_empty_store(answer: Answer, page: str, tmp_path: Path) -> None:
    """Before, an empty answer was an empty store, and a write that never was counted as done."""
    store = object_store("s3://bucket/prefix", within_s=5.0)
    answer.status, answer.content = PAGES[page]
    with pytest.raises(StorageError):
        list(store.keys("runs/"))
    with pytest.raises(StorageError):
        store.put_once("runs/x", b"x")
    # Large enough to be uploaded in parts.
    with (tmp_path / "large").open("wb") as large:
        large.truncate(9 << 20)
    with pytest.raises(StorageError):
        store.put_file("runs/x", tmp_path / "large")
    for ask in (store.get, store.size_bytes):
        with pytest.raises(StorageError):
            ask("runs/x")
    if answer.status != 404:
        with pytest.raises(StorageError):
            store.has("runs/x")
