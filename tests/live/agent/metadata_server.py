"""Instance metadata for tests, as EC2 has them: tokens first, then what will happen to the machine."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class MetadataServer:
    """On loopback, at a free port."""

    def __init__(self) -> None:
        self.taken_at_s: float | None = None
        self.rebalance = False
        self.tokens: set[str] = set()
        self.asked = 0
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                assert self.path == "/latest/api/token"
                assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
                token = f"token-{len(served.tokens)}-{served.asked}"
                served.tokens.add(token)
                self._answer(200, token)

            def do_GET(self) -> None:
                served.asked += 1
                if self.headers["X-aws-ec2-metadata-token"] not in served.tokens:
                    self._answer(401, "")
                elif self.path == "/latest/meta-data/spot/instance-action" and served.taken_at_s is not None:
                    time = datetime.fromtimestamp(served.taken_at_s, UTC).isoformat().replace("+00:00", "Z")
                    self._answer(200, json.dumps({"action": "terminate", "time": time}))
                elif self.path == "/latest/meta-data/events/recommendations/rebalance" and served.rebalance:
                    self._answer(200, json.dumps({"noticeTime": "2026-01-01T00:00:00Z"}))
                else:
                    self._answer(404, "")

            def _answer(self, status: int, content: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
