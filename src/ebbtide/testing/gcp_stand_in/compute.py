"""The part of Compute Engine's REST API that Ebbtide uses, with instances and operations in memory."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ebbtide.market.markets import Market
from ebbtide.testing.stand_in.machines import StandInInstance

_PATH = re.compile(r"/compute/v1/projects/(?P<project>[^/]+)/(?P<rest>.+)")
_EVERY = "aggregated/"
_ZONE = re.compile(r"zones/(?P<zone>[a-z0-9-]+)/(?P<kind>instances|operations)(/(?P<name>[a-z0-9-]+))?")
_EQUALS = re.compile(r"(?P<field>[\w.-]+) (=|eq) (?P<value>\S+)")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PAGE = 50

# Reasons with which a request for an instance is refused at once, and the status of the answer.
_AT_ONCE = {
    "quotaExceeded": 403,
    "rateLimitExceeded": 403,
    "forbidden": 403,
    "invalid": 400,
    "notFound": 404,
    "backendError": 503,
}


@dataclass
class GcpRefusals:
    """Requests for the stand-in to refuse.

    Attributes:
        launches: Codes for the next requests for instances, one each; empty text: it succeeds. Reasons such as
            `quotaExceeded` are answered at once, codes such as `ZONE_RESOURCE_POOL_EXHAUSTED` by the operation.
        empty_zones: Zones in which every request fails for lack of capacity.
        silent_zones: Zones that lists report as unreachable.
        ends: Reason for which deletions are refused; empty: they succeed.
        reads: Reason for which lists are refused; empty: they are answered.
        sent: Codes that were sent, in order.
    """

    launches: deque[str] = field(default_factory=deque)
    empty_zones: set[str] = field(default_factory=set)
    silent_zones: set[str] = field(default_factory=set)
    ends: str = ""
    reads: str = ""
    sent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reply:
    """An answer of the API.

    Attributes:
        status: Status code of the answer.
        content: Its content as plain values.
    """

    status: int
    content: dict[str, Any]


class ComputeApi:
    """Compute Engine in memory.

    Args:
        project: Id of the only project.

    Attributes:
        refusals: Requests to refuse.
        requested: Body of each request for an instance, in order.
        boots_s: Real seconds for which an instance is staging before it runs.
        stops_s: Real seconds for which an instance is stopping after its deletion was requested.
    """

    def __init__(self, project: str) -> None:
        self.project, self.refusals = project, GcpRefusals()
        self.requested: list[Mapping[str, Any]] = []
        self.boots_s, self.stops_s = 0.2, 0.3
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        # Instances by zone and name; answers to requests for instances by request id.
        self._instances: dict[tuple[str, str], dict[str, Any]] = {}
        self._operations: list[dict[str, Any]] = []
        self._answered: dict[str, dict[str, Any]] = {}
        # Pending changes: the time of each, and the function that makes it.
        self._due: list[tuple[float, Callable[[], None]]] = []

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Reply:
        """Answer one request.

        Args:
            method: Method of the request.
            path: Its path, such as `/compute/v1/projects/p/zones/z/instances`.
            query: Its parameters, by name.
            body: Its content as plain values.
        """
        found = _PATH.fullmatch(path)
        if found is None or found["project"] != self.project:
            return _refused(404, "notFound", f"The resource {path} was not found")
        with self._lock:
            self._go_on()
            if self.refusals.reads and method == "GET":
                return _refused(403, self.refusals.reads, "as told to")
            if found["rest"].startswith(_EVERY) and method == "GET":
                return self._all(found["rest"].removeprefix(_EVERY), query)
            place = _ZONE.fullmatch(found["rest"])
            if place is None:
                return _refused(404, "notFound", f"The resource {path} was not found")
            zone, kind, name = place["zone"], place["kind"], place["name"]
            if kind == "operations" and method == "GET" and name is None:
                listed = [one for one in self._operations if one["zone"] == zone and _matches(one, query)]
                return Reply(200, _page(listed, query, "items"))
            if kind == "instances" and method == "POST" and name is None:
                return self._insert(zone, query, body)
            if kind == "instances" and method == "DELETE" and name is not None:
                return self._delete(zone, name)
        return _refused(404, "notFound", f"The resource {path} was not found")

    # Interface for the stand-in's machines.

    def running(self) -> Sequence[StandInInstance]:
        """Return the running instances."""
        with self._lock:
            self._go_on()
            return [_rented(one) for one in self._instances.values() if one["status"] == "RUNNING"]

    def end(self, rented: StandInInstance, taken: bool, ended_s: float) -> None:
        """Preempt an instance, which deletes it; or stop it after it shut down, which keeps it."""
        instance = rented.instance
        with self._lock:
            zone, name = instance["zone"], instance["name"]
            if taken:
                self._operate("compute.instances.preempted", zone, name, ended_s, "Instance was preempted.")
                self._instances.pop((zone, name), None)
            else:
                self._operate("compute.instances.guestTerminate", zone, name, ended_s)
                instance["status"], instance["lastStopTimestamp"] = "TERMINATED", _time(ended_s)

    def environment(self, metadata_url: str) -> Mapping[str, str]:
        """Return the variable by which Google's tools find the metadata."""
        return {"GCE_METADATA_HOST": metadata_url.removeprefix("http://")}

    # Handlers of requests.

    def _all(self, kind: str, query: Mapping[str, str]) -> Reply:
        every = self._operations if kind == "operations" else list(self._instances.values())
        listed = [one for one in every if one["zone"] not in self.refusals.silent_zones and _matches(one, query)]
        page = _page(listed, query, kind)
        items: dict[str, Any] = {}
        for one in page.pop(kind):
            items.setdefault(f"zones/{one['zone']}", {}).setdefault(kind, []).append(one)
        for zone in self.refusals.silent_zones:
            items[f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE", "message": "as told to"}}
        return Reply(200, page | {"items": items})

    def _insert(self, zone: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Reply:
        request_id = query.get("requestId", "")
        if request_id in self._answered:
            return Reply(200, self._answered[request_id])
        code = self.refusals.launches.popleft() if self.refusals.launches else ""
        if not code and zone in self.refusals.empty_zones:
            code = "ZONE_RESOURCE_POOL_EXHAUSTED"
        if code:
            self.refusals.sent.append(code)
        if code in _AT_ONCE:
            return _refused(_AT_ONCE[code], code, "as told to")
        name = str(body.get("name", ""))
        if not _NAME.fullmatch(name):
            return _refused(400, "invalid", f"Invalid value for field 'resource.name': '{name}'")
        if (zone, name) in self._instances:
            return _refused(409, "alreadyExists", f"The resource '{name}' already exists")
        self.requested.append(dict(body))
        now_s = time.time()
        operation = self._operate("insert", zone, name, now_s)
        if code:
            operation["error"] = {"errors": [{"code": code, "message": "as told to"}]}
        else:
            number = next(self._numbers)
            self._instances[zone, name] = {
                **body,
                "id": str(number),
                "zone": zone,
                "status": "STAGING",
                "creationTimestamp": _time(now_s),
                "networkInterfaces": [{"networkIP": f"127.3.{number // 250}.{number % 250 + 1}"}],
            }
            self._due.append((now_s + self.boots_s, lambda: self._boot(zone, name)))
        self._answered[request_id] = operation
        return Reply(200, operation)

    def _delete(self, zone: str, name: str) -> Reply:
        if self.refusals.ends:
            self.refusals.sent.append(self.refusals.ends)
            return _refused(403, self.refusals.ends, "as told to")
        if (zone, name) not in self._instances:
            return _refused(404, "notFound", f"The resource '{name}' was not found")
        if self._instances[zone, name]["status"] == "STOPPING":
            return _refused(400, "resourceNotReady", f"The resource '{name}' is not ready")
        self._instances[zone, name]["status"] = "STOPPING"
        now_s = time.time()
        operation = self._operate("delete", zone, name, now_s)
        operation["status"] = "RUNNING"
        del operation["endTime"]
        self._due.append((now_s + self.stops_s, lambda: self._remove(zone, name, operation)))
        return Reply(200, dict(operation))

    def _go_on(self) -> None:
        """Make the pending changes that are due."""
        now_s = time.time()
        due = [do for at_s, do in self._due if at_s <= now_s]
        self._due = [one for one in self._due if one[0] > now_s]
        for do in due:
            do()

    def _boot(self, zone: str, name: str) -> None:
        instance = self._instances.get((zone, name))
        if instance is not None and instance["status"] == "STAGING":
            instance |= {"status": "RUNNING", "lastStartTimestamp": _time(time.time())}

    def _remove(self, zone: str, name: str, operation: dict[str, Any]) -> None:
        self._instances.pop((zone, name), None)
        operation |= {"status": "DONE", "endTime": _time(time.time())}

    def _operate(self, kind: str, zone: str, name: str, at_s: float, message: str = "") -> dict[str, Any]:
        operation = {
            "kind": "compute#operation",
            "id": str(next(self._numbers)),
            "operationType": kind,
            "status": "DONE",
            "zone": zone,
            "targetLink": f"https://www.googleapis.com/compute/v1/projects/{self.project}/zones/{zone}/instances/{name}",
            "insertTime": _time(at_s),
            "startTime": _time(at_s),
            "endTime": _time(at_s),
        }
        if message:
            operation["statusMessage"] = message
        self._operations.append(operation)
        return operation


def _rented(instance: Mapping[str, Any]) -> StandInInstance:
    items = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    zone, began_s = instance["zone"], datetime.fromisoformat(instance["lastStartTimestamp"]).timestamp()
    machine_type = instance["machineType"].rpartition("/")[2]
    market = Market("gcp", zone.rpartition("-")[0], zone, machine_type)
    is_spot = instance["scheduling"]["provisioningModel"] == "SPOT"
    # The prefix tells that the id is GCP's.
    return StandInInstance(f"gcp-{instance['id']}", market, is_spot, began_s, items["startup-script"], instance)


def _matches(one: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    """Return whether an object matches a filter's condition: by equality, or with `eq` by regular expression."""
    if "filter" not in query:
        return True
    asked = _EQUALS.fullmatch(query["filter"])
    if asked is None:
        return False
    value: Any = one
    for part in asked["field"].split("."):
        value = value.get(part, {}) if isinstance(value, Mapping) else {}
    is_pattern = " eq " in query["filter"]
    return bool(re.fullmatch(asked["value"], str(value))) if is_pattern else str(value) == asked["value"]


def _page(listed: Sequence[dict[str, Any]], query: Mapping[str, str], name: str) -> dict[str, Any]:
    first = int(query.get("pageToken", 0))
    kind = "compute#operationList" if name == "items" else f"compute#{name.removesuffix('s')}AggregatedList"
    page: dict[str, Any] = {"kind": kind, name: [dict(one) for one in listed[first : first + _PAGE]]}
    if first + _PAGE < len(listed):
        page["nextPageToken"] = str(first + _PAGE)
    return page


def _refused(status: int, reason: str, message: str) -> Reply:
    error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    return Reply(status, {"error": error})


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
