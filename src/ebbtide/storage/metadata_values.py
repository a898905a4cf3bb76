"""Single values of a machine's instance metadata, by HTTP."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException

_GCP_HOST = "metadata.google.internal"

_TIMEOUT_S = 2.0


def google_url() -> str:
    """The address of GCP's metadata server, as Google's own tools find it."""
    return f"http://{os.environ.get('GCE_METADATA_HOST') or _GCP_HOST}"


def google_value(url: str, path: str) -> str:
    """A value of GCP's instance metadata, as text.

    Args:
        url: Address of the metadata server.
        path: Path of the value, such as `instance/preempted`.

    Raises:
        OSError: The server does not answer, or there is no such value.
    """
    return metadata_answer(f"{url}/computeMetadata/v1/{path}", {"Metadata-Flavor": "Google"}).strip()


def metadata_answer(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    """The answer of a metadata service, as text.

    Args:
        url: Address of what is asked for.
        headers: Headers of the request.
        method: Method of the request.

    Raises:
        OSError: The service does not answer, or refuses.
    """
    request = urllib.request.Request(url, method=method, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            content: bytes = answer.read()
    except HTTPException as error:
        raise OSError(f"the answer of {url} is cut off: {error!r}") from error
    return content.decode()
