"""A process that replays what it is told to, for `replays`, and ends with the process that began it."""

from __future__ import annotations

import pickle
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ebbtide._cores import end_with_parent
from ebbtide.analysis.sent_scenario import read_scenario, received_policy
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.policies.own_policy import load_file


def main(descriptor: int) -> None:
    """Replay each policy and start that comes through the connection, until that is closed."""
    connection: Connection[Any, Any] = Connection(descriptor)
    parent, folder, files, sent, starts_s = connection.recv()
    end_with_parent(parent)
    # Policies from files are known by the modules of those files; those of a file that cannot be loaded here are
    # replayed where they were made.
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
