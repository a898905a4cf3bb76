"""The part of SkyPilot's API server that Ebbtide uses, over real HTTP, with clusters in memory."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import yaml

from ebbtide.market.markets import Market
from ebbtide.testing.stand_in.machines import StandInInstance
from ebbtide.testing.stand_in.server import LoopbackServer, Start, sent

_STATUS = {
    200: "200 OK",
    401: "401 Unauthorized",
    404: "404 Not Found",
    500: "500 Internal Server Error",
    503: "503 Service Unavailable",
}
_DONE = ("SUCCEEDED", "FAILED", "CANCELLED")
_PICKLED = "bm90IHRvIGJlIHJlYWQ="


@dataclass
class SkyRefusals:
    """Requests for the stand-in to refuse.

    Attributes:
        launches: Kinds of errors for the next launches, one each, such as `ResourcesUnavailableError`; empty text:
            the launch succeeds.
        downs: Kind of error that prevents clusters from being taken down; empty: they are taken down.
        token: The token that requests must have; empty: none.
        is_silent: Whether the server answers every request with 503.
        sent: Kinds of errors of launches that were sent, in order.
    """

    launches: deque[str] = field(default_factory=deque)
    downs: str = ""
    token: str = ""
    is_silent: bool = False
    sent: list[str] = field(default_factory=list)


@dataclass
class _Cluster:
    name: str
    resources: Mapping[str, Any]
    script: str
    launched_s: float
    status: str = "INIT"
    ever_up: bool = False


class SkyPilotApi:
    """Serves the API until it is closed.

    Attributes:
        url: Address of the server.
        refusals: Requests to refuse.
        asked: Path and body of each request that was queued, in order.
        boots_s: Real seconds from a launch until its cluster is up.
        ends_s: Real seconds from a request to take a cluster down until it is gone.
        launched_at: Listed launch time of every cluster; `...`: the real one.
    """

    def __init__(self) -> None:
        self.refusals = SkyRefusals()
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.boots_s, self.ends_s = 0.3, 0.2
        self.launched_at: object = ...
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._clusters: dict[str, _Cluster] = {}
        self._requests: dict[str, dict[str, Any]] = {}
        # Requests under way: the time at which each is done, and its id.
        self._due: list[tuple[float, str]] = []
        self._server = LoopbackServer(self._answer)
        self.url = self._server.url

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def names(self) -> list[str]:
        """Return the names of all clusters."""
        with self._lock:
            self._go_on()
            return list(self._clusters)

    def show(self, name: str, status: str) -> None:
        """List a cluster with another status, such as `STOPPED`."""
        with self._lock:
            self._clusters[name].status = status

    def take_away(self, name: str) -> None:
        """Remove a cluster, as the server does after a revocation when it next refreshes from the cloud."""
        with self._lock:
            del self._clusters[name]

    # Interface for the stand-in's machines.

    def running(self) -> Sequence[StandInInstance]:
        """Return the clusters that are up."""
        with self._lock:
            self._go_on()
            return [_rented(one) for one in self._clusters.values() if one.status == "UP"]

    def end(self, rented: StandInInstance, taken: bool, ended_s: float) -> None:
        """Remove a cluster whose machine was revoked or has shut down."""
        del taken, ended_s
        with self._lock:
            self._clusters.pop(rented.id, None)

    def environment(self, metadata_url: str) -> Mapping[str, str]:
        """Return the variables by which AWS's and Google's tools find the metadata."""
        host = metadata_url.removeprefix("http://")
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata_url, "GCE_METADATA_HOST": host}

    # The API.

    def _answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        query = parse_qs(environ.get("QUERY_STRING", ""))
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._lock:
            self._go_on()
            if self.refusals.is_silent:
                return _sent(start, 503, {"detail": "Server is shutting down, please try again later."})
            if self.refusals.token and environ.get("HTTP_AUTHORIZATION") != f"Bearer {self.refusals.token}":
                return _sent(start, 401, {"detail": "Authentication required"})
            if environ["REQUEST_METHOD"] == "POST":
                request_id = self._queue(path, json.loads(body))
                return _sent(start, 200, None, [("X-Skypilot-Request-ID", request_id)])
            match path:
                case "/api/health":
                    return _sent(start, 200, {"status": "healthy", "api_version": "62", "version": "stand-in"})
                case "/api/get":
                    return self._got(start, query["request_id"][0])
                case "/api/status":
                    return _sent(start, 200, self._listed(query))
        return _sent(start, 404, {"detail": "Not Found"})

    def _got(self, start: Start, request_id: str) -> Iterable[bytes]:
        kept = self._requests.get(request_id)
        if kept is None:
            return _sent(start, 404, {"detail": f"Request {request_id!r} not found"})
        if kept["error"] != "null":
            return _sent(start, 500, {"detail": kept})
        return _sent(start, 200, kept)

    def _listed(self, query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Return requests, the newest first, without their results and errors."""
        found = list(reversed(self._requests.values()))
        if "request_ids" in query:
            found = [one for one in found if one["request_id"] in query["request_ids"]]
        elif query.get("all_status") != ["true"]:
            found = [one for one in found if one["status"] not in _DONE]
        if "cluster_name" in query:
            found = [one for one in found if one["cluster_name"] in query["cluster_name"]]
        return [one | {"return_value": "null", "error": "null"} for one in found]

    def _queue(self, path: str, body: Mapping[str, Any]) -> str:
        request_id = f"00000000-0000-4000-8000-{next(self._numbers):012d}"
        what, name = path.removeprefix("/").replace("/", "_"), body.get("cluster_name")
        now_s = time.time()
        self.asked.append((path, body))
        self._requests[request_id] = {
            "request_id": request_id,
            "name": f"sky.{what}",
            "entrypoint": "",
            "request_body": "",
            "status": "RUNNING",
            "created_at": now_s,
            "user_id": "stand-in",
            "return_value": "null",
            "error": "null",
            "pid": 1,
            "schedule_type": "long" if what == "launch" else "short",
            "cluster_name": name,
            "finished_at": None,
        }
        match path:
            case "/launch":
                self._launch(request_id, str(name), yaml.safe_load(body["task"]))
            case "/down":
                self._down(request_id, str(name))
            case "/status":
                shown = [_shown(one) for one in self._clusters.values()]
                told = {} if self.launched_at is ... else {"launched_at": self.launched_at}
                self._done(request_id, [one | told for one in shown])
            case "/api/cancel":
                for one in body["request_ids"]:
                    if self._requests[one]["status"] not in _DONE:
                        self._requests[one]["status"] = "CANCELLED"
                self._done(request_id, body["request_ids"])
        return request_id

    def _launch(self, request_id: str, name: str, task: Mapping[str, Any]) -> None:
        kind = self.refusals.launches.popleft() if self.refusals.launches else ""
        if kind:
            self.refusals.sent.append(kind)
            self._failed(request_id, kind, "Failed to provision \x1b[1mall possible\x1b[0m\nlaunchable resources.")
            return
        self._clusters.setdefault(name, _Cluster(name, task["resources"], task["run"], time.time()))
        self._due.append((time.time() + self.boots_s, request_id))

    def _down(self, request_id: str, name: str) -> None:
        if name not in self._clusters:
            self._failed(request_id, "ClusterDoesNotExist", f"Cluster {name!r} does not exist.")
        elif self.refusals.downs:
            self._failed(request_id, self.refusals.downs, "The cloud does not take it down.")
        else:
            self._due.append((time.time() + self.ends_s, request_id))

    def _go_on(self) -> None:
        """Finish the requests that are due."""
        now_s = time.time()
        due = [request_id for at_s, request_id in self._due if at_s <= now_s]
        self._due = [(at_s, request_id) for at_s, request_id in self._due if at_s > now_s]
        for request_id in due:
            kept = self._requests[request_id]
            cluster = self._clusters.get(str(kept["cluster_name"]))
            if kept["status"] == "CANCELLED" or cluster is None:
                continue
            if kept["name"] == "sky.launch":
                cluster.status, cluster.ever_up = "UP", True
                self._done(request_id, {"job_id": 1, "handle": _PICKLED})
            else:
                del self._clusters[cluster.name]
                self._done(request_id, None)

    def _done(self, request_id: str, value: Any) -> None:
        kept = self._requests[request_id]
        kept.update(status="SUCCEEDED", return_value=json.dumps(value), finished_at=time.time())

    def _failed(self, request_id: str, kind: str, message: str) -> None:
        error = json.dumps({"object": _PICKLED, "type": kind, "message": message})
        self._requests[request_id].update(status="FAILED", error=error, finished_at=time.time())


def _shown(cluster: _Cluster) -> dict[str, Any]:
    """Return a cluster as `/status` lists it, without most of its fields."""
    return {
        "name": cluster.name,
        "launched_at": int(cluster.launched_s),
        "status": cluster.status,
        "autostop": 5,
        "to_down": True,
        "cluster_ever_up": cluster.ever_up,
        "labels": dict(cluster.resources.get("labels", {})),
        "handle": _PICKLED,
        "nodes": 1,
    }


def _rented(cluster: _Cluster) -> StandInInstance:
    cloud, region, *zone = str(cluster.resources["infra"]).split("/")
    market = Market(cloud, region, zone[0] if zone else region, str(cluster.resources["instance_type"]))
    is_spot = bool(cluster.resources["use_spot"])
    return StandInInstance(cluster.name, market, is_spot, float(int(cluster.launched_s)), cluster.script, cluster)


def _sent(start: Start, status: int, content: Any, headers: Sequence[tuple[str, str]] = ()) -> Iterable[bytes]:
    def with_headers(line: str, given: Sequence[tuple[str, str]], *rest: Any) -> Any:
        return start(line, [*given, *headers], *rest)

    return sent(with_headers, _STATUS[status], json.dumps(content), "application/json")
