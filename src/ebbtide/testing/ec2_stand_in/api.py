"""moto's server over real HTTP, for a real boto3, with given prices and injected refusals."""

from __future__ import annotations

import io
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import numpy as np

from ebbtide.base.utc import iso
from ebbtide.market.markets import LINUX, Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.testing.ec2_stand_in.fault_injection import Experiments
from ebbtide.testing.ec2_stand_in.instances import LAUNCHING, instances
from ebbtide.testing.stand_in.server import LoopbackServer, moto_application, sent

_KEY = re.compile(r"Credential=([^/]+)/\d+/([a-z0-9-]+)/ec2/")
_FIS_KEY = re.compile(r"Credential=([^/]+)/\d+/([a-z0-9-]+)/fis/")
_S3_KEY = re.compile(r"Credential=([^/]+)/\d+/[a-z0-9-]+/s3/")
_STATUS = {
    "InsufficientInstanceCapacity": "500 Internal Server Error",
    "RequestLimitExceeded": "503 Service Unavailable",
}


@dataclass
class RefusedRequests:
    """Requests for the stand-in to refuse.

    Attributes:
        launches: Error codes for the next launches, one each; empty text: the launch succeeds.
        expired: Access keys that have expired.
        ends: Error code for terminations of machines; empty: they succeed.
        sent: Error codes that were sent, in order.
    """

    launches: deque[str] = field(default_factory=deque)
    expired: set[str] = field(default_factory=set)
    ends: str = ""
    sent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Moved:
    """An object that was written to S3, or read from it.

    Attributes:
        access_key: Access key of the client; a machine's ends in its instance id.
        is_upload: Whether it was written.
        path: Bucket and key of the object.
        size_bytes: Its size in bytes.
    """

    access_key: str
    is_upload: bool
    path: str
    size_bytes: int


class StandInApi:
    """Serves EC2 and S3 until it is closed.

    Attributes:
        refusals: Requests to refuse.
        prices: Price history that EC2 reports.
        copied: Parameters of each request to copy an image, by the API's names.
        moved: Objects that were written or read whole, in order; multipart uploads are left out.
        experiments: Experiments of the Fault Injection Service.
        interrupted: Called with the id of an instance that an experiment interrupts.

    Args:
        prices: Price history that EC2 reports at first.

    Raises:
        InputError: moto is not installed.
    """

    def __init__(self, prices: PriceHistory) -> None:
        self.refusals = RefusedRequests()
        self.prices = prices
        self.copied: list[dict[str, str]] = []
        self.moved: list[Moved] = []
        self.experiments = Experiments()
        self.interrupted: Callable[[str], None] = lambda _instance_id: None
        self._sizes: dict[str, int] = {}
        self._app = moto_application()
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}
        self._server = LoopbackServer(self._answer)
        self.url = self._server.url

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def change_price(self, market: Market, usd_per_hour: float) -> None:
        """Change a market's price, USD per hour, from the current second on."""
        now_s = math.floor(time.time())
        before = self.prices[market]
        changed = PriceSeries(np.append(before.times_s, now_s), np.append(before.prices, usd_per_hour))
        series = {**dict(self.prices.items()), market: changed}
        self.prices = PriceHistory(series, start_s=self.prices.start_s, end_s=max(self.prices.end_s, now_s + 1.0))

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if _FIS_KEY.search(environ.get("HTTP_AUTHORIZATION", "")):
            return self.experiments.answer(environ, start, self.interrupted)
        signed = _KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
        if signed is None:
            self._note_moved(environ)
            return self._passed(environ, start)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        action = asked.get("Action")
        code = self._refusal(signed.group(1), action)
        if code:
            return sent(start, _STATUS.get(code, "400 Bad Request"), _error(code))
        if action == "DescribeSpotPriceHistory":
            return sent(start, "200 OK", self._history(signed.group(2), asked))
        if action == "CopyImage":
            self.copied.append(asked)
        if action == "RunInstances":
            with LAUNCHING:
                return self._passed(environ, start)
        if action == "DescribeInstances":
            self._give_addresses()
        return self._passed(environ, start)

    def _note_moved(self, environ: dict[str, Any]) -> None:
        signed, method = _S3_KEY.search(environ.get("HTTP_AUTHORIZATION", "")), environ["REQUEST_METHOD"]
        path = environ["PATH_INFO"].lstrip("/")
        is_object = "/" in path and not environ.get("QUERY_STRING")
        if signed is None or not is_object or method not in ("GET", "PUT"):
            return
        with self._lock:
            if method == "PUT":
                # A chunked body is longer than the object.
                whole = environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH") or environ.get("CONTENT_LENGTH") or 0
                self._sizes[path] = int(whole)
            self.moved.append(Moved(signed.group(1), method == "PUT", path, self._sizes.get(path, 0)))

    def _passed(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        return self._app(environ, start)

    def _give_addresses(self) -> None:
        """Give each instance a loopback address of its own, at which other machines' programs reach it."""
        with self._lock:
            for instance in instances():
                if instance.id not in self._addresses:
                    number = len(self._addresses) + 1
                    self._addresses[instance.id] = f"127.2.{number // 250}.{number % 250 + 1}"
                instance.nics[0].private_ip_address = self._addresses[instance.id]

    def _refusal(self, key: str, action: str | None) -> str:
        refusals = self.refusals
        with self._lock:
            code = "RequestExpired" if key in refusals.expired else ""
            if not code and action == "RunInstances" and refusals.launches:
                code = refusals.launches.popleft()
            if not code and action == "TerminateInstances":
                code = refusals.ends
            if code:
                refusals.sent.append(code)
            return code

    def _history(self, region: str, asked: dict[str, str]) -> str:
        """Return the price history as XML, on one page."""
        types = {value for name, value in asked.items() if name.startswith("InstanceType")}
        items = [
            f"<item><instanceType>{market.instance_type}</instanceType><productDescription>{LINUX}</productDescription>"
            f"<spotPrice>{usd:.6f}</spotPrice><timestamp>{iso(time_s)}</timestamp>"
            f"<availabilityZone>{market.zone}</availabilityZone></item>"
            for market, series in self.prices.items()
            if market.region == region and (not types or market.instance_type in types)
            for time_s, usd in zip(series.times_s, series.prices, strict=True)
        ]
        return (
            '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<requestId>stand-in</requestId><spotPriceHistorySet>{''.join(items)}</spotPriceHistorySet>"
            "</DescribeSpotPriceHistoryResponse>"
        )


def _error(code: str) -> str:
    return (
        f"<Response><Errors><Error><Code>{escape(code)}</Code><Message>as told to</Message></Error></Errors>"
        "<RequestID>stand-in</RequestID></Response>"
    )
