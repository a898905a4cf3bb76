"""Up-calls to a program of the user's own by HTTP, which may answer in place of an application (ExoSphere 4).

The master tells the program of its cluster as it tells an application: by a POST of JSON for each up-call. The
program answers with down-calls; with `{"calls": null}` or status 204 it leaves the answer to the application, with
`{"calls": []}` it gives none. Where it does not answer in time, or wrongly, the application answers, and a warning
says why.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ebbtide.errors import InputError
from ebbtide.policies.exosphere.allocation import CoresAndMemory
from ebbtide.policies.exosphere.applications import (
    Application,
    CallAgain,
    Checkpoint,
    DownCall,
    PortfolioMttr,
    PortfolioRequest,
    ReleaseServers,
    RentedServer,
    Resize,
    VirtualCluster,
)

_LOGGER = logging.getLogger(__name__)

# Longer answers are refused.
_MOST_BYTES = 1 << 20
_MOST = 1e9
# Seconds of the market's clock for which a program that did not answer is not asked, and where that is kept.
_PAUSE_S, _UNTIL_S = 600.0, "until_s"
# A program that asks to be called again at once would be called for ever.
_LEAST_PAUSE_S = 10.0

_Amount = Annotated[float, Field(ge=0.0, le=_MOST, allow_inf_nan=False)]


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Portfolio(_Call):
    call: Literal["portfolio"]
    vcpus: _Amount
    memory_gib: _Amount = 0.0
    alpha: Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)] = 1.0
    least_mttr_s: _Amount = 0.0
    instance_types: tuple[str, ...] = ()
    price_threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0


class _Resize(_Call):
    call: Literal["resize"]
    vcpus: _Amount
    memory_gib: _Amount = 0.0


class _Release(_Call):
    call: Literal["release"]
    servers: Annotated[tuple[int, ...], Field(min_length=1)]


class _Checkpoint(_Call):
    call: Literal["checkpoint"]


class _Again(_Call):
    call: Literal["call-again"]
    time_s: Annotated[float, Field(allow_inf_nan=False)]


_Answer = Annotated[_Portfolio | _Resize | _Release | _Checkpoint | _Again, Field(discriminator="call")]


class _Answers(_Call):
    calls: Annotated[tuple[_Answer, ...], Field(max_length=1000)] | None


_ANSWERS = TypeAdapter(_Answers)


@dataclass(frozen=True)
class UpCalls(Application):
    """An application whose up-calls go to a program first.

    Attributes:
        application: Answers what the program leaves to it.
        url: Where the program listens, as http://127.0.0.1:8123/.
        job: Name of the job, which every call carries.
        most: The most that the program may ask for: what the job can use.
        known: Names of the instance types that there are.
        pause: Keeps until when the program is not asked, after it has not answered; of all jobs.
        timeout_s: Seconds that an answer is waited for.
    """

    application: Application
    url: str
    job: str
    most: CoresAndMemory
    known: frozenset[str] = frozenset()
    pause: dict[str, float] = field(default_factory=dict)
    timeout_s: float = 2.0

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        answered = self._asked(cluster, "begin", {})
        if answered is not None and not any(isinstance(call, PortfolioRequest) for call in answered):
            self._warn("begin needs a portfolio among its calls")
            answered = None
        return self.application.begin(cluster) if answered is None else answered

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:
        told = {
            "portfolio_s": mttr.portfolio_s,
            "by_market_s": {str(market): seconds for market, seconds in mttr.by_market_s.items()},
        }
        answered = self._asked(cluster, "portfolio-mttr", told)
        return self.application.on_portfolio_mttr(cluster, mttr) if answered is None else answered

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:
        answered = self._asked(cluster, "hard-revocation", {"servers_concerned": _ids(lost)})
        return self.application.on_hard_revocation(cluster, lost) if answered is None else answered

    def on_soft_revocation(self, cluster: VirtualCluster, at_risk: Sequence[RentedServer]) -> Iterable[DownCall]:
        answered = self._asked(cluster, "soft-revocation", {"servers_concerned": _ids(at_risk)})
        return self.application.on_soft_revocation(cluster, at_risk) if answered is None else answered

    def on_price_threshold(self, cluster: VirtualCluster, expensive: Sequence[RentedServer]) -> Iterable[DownCall]:
        answered = self._asked(cluster, "price-threshold", {"servers_concerned": _ids(expensive)})
        return self.application.on_price_threshold(cluster, expensive) if answered is None else answered

    def on_due(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        answered = self._asked(cluster, "due", {})
        return self.application.on_due(cluster) if answered is None else answered

    def _asked(self, cluster: VirtualCluster, call: str, details: dict[str, Any]) -> list[DownCall] | None:
        """Calls that the program answers with; None: it gives no valid answer, and the application answers."""
        if cluster.now_s < self.pause.get(_UNTIL_S, -math.inf):
            return None
        content = {"call": call, "job": self.job, **_cluster(cluster), **details}
        try:
            text = _answer(self.url, json.dumps(content).encode(), self.timeout_s)
            if not text.strip():
                return None
            if len(text) > _MOST_BYTES:
                raise ValueError(f"the answer has more than {_MOST_BYTES:,} bytes")
            calls = _ANSWERS.validate_json(text).calls
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            self._warn(f"its answer to {call} is not understood: {place}: {first['msg']}")
            return None
        except (OSError, HTTPException, ValueError) as error:
            # Each call to one that does not answer holds up the decisions about all jobs.
            self.pause[_UNTIL_S] = cluster.now_s + _PAUSE_S
            self._warn(f"no answer to {call}: {error}; it is asked again in {_PAUSE_S / 60:g} minutes")
            return None
        if calls is None:
            return None
        own = {server.lease_id for server in cluster.servers}
        if not all(self._fits(each) for each in calls if isinstance(each, _Portfolio | _Resize)):
            self._warn(
                f"its answer to {call} asks for more than the {self.most.vcpus:g} cores and "
                f"{self.most.memory_gib:g} GiB that the job can use"
            )
            return None
        named = (each.instance_types for each in calls if isinstance(each, _Portfolio))
        unknown = next((name for names in named for name in names if name not in self.known), None)
        if unknown is not None:
            self._warn(f"its answer to {call} names instance type {unknown!r:.60}, which no market here has")
            return None
        released = [number for each in calls if isinstance(each, _Release) for number in each.servers]
        if len(set(released)) < len(released):
            self._warn(f"its answer to {call} releases a server twice")
            return None
        foreign = [number for number in released if number not in own]
        if foreign:
            self._warn(f"its answer to {call} releases server {foreign[0]}, which is none of the cluster's")
            return None
        try:
            return [_down_call(each, cluster.now_s) for each in calls]
        except InputError as error:
            self._warn(f"its answer to {call} is not possible: {error.problem}")
            return None

    def _fits(self, asked: _Portfolio | _Resize) -> bool:
        return CoresAndMemory(asked.vcpus, asked.memory_gib).without(self.most).is_nothing

    def _warn(self, problem: str) -> None:
        _LOGGER.warning("up-calls of job %s to %s: %s; its application answers", self.job, self.url, problem)


def check_url(url: str) -> None:
    """Raise `InputError` for an address that no program can be called at."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise InputError(
            f"is {url!r:.80}; an address is needed as http://127.0.0.1:8123/, without a name or password",
            field="up_calls",
        )


