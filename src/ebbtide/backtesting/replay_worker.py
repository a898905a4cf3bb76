"""A worker process that replays policies for `replays`: how work is sent to it, and its main loop.

Workers share the memory of the prices, and end with the process that started them.
"""

from __future__ import annotations

import io
import mmap
import pickle
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ebbtide.base.cores import end_with_parent
from ebbtide.base.own_code import load_file
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.protocol import Policy
from ebbtide.replay.scenario import Scenario

_SCENARIO, _ARRAYS = "scenario", "arrays"

# Arrays begin at multiples of this many bytes, for fast access.
_ALIGNED = 64


def write_scenario(scenario: Scenario, folder: Path) -> bool:
    """Write a scenario to an empty folder for `read_scenario`; returns whether it can be pickled."""
    arrays: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=5, buffer_callback=arrays.append).dump(scenario)
    except Exception:
        # Something in it is defined in the main program.
        return False
    places = []
    with (folder / _ARRAYS).open("wb") as file:
        for array in arrays:
            raw = array.raw()
            file.write(b"\0" * (-file.tell() % _ALIGNED))
            places.append((file.tell(), file.tell() + raw.nbytes))
            file.write(raw)
    (folder / _SCENARIO).write_bytes(pickle.dumps((out.getvalue(), places)))
    return True


def read_scenario(folder: Path) -> Scenario:
    """The scenario that `write_scenario` wrote; processes share the memory of its arrays (copy on write)."""
    text, places = pickle.loads((folder / _SCENARIO).read_bytes())
    shared = memoryview(b"")
    if places and places[-1][1]:
        with (folder / _ARRAYS).open("rb") as file:
            shared = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    scenario: Scenario = pickle.loads(text, buffers=[shared[begin:end] for begin, end in places])
    return scenario


def sent_policy(policy: Policy) -> bytes | None:
    """A policy as bytes for `received_policy`; None: its class is known to this process only."""
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=5).dump(policy)
    except Exception:
        return None
    return out.getvalue()


def received_policy(text: bytes | None) -> Policy | None:
    """The policy that `sent_policy` pickled; None: its class cannot be found in this process."""
    try:
        return None if text is None else pickle.loads(text)
    except Exception:
        return None


class _Pickler(pickle.Pickler):
    """Leaves out values that can be computed again, and refuses objects that other processes cannot import."""

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, PriceSeries):
            # Without its lists for look-ups.
            return PriceSeries, (found.times_s, found.prices)
        if getattr(found, "__module__", None) == "__main__" and callable(found):
            raise pickle.PicklingError("objects of the main program cannot be imported by other processes")
        return NotImplemented


def main(descriptor: int) -> None:
    """Replay each policy and start received through the connection, until it is closed.

    Args:
        descriptor: File descriptor of the connection to the parent process.
    """
    connection: Connection[Any, Any] = Connection(descriptor)
    parent, folder, files, sent, starts_s = connection.recv()
    end_with_parent(parent)
    # Policies from files need the modules of those files; policies of a file that cannot be loaded here are
    # replayed in the parent process.
    for file in files:
        with suppress(InputError):
            load_file(file)
    scenario = read_scenario(Path(folder))
    policies = [received_policy(text) for text in sent]
    while True:
        try:
            number, start = connection.recv()
        except EOFError:
            return
        began_s = time.perf_counter()
        policy = policies[number]
        outcome: Outcome | Exception | None = None
        try:
            if policy is not None:
                outcome = scenario.run(policy, starts_s[start])
        except Exception as error:
            outcome = _as_sent(error)
        connection.send(((number, start), outcome, time.perf_counter() - began_s))


def _as_sent(error: Exception) -> Exception:
    """The error, if it survives the way to another process, else what it says; with a note of where it was."""
    where = traceback.format_exc()
    try:
        same: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        same = RuntimeError(f"{type(error).__name__}: {error}")
    if str(same) != str(error):
        same = RuntimeError(f"{type(error).__name__}: {error}")
    same.add_note(where)
    return same
