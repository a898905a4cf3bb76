"""Instance metadata of EC2 (IMDSv2): revocation notices and rebalance recommendations."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import datetime

_EC2_URL = "http://169.254.169.254"

_TOKEN_S = 21_600
_TIMEOUT_S = 2.0


def default_url() -> str:
    """The address of the metadata service, as AWS's own tools find it."""
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _EC2_URL


@dataclass(frozen=True)
class Notice:
    """What the metadata say about the machine's end.

    Attributes:
        taken_at_s: When the machine will be revoked, in seconds since 1970; None: there is no notice.
        rebalance: Whether moving is recommended, because a revocation has become more likely.
    """

    taken_at_s: float | None = None
    rebalance: bool = False


class Metadata:
    """Reads a metadata service.

    Args:
        url: Address of the service; empty: that of `default_url`.
    """

    def __init__(self, url: str) -> None:
        self._url = (url or default_url()).rstrip("/")
        self._token: str | None = None

    def notice(self) -> Notice:
        """What the service says now.

        Raises:
            OSError: The service does not answer.
        """
        action = self._get("spot/instance-action")
        rebalance = self._get("events/recommendations/rebalance")
        taken_at_s = _epoch_s(json.loads(action)["time"]) if action else None
        return Notice(taken_at_s, rebalance is not None)

    def _get(self, path: str) -> str | None:
        """Content of a metadata path; None: there is no such path now."""
        for _ in range(2):
            if self._token is None:
                asked = self._request("PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)})
                self._token = asked
            try:
                return self._request("GET", f"meta-data/{path}", {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401:
                    raise
                self._token = None  # it has expired
        raise OSError("instance metadata refuse our token")

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(f"{self._url}/latest/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            content: bytes = answer.read()
        return content.decode()


def _epoch_s(time: str) -> float:
    # Python 3.10, which machines may have, does not read the Z.
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
