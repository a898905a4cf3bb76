"""A local HTTP server for instance metadata like EC2's and GCP's, for tests and stand-ins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ebbtide.clouds.metadata import MachineState, MetadataService


class MetadataServer:
    """Instance metadata on loopback, at a free port.

    Args:
        state: Returns the current state of a machine by its path prefix, None: there is no such machine. By
            default all prefixes belong to one machine, whose state the attributes set.

    Attributes:
        taken_at_s: Time at which that machine will be revoked, seconds since 1970; None: there is no notice.
        rebalance: Whether its metadata show a rebalance recommendation.
        service: The service that answers requests and holds the tokens.
        url: Address of the server, without a path.
    """

    def __init__(self, state: Callable[[str], MachineState | None] | None = None) -> None:
        self.taken_at_s: float | None = None
        self.rebalance = False
        self.service = service = MetadataService(state or self._one_machine)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = service.answer(self.command, self.path, dict(self.headers))
                body = answer.body.encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def _one_machine(self, _prefix: str) -> MachineState:
        return MachineState(self.taken_at_s, time.time() if self.rebalance else None)
