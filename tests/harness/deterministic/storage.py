"""Simulated object storage and journal, which fail, and lose, delay and damage data."""

from __future__ import annotations

import json
import marshal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.virtual_time import Process, VirtualRuntime, VirtualTime

from ebbtide.controller.journal.changes import NOTHING, Changes, StatePart, joined
from ebbtide.controller.journal.journal import Journal, Moment
from ebbtide.controller.journal.price_log import PricePoint
from ebbtide.controller.snapshots import RunSnapshot, RunSpending
from ebbtide.errors import JournalError, JournalWentBackError, MissingObjectError, StorageError
from ebbtide.storage.object_keys import checked_key

# Shares of requests, by fault.
_REFUSED, _NO_REPLY, _SLOW, _TORN, _LATE, _LOST, _TWICE = 0.05, 0.04, 0.015, 0.02, 0.05, 0.006, 0.02
_MOST_WRITTEN = 5_000
_DIES, _DIES_BEFORE_IT_TELLS, _ROTS, _CUT_OFF, _OVERTAKEN = 0.0015, 0.05, 0.02, 0.01, 0.004
_COPIED, _GOES_BACK = 0.02, 0.05
_LATENCY_S, _SLOW_S, _LATE_S = (0.002, 0.03), (1.0, 15.0), (0.1, 4.0)
# Seconds after which a request that seemed to have failed takes effect.
_OVERTAKEN_S = (0.1, 30.0)
# Seconds for which it lists what there was, and for which it is away; seconds until a request fails meanwhile.
_STALE_S, _AWAY_S, _HANGS_S = (30.0, 200.0), (30.0, 150.0), (0.05, 20.0)


@dataclass
class _Object:
    content: bytes
    visible_s: float
    version: str


@dataclass
class SimulatedStorage:
    """The true state of all objects.

    Attributes:
        time: The simulation's clock.
        faults: Decides what goes wrong.
        rotten: Keys of data that was damaged after it had been stored.
        on_manifest: Called with the key and content of each manifest that is stored.
        on_listed: Called with each listing: the process, the prefix and the keys.
        heartbeats: All heartbeats ever stored: time from which each is listed, key and content.
        stale_until_s: Time until which listings show what there was when they became stale, seconds since 1970.
        away_until_s: Time until which every request fails, at once or after a while, seconds since 1970.
    """

    time: VirtualTime
    faults: Faults
    rotten: set[str] = field(default_factory=set)
    on_manifest: Callable[[str, bytes], None] = lambda _key, _content: None
    on_listed: Callable[[Process, str, list[str]], None] = lambda _process, _prefix, _keys: None
    heartbeats: list[tuple[float, str, bytes]] = field(default_factory=list)
    stale_until_s: float = 0.0
    away_until_s: float = 0.0
    _puts: int = 0
    _overtaken: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _stale: dict[str, dict[str, str]] = field(default_factory=dict)
    _objects: dict[str, _Object] = field(default_factory=dict)
    _folders: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def put(self, key: str, content: bytes, visible_s: float) -> None:
        """Store an object that is visible from a time on."""
        self._puts += 1
        self._objects[key] = _Object(content, visible_s, str(self._puts))
        parts = key.split("/")
        for depth in range(1, len(parts)):
            self._folders["/".join(parts[:depth]) + "/"].add(key)
        if "/manifests/" in key:
            self.on_manifest(key, content)
        if "/alive/" in key:
            listed_s = max(visible_s, self.stale_until_s) if self.is_stale else visible_s
            self.heartbeats.append((listed_s, key, content))

    def take_effect_later(self, effect: Callable[[], None]) -> None:
        """Let a request that seemed to have failed take effect after some seconds, before one that asks then."""
        self._overtaken.append((self.time.now_s + self.faults.number("overtaken by", *_OVERTAKEN_S), effect))

    def settle(self) -> None:
        """Let the requests take effect whose time has come."""
        due = [each for each in self._overtaken if each[0] <= self.time.now_s]
        self._overtaken = [each for each in self._overtaken if each[0] > self.time.now_s]
        for _, effect in sorted(due, key=lambda each: each[0]):
            effect()

    def has(self, key: str) -> bool:
        """Return whether an object is stored, visible to readers or not."""
        return key in self._objects

    def seen(self, key: str) -> bytes | None:
        """Return an object's content as readers see it now; None: they see no object."""
        found = self._objects.get(key)
        return found.content if found is not None and found.visible_s <= self.time.now_s else None

    def keys(self, folder: str) -> list[str]:
        """Return the keys below a folder that readers see now."""
        now_s = self.time.now_s
        return sorted(key for key in self._folders.get(folder, ()) if self._objects[key].visible_s <= now_s)

    @property
    def is_stale(self) -> bool:
        """Tell whether listings show the keys of some minutes ago."""
        return self.time.now_s < self.stale_until_s

    def versions(self, folder: str) -> dict[str, str]:
        """Return the keys below a folder, with their versions, as a listing shows them: maybe as of minutes ago."""
        return self._stale.get(folder, {}) if self.is_stale else self._versions(folder)

    def _versions(self, folder: str) -> dict[str, str]:
        return {key: self._objects[key].version for key in self.keys(folder)}

    def grow_stale(self) -> None:
        """List for some minutes the keys of now: new ones are missing, and deleted ones stay."""
        if self.is_stale:
            return
        self._stale = {folder: self._versions(folder) for folder in list(self._folders)}
        now_s, self.stale_until_s = self.time.now_s, self.time.now_s + self.faults.number("stale for", *_STALE_S)
        self.heartbeats = [
            (max(seen_s, self.stale_until_s) if seen_s > now_s else seen_s, key, content)
            for seen_s, key, content in self.heartbeats
        ]

    def go_away(self) -> None:
        """Answer no request for some minutes."""
        self.away_until_s = self.time.now_s + self.faults.number("away for", *_AWAY_S)

    def delete(self, key: str) -> None:
        """Remove an object."""
        if self._objects.pop(key, None) is not None:
            parts = key.split("/")
            for depth in range(1, len(parts)):
                self._folders["/".join(parts[:depth]) + "/"].discard(key)


