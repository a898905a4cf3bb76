"""Recorded answers of HTTP APIs, served on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from ebbtide.testing.stand_in.server import LoopbackServer, Start


@dataclass(frozen=True)
class Asked:
    """A request as received.

    Attributes:
        method: Method of the request, such as GET.
        path: Path without the query.
        query: Parameters of the query by name.
        headers: Headers by name in lower case.
        body: Content of the request as text.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: str


# An answer's text, or a status with a text. Several answers are sent in turn, and the last is repeated.
Answer = str | tuple[int, str]


@dataclass
class RecordedAnswers:
    """Sends answers by method and path, and 404 for any other request.

    Attributes:
        routes: Answers by method and path, such as `GET /v1/skus`; HOST in a text is the server's own address.
        asked: Every request so far, in order.
        url: Address of the server, without a path.
    """

    routes: dict[str, Sequence[Answer]]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        headers = {
            name[5:].lower().replace("_", "-"): str(v) for name, v in environ.items() if name[:5] == "HTTP_"
        }
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        self.asked.append(Asked(method, path, query, headers, environ["wsgi.input"].read(length).decode()))
        left = self.routes.get(f"{method} {path}", [(404, "no such path")])
        answer = left[0]
        if len(left) > 1:
            self.routes[f"{method} {path}"] = left[1:]
        status, text = answer if isinstance(answer, tuple) else (200, answer)
        body = text.replace("HOST", environ["HTTP_HOST"]).encode()
        start(f"{status} {HTTPStatus(status).phrase}", [("Content-Length", str(len(body)))])
        return [body]


@contextmanager
def served(routes: Mapping[str, Sequence[Answer]]) -> Iterator[RecordedAnswers]:
    """Serve answers while the block lasts."""
    answers = RecordedAnswers(dict(routes))
    server = LoopbackServer(answers)
    answers.url = server.url
    try:
        yield answers
    finally:
        server.close()
