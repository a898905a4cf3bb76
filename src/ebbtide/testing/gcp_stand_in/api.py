"""Google Cloud over real HTTP: tokens, Compute Engine, and the XML API of object storage on moto's S3."""

from __future__ import annotations

import io
import json
import secrets
import threading
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, quote

from ebbtide.testing.gcp_stand_in.compute import ComputeApi
from ebbtide.testing.stand_in.machines import ROLE_KEY
from ebbtide.testing.stand_in.server import LoopbackServer, Start, moto_application, sent

_COMPUTE, _TOKEN = "/compute/v1/", "/token"
_JSON = "application/json"
_STATUS = {
    200: "200 OK",
    400: "400 Bad Request",
    401: "401 Unauthorized",
    403: "403 Forbidden",
    404: "404 Not Found",
    409: "409 Conflict",
    503: "503 Service Unavailable",
}

# Location of all buckets.
_LOCATION = "US-CENTRAL1"

# moto recognises the service from the signature.
_AS_S3 = "AWS4-HMAC-SHA256 Credential=stand-in/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class GcpApi:
    """Serves Google's APIs until it is closed.

    Args:
        project: Id of the only project.

    Attributes:
        compute: The API of Compute Engine.
        url: Address of the server, which serves object storage; other APIs have a path below it.
        given: Access tokens issued to the user, in order; machines get theirs from their metadata.
        expired: Access tokens to refuse.
    """

    def __init__(self, project: str) -> None:
        self.compute = ComputeApi(project)
        self.given: list[str] = []
        self.expired: set[str] = set()
        self._moto, self._lock = moto_application(), threading.Lock()
        self._server = LoopbackServer(self._answer)
        self.url = self._server.url

    @property
    def token_url(self) -> str:
        """Address at which the user gets tokens."""
        return self.url + _TOKEN

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def _answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == _TOKEN and method == "POST":
            return self._give(start)
        token = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
        is_known = token in self.given or token.startswith(f"{ROLE_KEY}-gcp-")
        if not is_known or token in self.expired:
            return _unauthorized(path, start)
        if path.startswith(_COMPUTE):
            return self._computed(environ, start)
        return self._stored(environ, start)

    def _give(self, start: Start) -> Iterable[bytes]:
        with self._lock:
            self.given.append(f"given-{secrets.token_hex(8)}")
            content = {"access_token": self.given[-1], "expires_in": 3600, "token_type": "Bearer"}
        return sent(start, _STATUS[200], json.dumps(content), _JSON)

    def _computed(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        content = json.loads(body) if body else {}
        reply = self.compute.answer(environ["REQUEST_METHOD"], environ["PATH_INFO"], query, content)
        return sent(start, _STATUS[reply.status], json.dumps(reply.content), _JSON)

    def _stored(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answer a request for object storage: moto's S3, with the differences of Google's API."""
        if environ.get("QUERY_STRING") == "location" and environ["REQUEST_METHOD"] == "GET":
            return sent(start, _STATUS[200], f"<LocationConstraint>{_LOCATION}</LocationConstraint>")
        if "HTTP_IF_NONE_MATCH" in environ and environ["REQUEST_METHOD"] == "PUT":
            # Google ignores this header on writes.
            del environ["HTTP_IF_NONE_MATCH"]
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        environ["HTTP_AUTHORIZATION"] = _AS_S3
        # moto reads the raw path, and clients differ in which characters they escape.
        query = environ.get("QUERY_STRING")
        environ["RAW_URI"] = environ["REQUEST_URI"] = quote(environ["PATH_INFO"]) + (f"?{query}" if query else "")
        if environ["REQUEST_METHOD"] == "DELETE" and not environ.get("QUERY_STRING"):
            found: list[str] = []
            asked = {**environ, "REQUEST_METHOD": "HEAD", "wsgi.input": io.BytesIO(), "CONTENT_LENGTH": "0"}
            list(self._moto(asked, lambda status, _headers, *_: found.append(status)))
            if found[0].startswith("404"):
                return sent(start, _STATUS[404], _error("NoSuchKey", "The specified key does not exist."))
        return self._moto(environ, start)


def _unauthorized(path: str, start: Start) -> Iterable[bytes]:
    said = "Invalid Credentials"
    if path.startswith(_COMPUTE):
        error = {"code": 401, "message": said, "errors": [{"reason": "authError", "message": said}]}
        return sent(start, _STATUS[401], json.dumps({"error": error}), _JSON)
    return sent(start, _STATUS[401], _error("AuthenticationRequired", said))


def _error(code: str, message: str) -> str:
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