class StorageOf:
    """Storage as accessed by a process, an `ObjectStore`.

    Args:
        storage: The objects.
        process: The process.
        runtime: Runtime of the process.
    """

    def __init__(self, storage: SimulatedStorage, process: Process, runtime: VirtualRuntime) -> None:
        self._storage, self._process, self._runtime = storage, process, runtime
        self._who = process.name.split("-")[0]

    def put_once(self, key: str, content: bytes) -> bool:
        def late() -> None:
            if not self._storage.has(key):
                self._storage.put(key, content, self._storage.time.now_s)

        self._request("put", checked_key(key), late)
        if self._storage.has(key):
            return False
        is_message, faults = key.startswith("machines/"), self._storage.faults
        if is_message and self._strikes("torn", _TORN, key):
            content = content[: int(faults.number("torn at", 0.0, len(content)))]
        if is_message and self._strikes("lost", _LOST, key):
            return True
        visible_s = self._storage.time.now_s
        if self._strikes("late", _LATE, key):
            visible_s += faults.number("late by", *_LATE_S)
        self._storage.put(key, content, visible_s)
        if is_message and self._strikes("twice", _TWICE, key):
            folder, _, number = key.rpartition("/")
            again = f"{folder}/{int(number) + 1:08d}"
            if not self._storage.has(again):
                self._storage.put(again, content, visible_s)
        self._reply("put", key)
        return True

    def put_file(self, key: str, path: Path) -> None:
        content = path.read_bytes()
        self._request(
            "upload", checked_key(key), lambda: self._storage.put(key, content, self._storage.time.now_s)
        )
        if self._strikes("truncated", _TORN, key):
            content = content[: int(self._storage.faults.number("truncated at", 0.0, len(content)))]
        elif content and self._strikes("rots", _ROTS, key):
            content = bytes([content[0] ^ 1]) + content[1:]
            self._storage.rotten.add(key)
        self._storage.put(key, content, self._storage.time.now_s)
        self._reply("upload", key)

    def get_file(self, key: str, path: Path) -> None:
        path.write_bytes(self.get(key))

    def get(self, key: str) -> bytes:
        self._request("get", checked_key(key))
        content = self._storage.seen(key)
        if content is None:
            raise MissingObjectError(key)
        if content and self._strikes("answer cut off", _CUT_OFF, key):
            return content[: int(self._storage.faults.number("cut off at", 0.0, len(content)))]
        return content

    def has(self, key: str) -> bool:
        self._request("head", checked_key(key))
        return self._storage.seen(key) is not None

    def size_bytes(self, key: str) -> int:
        return len(self.get(key))

    def keys(self, prefix: str = "") -> Iterator[str]:
        return (key for key, _ in self.versions(prefix))

    def versions(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        self._request("list", prefix)
        found = self._storage.versions(prefix)
        self._storage.on_listed(self._process, prefix, list(found))
        return iter(found.items())

    def delete(self, key: str) -> None:
        self._request("delete", checked_key(key), lambda: self._storage.delete(key))
        self._storage.delete(key)
        self._reply("delete", key)

    def clear_unfinished(self, prefix: str, older_s: float) -> None:  # noqa: ARG002
        self._process.check()

    def _request(self, what: str, key: str, effect: Callable[[], None] | None = None) -> None:
        """Let a request travel while other tasks run; it may not arrive, or arrive after it seemed to have failed."""
        faults = self._storage.faults
        duration_s = faults.number("latency", *_LATENCY_S)
        if self._strikes("slow", _SLOW, key):
            duration_s = faults.number("slow by", *_SLOW_S)
        is_away = self._storage.time.now_s < self._storage.away_until_s and faults.is_active
        if is_away:
            duration_s = faults.number("hangs for", *_HANGS_S)
        self._runtime.sleep(duration_s)
        self._storage.settle()
        if is_away:
            raise StorageError(f"{key}: the service is away")
        if effect is not None and self._strikes(f"{what} comes late", _OVERTAKEN, key):
            self._storage.take_effect_later(effect)
            raise StorageError(f"{key}: timed out")
        if self._strikes(f"dies before {what}", _DIES, key):
            self._storage.time.kill(self._process)
        if self._strikes(f"refused {what}", _REFUSED, key):
            raise StorageError(f"{key}: the service is not available")

    def _reply(self, what: str, key: str) -> None:
        """Let the reply to a request that took effect travel; it may be lost."""
        if self._strikes(f"dies after {what}", _DIES, key):
            self._storage.time.kill(self._process)
        if self._strikes(f"no reply to {what}", _NO_REPLY, key):
            raise StorageError(f"{key}: the connection was closed")

    def _strikes(self, kind: str, share: float, key: str) -> bool:
        faults, now_s = self._storage.faults, self._storage.time.now_s
        return faults.strikes(f"{self._who}: {kind}", share, now_s, key)


@dataclass
class Disk:
    """The disk of a run's folder, with the contents of its journal.

    Attributes:
        states: States as JSON text, by name.
        moments: Events of the run.
        records: Records of the run, marshalled, by kind and number, in the order of writing.
        metrics: Value of each metric, by job id and step.
        prices: Each price in USD per hour, by market and time.
        full_until_s: Time until which nothing can be written, seconds since 1970.
        behind: Older copy to which the database may fail over; None: there is none.
        ahead: Contents lost by a failover, which come back unless a controller writes them again; None: none.
    """

    states: dict[str, str] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    records: dict[tuple[str, int], bytes] = field(default_factory=dict)
    metrics: dict[tuple[int, int], float] = field(default_factory=dict)
    prices: dict[tuple[str, float], float] = field(default_factory=dict)
    full_until_s: float = 0.0
    behind: Disk | None = None
    ahead: Disk | None = None

    def go_back(self) -> None:
        """Fail over to the older copy, which loses later writes."""
        assert self.behind is not None
        older, self.behind, self.ahead = self.behind, None, self.copy()
        self._become(older)

    def come_back(self) -> None:
        """Fail back to the lost contents, as after a repair, unless a controller has written since."""
        if self.ahead is not None:
            self._become(self.ahead)
            self.ahead = None

    def _become(self, other: Disk) -> None:
        for name in ("states", "moments", "records", "metrics", "prices"):
            setattr(self, name, getattr(other, name))

    def copy(self) -> Disk:
        """Return a copy of the contents, for another folder."""
        return Disk(
            dict(self.states), list(self.moments), dict(self.records), dict(self.metrics), dict(self.prices)
        )

    def run(self) -> RunSnapshot | None:
        """Return the run as last written; None: it never was."""
        records = [
            # JSON turns tuples into lists and keys into text, as a real journal would.
            StatePart(kind, number, json.loads(json.dumps(marshal.loads(content))))
            for (kind, number), content in self.records.items()
        ]
        return joined(records, ((job_id, step, value) for (job_id, step), value in self.metrics.items()))


class SimulatedJournal(Journal):
    """The journal of a run, as accessed by a controller, with atomic writes.

    Args:
        disk: Contents of the disk.
        process: The controller's process.
        time: The simulation's clock.
        faults: Decides what goes wrong.
        on_written: Called after changes of the run were written.
    """

    def __init__(
        self,
        disk: Disk,
        process: Process,
        time: VirtualTime,
        faults: Faults,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk, self._process, self._time, self._faults = disk, process, time, faults
        self._on_written = on_written
        disk.come_back()
        self._written_s, self._written = 0.0, 0

    def keep(
        self,
        states: Mapping[str, Any],
        moments: Sequence[Moment] = (),
        changes: Changes = NOTHING,
        prices: Sequence[PricePoint] = (),
    ) -> None:
        self._process.check()
        strikes, now_s = self._faults.strikes, self._time.now_s
        self._written = self._written + 1 if now_s == self._written_s else 0
        self._written_s = now_s
        if self._written > _MOST_WRITTEN:
            raise RuntimeError(f"the journal is written {self._written} times, and no time passes")
        if strikes("controller: dies before journal", 2 * _DIES, now_s):
            self._time.kill(self._process)
        if strikes("controller: disk fills", _DIES, now_s):
            self._disk.full_until_s = now_s + self._faults.number("disk full for", 5.0, 90.0)
        if now_s < self._disk.full_until_s and self._faults.is_active:
            raise JournalError("database or disk is full")
        if self._disk.behind is not None and strikes("controller: database goes back", _GOES_BACK, now_s):
            lost = len(self._disk.moments) - len(self._disk.behind.moments)
            self._disk.go_back()
            raise JournalWentBackError("the database failed over to an older copy", max(lost, 0))
        if strikes("controller: database has a copy", _COPIED, now_s):
            self._disk.behind = self._disk.copy()
        written = {name: json.dumps(content) for name, content in states.items()}
        self._disk.states.update(written)
        if changes.records:
            self._disk.ahead = None
        for record in changes.records:
            # A replaced record moves to the end of the order of writing.
            self._disk.records.pop((record.kind, record.number), None)
            self._disk.records[record.kind, record.number] = marshal.dumps(record.content)
        self._disk.prices.update({(market, time_s): usd for market, time_s, usd in prices})
        self._disk.metrics.update({(job_id, step): value for job_id, step, value in changes.metrics})
        if changes.records:
            self._on_written()
        self._disk.moments.extend(moments)
        # Undelivered events must be delivered after a resume. These moments are rare, so kill more often at them.
        tells = any(record.kind == "provider" and record.content["out"] for record in changes.records)
        if strikes("controller: dies after journal", 2 * _DIES, now_s) or (
            tells and strikes("controller: dies before it tells", _DIES_BEFORE_IT_TELLS, now_s)
        ):
            self._time.kill(self._process)

    def controlled(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self, name: str) -> Any:
        found = self._disk.states.get(name)
        return None if found is None else json.loads(found)

    def run(self, *, decisions: bool = True, metrics: bool = True) -> RunSnapshot | None:  # noqa: ARG002
        return self._disk.run()

    def figures(self) -> RunSpending | None:
        found: RunSpending | None = self.state("figures")
        return found

    def moments(self) -> list[Moment]:
        return list(self._disk.moments)
