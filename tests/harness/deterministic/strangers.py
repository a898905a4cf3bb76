"""Stray objects in a run's storage, left by others with write access or by file systems."""

from __future__ import annotations

import json

from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.storage import SimulatedStorage

_NAMES = ("README", "._00000001", "00000001.tmp", ".nfs0001", "00000001x")


def write_stray(
    storage: SimulatedStorage, faults: Faults, machines: list[str], trials: list[str], steps: int
) -> str:
    """Leave one foreign object in a run's storage; returns its key.

    Args:
        storage: The storage.
        faults: Decides the object and its key.
        machines: Ids of machines whose messages may be forged.
        trials: Ids of the run's trials.
        steps: Steps of each trial.
    """
    kind = int(faults.number("stray kind", 0, 4))
    trial = trials[int(faults.number("stray trial", 0, len(trials)))]
    now_s = storage.time.now_s
    if kind == 0 or not machines:
        folder = ("manifests", "writers", "aside")[int(faults.number("stray folder", 0, 3))]
        key = f"trials/{trial}/{folder}/{_NAMES[int(faults.number('stray name', 0, len(_NAMES)))]}"
        content = b"not ours"
    elif kind == 1:
        numbers = sorted(
            key for key in storage.keys(f"trials/{trial}/manifests/") if key.rpartition("/")[2].isdecimal()
        )
        if not numbers:
            return ""
        # An older manifest under the number of a newer one.
        key = f"trials/{trial}/manifests/{int(numbers[-1][-8:]) + 1:08d}"
        content = storage.seen(numbers[0]) or b""
    else:
        machine = machines[int(faults.number("stray machine", 0, len(machines)))]
        channel = f"machines/{machine}/{'reports' if faults.number('stray channel', 0, 1) < 0.7 else 'orders'}"
        last = max((int(key[-8:]) for key in storage.keys(f"{channel}/")), default=0)
        key = f"{channel}/{last + 1:08d}"
        content = _forged(trial, steps, faults)
    if not storage.has(key):
        storage.put(key, content, now_s)
    return key


def write_heartbeat(storage: SimulatedStorage, faults: Faults, run: str, machines: list[str]) -> str:
    """Leave a forged heartbeat in a run's storage, which might keep a machine alive; returns its key.

    Args:
        storage: The storage.
        faults: Decides the heartbeat and its number.
        run: Id of the run.
        machines: Ids of its machines.
    """
    folder = f"runs/{run}/alive"
    there = [key for key in storage.keys(f"{folder}/") if key.rpartition("/")[2].isdecimal()]
    newest = max((int(key.rpartition("/")[2]) for key in there), default=0)
    later = (1, 2, 7, 1_000)[int(faults.number("forged later", 0, 4))]
    key = f"{folder}/{min(newest + later, 9_999_999_999):010d}"
    alive = dict.fromkeys(("", *machines), "0" * 32)
    # Or else a genuine heartbeat under another number.
    content = json.dumps({"alive": alive}).encode()
    if there and faults.number("forged heartbeat", 0.0, 1.0) < 0.5:
        content = storage.seen(there[-1]) or content
    if not storage.has(key):
        storage.put(key, content, storage.time.now_s)
    return key


def _forged(trial: str, steps: int, faults: Faults) -> bytes:
    """Make a forged message that a training has finished, or junk."""
    kind = int(faults.number("forged kind", 0, 4))
    if kind == 0:
        return b"[" * 5_000
    if kind == 1:
        return b'[{"kind": "log", "trial": "../../../tmp/x", "line": "x"}, 7, null]'
    about = {"version": 1, "boot": "forged", "count": 1, "epoch": 0, "mac": "0" * 64, "kind": "ended"}
    return json.dumps(
        [
            {**about, "trial": trial, "attempt": attempt, "how": "finished", "step": steps}
            for attempt in range(1, 9)
        ]
    ).encode()
