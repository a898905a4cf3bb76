"""A small client of SkyPilot's API server: queue requests, and look up their outcome."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from ebbtide.errors import CloudError, InputError

# Environment variables of SkyPilot's own tools.
_SERVER, _TOKEN = "SKYPILOT_API_SERVER_ENDPOINT", "SKYPILOT_SERVICE_ACCOUNT_TOKEN"
_HERE = "http://127.0.0.1:46580"
# API version of this client; newer servers accept older versions.
_API_VERSION = "62"
_REQUEST_ID = "X-Skypilot-Request-ID"
_CONNECT_S, _WITHIN_S = 2.0, 20.0
_DONE = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_MOST = 500
# About the year 9999, seconds since 1970; a later time is no time.
_LATEST_S = 2.5e11
# The server's messages are made for terminals.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class SkyRequest:
    """A request as the server reports it.

    Attributes:
        request_id: Id of the request.
        what: Kind of the request, such as `launch`.
        cluster: Name of its cluster; empty: it concerns no cluster.
        status: Its status: `PENDING`, `RUNNING`, `SUCCEEDED`, `FAILED`...
        created_s: Time at which it was made, seconds since 1970.
        finished_s: Time at which it finished, seconds since 1970; None: not yet, or not known.
    """

    request_id: str
    what: str
    cluster: str
    status: str
    created_s: float
    finished_s: float | None = None

    @property
    def is_done(self) -> bool:
        """True if the request has succeeded, failed or been cancelled."""
        return self.status in _DONE


class SkyApi:
    """Client of an API server.

    Args:
        server: Address of the server; empty: as SkyPilot's own tools find it.

    Attributes:
        url: Address of the server.

    Raises:
        InputError: The address is malformed or holds a password, or the token is malformed or would be sent to
            another machine unencrypted.
    """

    def __init__(self, server: str = "") -> None:
        self.url = (server or os.environ.get(_SERVER) or _HERE).rstrip("/")
        token = os.environ.get(_TOKEN, "").strip()
        if not re.fullmatch(r"[!-~]*", token):
            raise InputError("holds characters that no token has", field=_TOKEN)
        parts = _parts(self.url, "server" if server else _SERVER)
        if token and parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise InputError(
                f"{self.url} would be sent {_TOKEN} unencrypted; give an https address", field="server"
            )
        self._headers = {"User-Agent": "ebbtide", "X-SkyPilot-API-Version": _API_VERSION}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        # The server distinguishes users by this id; it is no secret.
        self._user = {"SKYPILOT_USER_ID": secrets.token_hex(4), "SKYPILOT_USER": "ebbtide"}
        self._pool = urllib3.PoolManager(timeout=Timeout(connect=_CONNECT_S, read=_WITHIN_S), retries=False)

    def check(self) -> None:
        """Check that the server answers and is healthy.

        Raises:
            InputError: It does not answer, is not healthy, or is not SkyPilot's API server.
        """
        try:
            found, _ = self._ask("GET", "/api/health")
        except _Refused as error:
            raise InputError(str(error), field="server") from None
        except CloudError as error:
            raise InputError(f"{error}; `sky api start` starts one on this machine", field="server") from None
        status = found.get("status") if isinstance(found, dict) else None
        if not isinstance(status, str):
            raise InputError(f"{self.url} answers, and is no API server of SkyPilot", field="server")
        if status != "healthy":
            raise InputError(f"SkyPilot's API server at {self.url} says {status!r:.60}", field="server")

    def launch(self, cluster: str, task: str) -> str:
        """Launch a cluster that runs a task; returns the id of the request.

        Args:
            cluster: Name of the cluster.
            task: The task as YAML text.
        """
        return self._begin("/launch", {"cluster_name": cluster, "task": task, "quiet_optimizer": True})

    def down(self, cluster: str) -> str:
        """Take down a cluster; returns the id of the request."""
        return self._begin("/down", {"cluster_name": cluster})

    def clusters(self) -> list[Mapping[str, Any]]:
        """Return all clusters, as of the server's last refresh from their clouds."""
        asked = {
            "refresh": "NONE",
            "include_credentials": False,
            "include_handle": False,
            "summary_response": True,
        }
        request_id = self._begin("/status", asked)
        found, _ = self._ask("GET", "/api/get", {"request_id": request_id})
        kept = found if isinstance(found, dict) else {}
        try:
            listed = json.loads(kept.get("return_value") or "null")
        except (ValueError, TypeError, RecursionError):
            listed = None
        if not isinstance(listed, list):
            raise CloudError("SkyPilot's API server does not list its clusters")
        return [one for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)]

    def requests(
        self, cluster: str = "", ids: Sequence[str] = (), *, only_active: bool = False
    ) -> list[SkyRequest]:
        """Return the requests that the server still keeps, the oldest first.

        Args:
            cluster: Name of the requests' cluster; empty: any.
            ids: Ids of the requests; none: any.
            only_active: Whether to leave out requests that are done.
        """
        asked: list[tuple[str, str]] = [("request_ids", one) for one in ids]
        asked += [("cluster_name", cluster)] if cluster else []
        asked += [] if only_active else [("all_status", "true")]
        found, _ = self._ask("GET", "/api/status", asked)
        if not isinstance(found, list):
            raise CloudError("SkyPilot's API server does not list its requests")
        kept = [_request(one) for one in found if isinstance(one, dict)]
        return sorted(kept, key=lambda one: one.created_s)

    def failure(self, request_id: str) -> tuple[str, str]:
        """Return why a request failed: the kind of the error, and its message in one line.

        Both are empty if the request did not fail, or the server has forgotten it.
        """
        try:
            self._ask("GET", "/api/get", {"request_id": request_id})
        except _FailedRequest as error:
            return error.kind, error.said
        except _Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        return "", ""

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Cancel requests that are not done."""
        self._begin("/api/cancel", {"request_ids": list(request_ids)})

    def _begin(self, path: str, content: Mapping[str, Any]) -> str:
        body = {**content, "env_vars": self._user, "entrypoint": "ebbtide", "entrypoint_command": "ebbtide"}
        _, headers = self._ask("POST", path, body=body | {"override_skypilot_config": {}})
        found = headers.get(_REQUEST_ID)
        if not found:
            raise CloudError(f"SkyPilot's API server gives no id of a request for {path}")
        return found

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
    ) -> tuple[Any, Mapping[str, str]]:
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        sent = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, url, body=sent, headers=headers, redirect=False)
        except HTTPError as error:
            said = " ".join(str(error).split())
            raise CloudError(f"SkyPilot's API server at {self.url} does not answer: {said}") from error
        try:
            found = json.loads(answer.data) if answer.data else None
        except (ValueError, RecursionError):
            found = None
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise _refusal(answer.status, found)
        return found, answer.headers


def _parts(url: str, field: str) -> SplitResult:
    """Split an address into its parts. Error messages do not repeat it, since it may hold a password."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address or re.search(r"[^!-~]", url):
        raise InputError("is no address of an API server; write it as https://HOST[:PORT]", field=field)
    if parts.username is not None or parts.password is not None:
        raise InputError(
            f"holds a name or a password, which would be kept with the run; set {_TOKEN}", field=field
        )
    return parts


