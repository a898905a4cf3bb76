"""The server of the page: it reads journals, answers only GET and HEAD, and changes nothing.

It has no authentication: anyone who can reach it can read what runs cost and print. So it binds to loopback, and
answers only to this machine's names, so that other sites' pages cannot read it through a browser.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from plotly.offline import get_plotlyjs
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.trustedhost import TrustedHostMiddleware

from ebbtide.base.json_values import finite
from ebbtide.clouds.settings import UNREADABLE, RunFolder, UnreadableRun, find_run, known_runs
from ebbtide.controller.journal.journal import journal_of
from ebbtide.controller.run_state import State
from ebbtide.errors import EbbtideError, InputError, JournalAwayError
from ebbtide.runs.status import RunStanding, standing_of
from ebbtide.runs.why import told_of
from ebbtide.ui.figures import RunFigures
from ebbtide.ui.prometheus import exposition

_PAGE = Path(__file__).parent / "page"
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
# Load nothing from other sites. Plotly sets inline styles.
_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
# Errors from reading a run whose files are damaged or not Ebbtide's: our own, and those of decoding.
_DAMAGED = (EbbtideError, OSError, ValueError, TypeError, LookupError, AttributeError)
_FILES = {"app.js": "text/javascript", "charts.js": "text/javascript", "app.css": "text/css"}


def app_for(runs: Path, hosts: Sequence[str] = ()) -> FastAPI:
    """Make the application that serves the page and its data.

    Args:
        runs: Folder of the runs.
        hosts: Host names to answer to, besides those of loopback.
    """
    app = FastAPI(title="Ebbtide", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*_LOOPBACK, *hosts])
    plotly = get_plotlyjs()

    @app.middleware("http")
    async def guarded(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    @app.exception_handler(JournalAwayError)
    async def away(_request: Request, error: JournalAwayError) -> Response:
        return _json({"error": str(error)}, status=503)

    @app.exception_handler(InputError)
    async def wrong(_request: Request, error: InputError) -> Response:
        return _json({"error": str(error)}, status=404)

    @app.get("/")
    def page() -> Response:
        return Response((_PAGE / "index.html").read_bytes(), media_type="text/html; charset=utf-8")

    @app.get("/static/plotly.min.js")
    def plots() -> Response:
        kept = {"Cache-Control": "max-age=86400"}
        return Response(plotly, media_type="text/javascript; charset=utf-8", headers=kept)

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in _FILES:
            return _json({"error": f"there is no file {name!r}"}, status=404)
        return Response((_PAGE / name).read_bytes(), media_type=f"{_FILES[name]}; charset=utf-8")

    @app.get("/api/runs")
    def all_runs(request: Request) -> Response:
        return _unless_known(request, [one.as_plain() for one in _standings(runs)])

    @app.get("/api/runs/{run}")
    def status(request: Request, run: str) -> Response:
        return _unless_known(request, _read(runs, run, lambda one: standing_of(one, one.catalogue).as_plain()))

    @app.get("/api/runs/{run}/{view}")
    def view_of(request: Request, run: str, view: str) -> Response:
        if view not in _VIEWS:
            return _json({"error": f"there is no view {view!r}; there are {', '.join(_VIEWS)}"}, status=404)
        return _unless_known(request, _read(runs, run, _unchanged(view, _VIEWS[view])))

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(_standings(runs)), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    def healthy() -> Response:
        return PlainTextResponse("ok\n")

    for route in app.routes:
        # FastAPI, unlike Starlette, does not answer HEAD on GET routes, and probes send HEAD.
        if isinstance(route, APIRoute) and route.methods is not None:
            route.methods.add("HEAD")
    return app


def _standings(runs: Path) -> list[RunStanding | UnreadableRun]:
    """Return the status of every run, unreadable ones included; empty if there is none."""
    try:
        folders = known_runs(runs)
    except InputError:
        return []
    found: list[RunStanding | UnreadableRun] = []
    for folder in folders:
        try:
            found.append(_standing(folder))
        except _DAMAGED as error:
            found.append(UnreadableRun(folder.path.name, " ".join(str(error).split()) or type(error).__name__))
    return found


def _standing(folder: RunFolder) -> RunStanding:
    """Return the status of a run; cached if the run is over, until its journal changes."""
    key, stamp = (str(folder.path), "status"), _stamp(folder)
    before = _KEPT.get(key)
    if before is not None and before[0] == stamp:
        over: RunStanding = before[1]
        return over
    found = standing_of(folder, folder.catalogue)
    if found.state in _OVER:
        _keep(key, stamp, found)
    return found


def _read(runs: Path, run: str, look: Callable[[RunFolder], Any]) -> Any:
    """Find a run, and return what `look` reads from its folder.

    Raises:
        InputError: There is no such run, or it cannot be read.
        JournalAwayError: The server that keeps its journal does not answer.
    """
    folder = find_run(runs, run)
    try:
        return look(folder)
    except (InputError, JournalAwayError):
        raise
    except _DAMAGED as error:
        raise InputError(f"run {run} {UNREADABLE}: {' '.join(str(error).split())}") from None


def _decisions(folder: RunFolder) -> Any:
    return [told.as_plain() for told in told_of(folder).all()]


# Views of one run, by their name in the URL.
_VIEWS: dict[str, Callable[[RunFolder], Any]] = {
    "curves": lambda folder: RunFigures.of(folder).curves(),
    "machines": lambda folder: RunFigures.of(folder).machines(),
    "spend": lambda folder: RunFigures.of(folder).spend(),
    "decisions": _decisions,
}


def _unchanged(view: str, look: Callable[[RunFolder], Any]) -> Callable[[RunFolder], Any]:
    """Cache a view until the run's journal changes: pages poll every two seconds."""

    def kept(folder: RunFolder) -> Any:
        key, stamp = (str(folder.path), view), _stamp(folder)
        before = _KEPT.get(key)
        if before is not None and before[0] == stamp and stamp:
            return before[1]
        content = look(folder)
        _keep(key, stamp, content)
        return content

    return kept


def _stamp(folder: RunFolder) -> tuple[int, ...]:
    """Return a stamp that changes whenever the run's journal is written."""
    return journal_of(folder, read_only=True).stamp()


def _keep(key: tuple[str, str], stamp: tuple[int, ...], content: Any) -> None:
    if len(_KEPT) >= _MOST_KEPT:
        _KEPT.clear()
    _KEPT[key] = stamp, content


# Cache by folder and view: the journal's stamp, and the content at that time.
_KEPT: dict[tuple[str, str], tuple[tuple[int, ...], Any]] = {}
_MOST_KEPT = 256
# A run in one of these states changes only when it is resumed, which writes to its journal.
_OVER = frozenset({State.FINISHED, State.FAILED})


def _unless_known(request: Request, content: Any) -> Response:
    """Answer with the content as JSON, or with 304 if the browser has it already."""
    body = json.dumps(finite(content), allow_nan=False).encode()
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return _json(body, tag=tag)


def _json(content: Any, *, status: int = 200, tag: str = "") -> Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"ETag": tag, "Cache-Control": "no-cache"} if tag else {"Cache-Control": "no-store"}
    return Response(body, status_code=status, media_type="application/json", headers=headers)
