"""A program that ExoSphere tells of a job's servers, and that answers for the job.

    python examples/exosphere/up_calls.py &
    ebbtide run examples/live/job.yaml --policy examples/exosphere/exosphere.yaml

It writes every call down, has a checkpoint written when a server may be revoked soon, and leaves all else to the
application that the policy has for the job.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Listening(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(json.dumps(call), flush=True)
        warned = call["call"] == "soft-revocation"
        answer = {"calls": [{"call": "checkpoint"}] if warned else None}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Calls are printed already."""


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8123
    ThreadingHTTPServer(("127.0.0.1", port), Listening).serve_forever()


if __name__ == "__main__":
    main()