class _Stays(urllib.request.HTTPRedirectHandler):
    """Goes to no other address than the one that was given."""

    def redirect_request(self, *_: Any) -> None:
        return None


# A program beside the controller is not reached by a proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stays())


def _answer(url: str, content: bytes, within_s: float) -> bytes:
    """Ask the program, and return its answer; empty for status 204.

    A thread asks, since a program that answers byte by byte would be waited for much longer.

    Raises:
        OSError: The program does not answer in time, or with an error.
    """
    found: list[bytes | Exception] = []

    def ask() -> None:
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method="POST")
        try:
            with _OPENER.open(request, timeout=within_s) as response:
                found.append(response.read(_MOST_BYTES + 1))
        except Exception as error:
            found.append(error)

    asking = threading.Thread(target=ask, name="up-call", daemon=True)
    asking.start()
    asking.join(within_s)
    if not found:
        raise TimeoutError(f"it takes longer than {within_s:g} s")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _cluster(cluster: VirtualCluster) -> dict[str, Any]:
    return {
        "now_s": cluster.now_s,
        "share_done": cluster.share_done,
        "wanted": {"vcpus": cluster.wanted.vcpus, "memory_gib": cluster.wanted.memory_gib},
        "servers": [
            {
                "server": server.lease_id,
                "market": str(server.market),
                "vcpus": server.resources.vcpus,
                "memory_gib": server.resources.memory_gib,
                "usd_per_hour": server.usd_per_hour,
                "bid_usd_per_hour": server.bid_usd_per_hour,
                "is_leaving": server.is_leaving,
            }
            for server in cluster.servers
        ],
    }


def _ids(servers: Sequence[RentedServer]) -> list[int]:
    return [server.lease_id for server in servers]


def _down_call(answer: _Answer, now_s: float) -> DownCall:
    match answer:
        case _Portfolio():
            return PortfolioRequest(
                CoresAndMemory(answer.vcpus, answer.memory_gib),
                answer.alpha,
                answer.least_mttr_s,
                answer.instance_types,
                answer.price_threshold,
            )
        case _Resize():
            return Resize(CoresAndMemory(answer.vcpus, answer.memory_gib))
        case _Release():
            return ReleaseServers(answer.servers)
        case _Again():
            # On a grid, so that calls that are asked for one after the other become one.
            ticks = math.ceil(max(answer.time_s, now_s + _LEAST_PAUSE_S) / _LEAST_PAUSE_S)
            return CallAgain(ticks * _LEAST_PAUSE_S)
        case _Checkpoint():
            return Checkpoint()
