"""A server on loopback whose answers are cut off, as those of a process that ends while it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# In the middle of the content, and before the first line has ended.
CUTS = ("content", "status")


@contextmanager
def cut_answers(where: str, times: int | None = None, then: bytes = b"") -> Iterator[str]:
    """Its address.

    Args:
        where: One of `CUTS`.
        times: How many answers are cut off; None: all.
        then: The answer after those.
    """
    left = [float("inf") if times is None else times]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # What was sent is read, or closing would cut the answer in another place.
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            left[0] -= 1
            self.close_connection = True
            if left[0] < 0:
                head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(then)}\r\n\r\n".encode()
                self.wfile.write(head + then)
            elif where == "content":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            else:
                self.wfile.write(b"HT\r\n")

        do_PUT = do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