class _Refused(CloudError):
    """The server answered with an error."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class _FailedRequest(_Refused):
    """The request whose result was asked for has failed."""

    def __init__(self, status: int, kind: str, said: str) -> None:
        super().__init__(status, f"SkyPilot: {kind}: {said}")
        self.kind, self.said = kind, said


def _refusal(status: int, content: Any) -> _Refused:
    """Return the error of an answer, with its message in one line."""
    detail = content.get("detail") if isinstance(content, dict) else None
    if isinstance(detail, dict) and "request_id" in detail:
        return _FailedRequest(status, *_error(detail.get("error")))
    said = " ".join(str(detail or "it does not say why").split())[:_MOST]
    hint = f"; set {_TOKEN}" if status == HTTPStatus.UNAUTHORIZED else ""
    return _Refused(status, f"SkyPilot's API server refused ({status}): {said}{hint}")


def _request(kept: Mapping[str, Any]) -> SkyRequest:
    finished = kept.get("finished_at")
    return SkyRequest(
        str(kept.get("request_id", "")),
        str(kept.get("name", "")).removeprefix("sky."),
        str(kept.get("cluster_name") or ""),
        str(kept.get("status", "")),
        _time_s(kept.get("created_at")) or 0.0,
        _time_s(finished),
    )


def _time_s(value: Any) -> float | None:
    """Return a time in seconds since 1970; None: the value is no time."""
    return float(value) if isinstance(value, int | float) and 0 < value < _LATEST_S else None


def _error(error: Any) -> tuple[str, str]:
    """Return an error's kind and its message in one line, without unpickling the object sent with it."""
    try:
        found = json.loads(error) if isinstance(error, str) else error
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return "Error", "it does not say why"
    said = " ".join(_COLOURS.sub("", str(found.get("message") or "it does not say why")).split())[:_MOST]
    return str(found.get("type") or "Error"), said
