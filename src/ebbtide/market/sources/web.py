"""A small client for the public APIs of clouds: JSON and lines of text, patient where a service is busy.

An answer that does not come, is refused, is too large or is not what it should be is a `CloudError` of one line.
Credentials go into headers alone, which no message shows.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from ebbtide.errors import CloudError, InputError

_MAX_JSON_BYTES = 256 << 20
_CONNECT_S, _READ_S = 10.0, 60.0
_MAX_WAIT_S = 60.0
_SAID = 200


class _BusyError(CloudError):
    """The service may answer later: too many requests, or it is in trouble."""


@dataclass(frozen=True)
class Web:
    """Sends requests to one address.

    Attributes:
        base: Address of the service, without a path: `https://prices.azure.com`.
        name: Name of the service in messages.
        headers: Gives the headers of each request, credentials among them; never shown.
        attempts: Number of times one request is sent before giving up.
        first_wait_s: Wait after the first try that failed, seconds; doubled, with jitter, up to a minute.

    Raises:
        InputError: The address is none.
    """

    base: str
    name: str
    headers: Callable[[], Mapping[str, str]] | None = None
    attempts: int = 4
    first_wait_s: float = 1.0

    def __post_init__(self) -> None:
        check_address(self.base)

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON at a path.

        Raises:
            CloudError: There is no answer, it is a refusal, or it is no JSON.
        """
        return self.ask("GET", path, parameters)

    def post(self, path: str, body: Mapping[str, Any], **parameters: str) -> Any:
        """The JSON that a request with a body is answered with; the same errors."""
        return self.ask("POST", path, parameters, body)

    def ask(
        self, method: str, path: str, parameters: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request with any method and return its JSON answer; the base of `get` and `post`."""
        content = self._retried(lambda: self._once(method, path, parameters, body))
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise CloudError(f"{self.name} answered something that is not JSON") from None

    def path_of(self, link: str) -> str:
        """The path and query of a link to a further page, which has to lead to the same service.

        Raises:
            CloudError: It leads elsewhere: credentials and requests are not sent there.
        """
        found = urlsplit(link)
        if found.hostname != urlsplit(self.base).hostname:
            raise CloudError(f"{self.name} names a next page elsewhere, at {found.hostname}")
        return f"{found.path}?{found.query}" if found.query else found.path

    @contextmanager
    def lines(self, path: str) -> Iterator[Iterator[str]]:
        """The text at a path, line by line as it comes: it may be larger than the memory.

        Raises:
            CloudError: There is no answer, it is a refusal, or it breaks off.
        """
        answer = self._retried(lambda: self._opened("GET", path, {}, None))
        try:
            # Otherwise it closes itself at its end, before the wrapper has seen that.
            answer.auto_close = False
            with io.TextIOWrapper(answer, encoding="utf-8", errors="replace", newline="") as text:
                yield iter(text)
        except HTTPError as error:
            raise CloudError(f"{self.name} broke off: {_line(error)}") from None
        finally:
            answer.release_conn()

    def _retried(self, call: Any) -> Any:
        retrying = Retrying(
            retry=retry_if_exception_type(_BusyError),
            stop=stop_after_attempt(self.attempts),
            wait=wait_exponential_jitter(multiplier=self.first_wait_s, max=_MAX_WAIT_S, jitter=self.first_wait_s),
            reraise=True,
        )
        return retrying(call)

    def _once(
        self, method: str, path: str, parameters: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> bytes:
        answer = self._opened(method, path, parameters, body)
        try:
            content: bytes = answer.read(_MAX_JSON_BYTES + 1, decode_content=True)
        except HTTPError as error:
            raise _BusyError(f"{self.name} broke off: {_line(error)}") from None
        finally:
            answer.release_conn()
        if len(content) > _MAX_JSON_BYTES:
            raise CloudError(f"{self.name} answered more than {_MAX_JSON_BYTES >> 20} MiB")
        return content

    def _opened(
        self, method: str, path: str, parameters: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> urllib3.BaseHTTPResponse:
        query = f"?{urlencode(parameters)}" if parameters else ""
        headers = {"User-Agent": "ebbtide", "Accept-Encoding": "gzip", **(self.headers() if self.headers else {})}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = _POOL.request(
                method,
                f"{self.base.rstrip('/')}{path}{query}",
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                redirect=False,
                preload_content=False,
                decode_content=True,
            )
        except HTTPError as error:
            raise _BusyError(f"{self.name} does not answer: {_line(error)}") from None
        if answer.status == HTTPStatus.OK:
            return answer
        try:
            said = " ".join(answer.read(4096, decode_content=True).decode("utf-8", "replace").split())[:_SAID]
        except HTTPError:
            said = ""
        answer.release_conn()
        problem = f"{self.name} refused ({answer.status}): {said or 'it does not say why'}"
        is_busy = (
            answer.status == HTTPStatus.TOO_MANY_REQUESTS or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        )
        raise (_BusyError if is_busy else CloudError)(problem)


def check_address(url: str) -> None:
    """Raise `InputError` for an address to which no request can be sent."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_one = False
    if not is_one or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise InputError(f"{url!r:.80} is no address; one such as https://host or http://127.0.0.1:8080 is needed")


# Tries are counted by `Web`, so urllib3 does not repeat any by itself.
_POOL = urllib3.PoolManager(timeout=Timeout(connect=_CONNECT_S, read=_READ_S), retries=False)


def _line(error: BaseException) -> str:
    """An error in one line, without the address of the request."""
    return type(getattr(error, "reason", None) or error).__name__
