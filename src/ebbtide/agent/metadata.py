"""Instance metadata of EC2 (IMDSv2) and of GCP: revocation notices, and advice to leave."""

from __future__ import annotations

import json
import math
import os
import time
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ebbtide.storage.metadata_values import google_url, google_value, metadata_answer

_EC2_URL = "http://169.254.169.254"

_TOKEN_S = 21_600


def default_url() -> str:
    """The address of EC2's metadata service, as AWS's own tools find it."""
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _EC2_URL


@dataclass(frozen=True)
class MachineNotice:
    """Notice of the machine's end, as instance metadata give it.

    Attributes:
        taken_at_s: Time at which the machine will be revoked, in seconds since 1970; None: there is no notice.
        rebalance: Whether moving is recommended, because a revocation has become more likely.
    """

    taken_at_s: float | None = None
    rebalance: bool = False


class NoticeReader(Protocol):
    """Reads what instance metadata say about the machine's end."""

    def notice(self) -> MachineNotice:
        """Return the notice that the metadata give now.

        Raises:
            OSError: The metadata service does not answer.
        """
        ...


def notice_reader(cloud: str, url: str, notice_s: float) -> NoticeReader:
    """The reader of a cloud's instance metadata.

    Args:
        cloud: Cloud of the metadata: `gcp`; any other has metadata like EC2's.
        url: Address of the service; empty: the cloud's own.
        notice_s: Seconds between a notice and the revocation, where the metadata do not say the time.
    """
    return GoogleMetadata(url, notice_s) if cloud == "gcp" else Metadata(url)


class Metadata:
    """Reads EC2's metadata service.

    Args:
        url: Address of the service; empty: that of `default_url`.
    """

    def __init__(self, url: str) -> None:
        self._url = (url or default_url()).rstrip("/")
        self._token: str | None = None

    def notice(self) -> MachineNotice:
        """Return the notice that the metadata service gives now.

        Raises:
            OSError: The service does not answer.
        """
        action = self._get("spot/instance-action")
        rebalance = self._get("events/recommendations/rebalance")
        taken_at_s = _epoch_s(json.loads(action)["time"]) if action else None
        return MachineNotice(taken_at_s, rebalance is not None)

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
        return metadata_answer(f"{self._url}/latest/{path}", headers, method)


class GoogleMetadata:
    """Reads GCP's metadata server, which tells that the machine is preempted, but not when it ends.

    The notice may have begun right after the last look that saw none, so its time is counted from there.

    Args:
        url: Address of the server; empty: that of `google_url`.
        notice_s: Seconds between the notice and the revocation.
        now: Gives the time in seconds since 1970.
    """

    def __init__(self, url: str, notice_s: float, now: Callable[[], float] = time.time) -> None:
        self._url = (url or google_url()).rstrip("/")
        self._notice_s, self._now = notice_s, now
        self._unnoticed_s = math.nan
        self._taken_at_s: float | None = None

    def notice(self) -> MachineNotice:
        """Return the notice that the server gives now, with the earliest time of the revocation.

        Raises:
            OSError: The server does not answer.
        """
        asked_s = self._now()
        if self._taken_at_s is None and google_value(self._url, "instance/preempted") == "TRUE":
            begins_s = asked_s if math.isnan(self._unnoticed_s) else self._unnoticed_s
            self._taken_at_s = begins_s + self._notice_s
        self._unnoticed_s = asked_s
        event = google_value(self._url, "instance/maintenance-event")
        return MachineNotice(self._taken_at_s, event == "TERMINATE_ON_HOST_MAINTENANCE")


def _epoch_s(said: str) -> float:
    # Python 3.10, which machines may have, does not read the Z.
    return datetime.fromisoformat(said.replace("Z", "+00:00")).timestamp()
