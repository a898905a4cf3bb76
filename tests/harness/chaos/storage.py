"""Storage that fails on request: a proxy in front of a real S3 API, on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_MANIFEST = re.compile(r"/trials/([^/]+)/manifests/(\d+)")
_DATA = re.compile(r"/trials/([^/]+)/data/(\d+)-\d+/")
_SILENT_S = 1.0


class StorageFault(StrEnum):
    """The kind of failure of a request."""

    ERROR = "error"  # refused with a 503
    SILENCE = "silence"  # no answer, then the connection is closed
    TRUNCATED = "truncated"  # half of an upload is stored, and success is reported


@dataclass
class Seen:
    """The checkpoints that storage has received.

    Attributes:
        complete: Time of each manifest, its number and its step, by trial.
        damaged: Trials and checkpoint numbers with a truncated upload.
    """

    complete: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    damaged: set[tuple[str, int]] = field(default_factory=set)


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Ignore errors of clients that were killed."""


class FaultyStorage:
    """A proxy in front of an S3 endpoint.

    Args:
        port: Port of the endpoint, on loopback.
    """

    def __init__(self, port: int) -> None:
        self.seen = Seen()
        self.armed: deque[StorageFault] = deque()
        self.done = 0
        self._lock = threading.Lock()
        storage = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fault = storage.fault_for(self.command, self.path)
                if fault is StorageFault.ERROR:
                    self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>chaos</Message></Error>")
                    return
                if fault is StorageFault.SILENCE:
                    time.sleep(_SILENT_S)
                    self.close_connection = True
                    return
                if fault is StorageFault.TRUNCATED:
                    body = body[: len(body) // 2]
                headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
                if fault is StorageFault.TRUNCATED:
                    headers = {name: value for name, value in headers.items() if "checksum" not in name.lower()}
                status, answered, content = storage.forward(port, self.command, self.path, headers, body)
                if status == 200 and self.command == "PUT":
                    storage.note(self.path, body, truncated=fault is StorageFault.TRUNCATED)
                self._answer(status, answered, content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

            def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if self.command != "HEAD" or "content-length" not in {name.lower() for name in headers}:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    # The client may have been killed meanwhile.
                    with contextlib.suppress(OSError):
                        self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def arm(self, fault: StorageFault) -> None:
        """Make the next suitable request fail with this fault."""
        with self._lock:
            self.armed.append(fault)

    def fault_for(self, method: str, path: str) -> StorageFault | None:
        """Return the next fault that suits this request; None: there is none."""
        with self._lock:
            if not self.armed:
                return None
            if self.armed[0] is StorageFault.TRUNCATED and not (method == "PUT" and _DATA.search(path)):
                # Other faults do not wait for the upload that this one needs.
                self.armed.rotate(-1)
                if self.armed[0] is StorageFault.TRUNCATED:
                    return None
            self.done += 1
            return self.armed.popleft()

    def note(self, path: str, body: bytes, *, truncated: bool) -> None:
        """Record what was stored."""
        manifest, data = _MANIFEST.search(path), _DATA.search(path)
        with self._lock:
            if manifest is not None:
                step = json.loads(json.loads(body)["manifest"])["step"]
                entry = (time.time(), int(manifest.group(2)), int(step))
                self.seen.complete.setdefault(manifest.group(1), []).append(entry)
            elif data is not None:
                checkpoint = (data.group(1), int(data.group(2)))
                self.seen.damaged.add(checkpoint) if truncated else self.seen.damaged.discard(checkpoint)

    @staticmethod
    def forward(
        port: int, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request to the endpoint; returns status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            kept = {
                name: value
                for name, value in answer.getheaders()
                if name.lower() not in ("transfer-encoding", "connection", "date", "server")
                and (method == "HEAD" or name.lower() != "content-length")
            }
            return answer.status, kept, content
        finally:
            connection.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
