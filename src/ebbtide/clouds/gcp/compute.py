"""A small client of Compute Engine's REST API: authentication, paging, retries, and typed errors."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from ebbtide.clouds.clock import CLOCK
from ebbtide.errors import CloudError
from ebbtide.storage.google_tokens import GoogleTokens

_URL = "https://compute.googleapis.com/compute/v1/"
# The variable that gcloud reads, too.
_URL_FROM = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"

# Bounds one request, so that it does not delay a stop of the run; the controller retries failed requests.
_TRIES, _WITHIN_S, _CONNECT_S = 2, 10.0, 2.0
_PAUSE_S = 0.5
_AGAIN = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class ComputeError(CloudError):
    """Compute Engine refused a request.

    Attributes:
        status: Status code of its answer.
        reason: Its reason in one word, such as `quotaExceeded`.
    """

    def __init__(self, status: int, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.status, self.reason = status, reason
        self.is_refusal = status in (HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST) and not self.may_pass

    @property
    def may_pass(self) -> bool:
        """True if the same request may succeed later: a rate limit was hit, or the service failed."""
        return self.status in _AGAIN or self.reason in ("rateLimitExceeded", "userRateLimitExceeded")


class Compute:
    """Client of Compute Engine for one project.

    Args:
        project: Id of the project.
        tokens: Returns the access token of each request; None: from Google's standard chain.
        sleep: Waits between two attempts, seconds.
    """

    def __init__(
        self, project: str, tokens: GoogleTokens | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        base = os.environ.get(_URL_FROM) or _URL
        self._url = f"{base.rstrip('/')}/projects/{quote(project, safe=':.')}"
        self._tokens, self._sleep = tokens or GoogleTokens(), sleep
        self._pool = urllib3.PoolManager(
            timeout=Timeout(connect=_CONNECT_S, total=(_WITHIN_S - 2 * _PAUSE_S) / _TRIES), retries=False
        )

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """Return the resource at a path below the project.

        Raises:
            CloudError: Compute Engine does not answer, or refuses (`ComputeError`).
        """
        return self._ask("GET", path, parameters)

    def pages(self, path: str, **parameters: str) -> Iterator[dict[str, Any]]:
        """Yield all pages of a list; raises as `get` does."""
        while True:
            page = self.get(path, **parameters)
            yield page
            if not page.get("nextPageToken"):
                return
            parameters["pageToken"] = str(page["nextPageToken"])

    def post(self, path: str, body: Mapping[str, Any], **parameters: str) -> dict[str, Any]:
        """Post a request, which counts once if repeated with the same `requestId`; raises as `get` does."""
        return self._ask("POST", path, parameters, body)

    def delete(self, path: str, **parameters: str) -> dict[str, Any]:
        """Delete the resource at a path; raises as `get` does."""
        return self._ask("DELETE", path, parameters)

    def _ask(
        self, method: str, path: str, parameters: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        query = f"?{urlencode(parameters)}" if parameters else ""
        for left in reversed(range(_TRIES)):
            try:
                return self._once(method, f"{self._url}/{quote(path)}{query}", body)
            except ComputeError as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    self._tokens.forget()
                elif not error.may_pass:
                    raise
                if not left:
                    raise
            except HTTPError as error:
                if not left:
                    raise CloudError(f"Compute Engine does not answer: {' '.join(str(error).split())}") from error
            self._sleep(_PAUSE_S * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._tokens.token()}", "User-Agent": "ebbtide"}
        answer = self._pool.request(
            method,
            url,
            body=None if body is None else json.dumps(body).encode(),
            headers=headers | ({} if body is None else {"Content-Type": "application/json"}),
            redirect=False,
        )
        content: dict[str, Any] = {}
        with suppress(ValueError, RecursionError):
            found = json.loads(answer.data)
            content = found if isinstance(found, dict) else {}
        is_theirs = isinstance(content.get("error"), dict)
        if answer.status == HTTPStatus.UNAUTHORIZED or (is_theirs and answer.status >= HTTPStatus.BAD_REQUEST):
            raise _error(answer.status, content)
        is_done = answer.status < HTTPStatus.MULTIPLE_CHOICES
        if not is_done or not str(content.get("kind", "")).startswith("compute#"):
            # Such as the sign-in page of a proxy: taken for an empty list, all machines would be gone.
            raise HTTPError(f"the answer ({answer.status}) is none of Google's")
        CLOCK.follow(answer.headers.get("Date", ""))
        return content


def _error(status: int, content: Mapping[str, Any]) -> ComputeError:
    """Return the error of an answer, with its message in one line."""
    error = content.get("error")
    error = error if isinstance(error, dict) else {}
    listed = [one for one in error.get("errors") or () if isinstance(one, dict)]
    reason = str(listed[0].get("reason", "")) if listed else ""
    said = " ".join(str(error.get("message") or "it does not say why").split())
    shown = f"{status} {reason}".rstrip()
    if status == HTTPStatus.UNAUTHORIZED:
        return ComputeError(
            status,
            reason,
            f"the Google credentials are refused; renew them, and the run continues: {shown}: {said}",
        )
    return ComputeError(status, reason, f"Compute Engine refused ({shown}): {said}")
