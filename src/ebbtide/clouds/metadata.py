"""Instance metadata as served by EC2 (IMDSv2, which needs a token) and GCP (which needs a header).

`MetadataService` only maps requests to answers; the local cloud and `ebbtide.testing` run the HTTP servers.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

_TOKEN, _TTL = "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds"

# EC2's limit for the life of a token, seconds.
_LONGEST_S = 21_600

_TOKEN_PATH = "api/token"
_ACTION = "meta-data/spot/instance-action"
_REBALANCE = "meta-data/events/recommendations/rebalance"
_ROLES = "meta-data/iam/security-credentials"

# GCP: every request and every answer carries the header `Metadata-Flavor: Google`.
_GCP = "/computeMetadata/v1/"
_FLAVOR, _GOOGLE = "metadata-flavor", "Google"
_SERVICE_ACCOUNT = "instance/service-accounts/default"


@dataclass(frozen=True)
class RoleCredentials:
    """Credentials of a machine's role.

    Attributes:
        role: Name of the role, which is part of the credentials' path.
        key: Id of the access key; on GCP the access token.
        secret: Secret of the access key.
        expires_s: Time at which they expire, seconds since 1970.
    """

    role: str
    key: str
    secret: str
    expires_s: float


@dataclass(frozen=True)
class MachineState:
    """Metadata of one machine at one moment.

    Attributes:
        taken_at_s: Time at which the machine will be revoked, seconds since 1970; None: there is no notice.
        rebalance_s: Time at which moving was recommended, seconds since 1970; None: it was not.
        credentials: Credentials of the machine's role; None: it has no role.
    """

    taken_at_s: float | None = None
    rebalance_s: float | None = None
    credentials: RoleCredentials | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    Attributes:
        status: Status code of the HTTP answer.
        body: Its content, as text.
        headers: Its headers by name, beyond those of every answer.
    """

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class MetadataService:
    """Answers requests for the metadata of many machines, each below a path prefix of its own.

    Args:
        state: Returns the current state of the machine with a path prefix; None: there is no such machine. A path
            without a prefix belongs to the machine with the empty name.
        now: Returns the time by which tokens expire, in seconds since 1970.
    """

    def __init__(
        self, state: Callable[[str], MachineState | None], *, now: Callable[[], float] = time.time
    ) -> None:
        self._state, self._now = state, now
        self._lock = threading.Lock()
        # By token: the machine that it was given to, and the time at which it expires.
        self._tokens: dict[str, tuple[str, float]] = {}

    @property
    def tokens(self) -> int:
        """Number of tokens that are still valid."""
        with self._lock:
            return sum(ends_s > self._now() for _, ends_s in self._tokens.values())

    def forget_tokens(self) -> None:
        """Expire every token."""
        with self._lock:
            self._tokens.clear()

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        """Answer one request.

        Args:
            method: Method of the request, such as `GET`.
            path: Path of the request, such as `/machine-1/latest/api/token`, or on GCP
                `/machine-1/computeMetadata/v1/instance/preempted`.
            headers: Headers of the request; the case of their names does not matter.
        """
        given = {name.lower(): value for name, value in headers.items()}
        if _GCP in path:
            return self._google_answer(method, path, given)
        before, found, wanted = path.partition("?")[0].partition("/latest/")
        machine, wanted = before.strip("/"), wanted.rstrip("/")
        if not found or "/" in machine:
            return Answer(404)
        if method == "PUT":
            return self._token(machine, given) if wanted == _TOKEN_PATH else Answer(404)
        if method != "GET":
            return Answer(405)
        if not self._is_good(given.get(_TOKEN, ""), machine):
            return Answer(401)
        state = self._state(machine)
        content = None if state is None else _content(state, wanted)
        return Answer(404) if content is None else Answer(200, content)

    def _google_answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        before, _, wanted = path.partition("?")[0].partition(_GCP)
        if headers.get(_FLAVOR) != _GOOGLE or "x-forwarded-for" in headers:
            return Answer(403)
        if method != "GET":
            return Answer(405)
        state = self._state(before.strip("/"))
        content = None if state is None else _google_content(state, wanted.rstrip("/"), self._now())
        return Answer(404) if content is None else Answer(200, content, {"Metadata-Flavor": _GOOGLE})

    def _token(self, machine: str, headers: Mapping[str, str]) -> Answer:
        ttl = headers.get(_TTL, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= _LONGEST_S:
            return Answer(400)
        if "x-forwarded-for" in headers:
            return Answer(403)  # a proxy must not hand tokens on
        token, now_s = secrets.token_hex(16), self._now()
        with self._lock:
            self._tokens = {one: given for one, given in self._tokens.items() if given[1] > now_s}
            self._tokens[token] = (machine, now_s + int(ttl))
        return Answer(200, token)

    def _is_good(self, token: str, machine: str) -> bool:
        with self._lock:
            of, ends_s = self._tokens.get(token, ("", 0.0))
        return of == machine and ends_s > self._now()


def _content(state: MachineState, path: str) -> str | None:
    """Return the value at a path; None: there is none now."""
    role = state.credentials
    if path == _ACTION and state.taken_at_s is not None:
        return json.dumps({"action": "terminate", "time": _iso(state.taken_at_s)})
    if path == _REBALANCE and state.rebalance_s is not None:
        return json.dumps({"noticeTime": _iso(state.rebalance_s)})
    if role is None:
        return None
    if path == _ROLES:
        return role.role
    if path == f"{_ROLES}/{role.role}":
        return json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "AccessKeyId": role.key,
                "SecretAccessKey": role.secret,
                "Token": "session",
                "Expiration": datetime.fromtimestamp(role.expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )
    return None


def _google_content(state: MachineState, path: str, now_s: float) -> str | None:
    """Return the value at a path of GCP's metadata; None: there is no such path."""
    role = state.credentials
    if path == "instance/preempted":
        return "FALSE" if state.taken_at_s is None else "TRUE"
    if path == "instance/maintenance-event":
        return "NONE" if state.rebalance_s is None else "TERMINATE_ON_HOST_MAINTENANCE"
    if role is not None and path == f"{_SERVICE_ACCOUNT}/token":
        lasts_s = int(role.expires_s - now_s)
        return json.dumps({"access_token": role.key, "expires_in": lasts_s, "token_type": "Bearer"})
    return None


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z")
