"""Recorded answers of public APIs, served on 127.0.0.1; see tests/recordings/README.md for where they are from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ebbtide.testing.stand_in.server import LoopbackServer, Start

FOLDER = Path(__file__).parent / "recordings"


def recording(name: str) -> str:
    """The text of a recording."""
    return (FOLDER / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: str


# An answer's text, or a status with a text; of several the next one each time, the last again and again.
Answer = str | tuple[int, str]


@dataclass
class RecordedAnswers:
    """Answers by method and path, such as `GET /v1/skus`; anything else is not found."""

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


def as_json(content: Any) -> str:
    return json.dumps(content)
