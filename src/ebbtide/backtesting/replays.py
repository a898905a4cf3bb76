"""Replays of many policies from many starts, in several processes; outcomes do not depend on their number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from ebbtide.backtesting.replay_worker import sent_policy, write_scenario
from ebbtide.base.cores import one_thread
from ebbtide.base.own_code import loaded_files
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.policies.api.protocol import Policy
from ebbtide.replay.scenario import Scenario

# Shorter work is done in this process only: a new process needs about as long to start.
_ALONE_S = 2.0

# Work queued at each worker, so that it need not wait; more would leave an uneven rest at the end.
_AHEAD_S = 0.3
_MOST_AHEAD = 32

# Libraries read these when they are loaded; threads within a worker would take other workers' cores.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)

_WORKER = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from ebbtide.backtesting.replay_worker import main; main(int(sys.argv[1]))"
)


@dataclass
class Replays:
    """The results of all replays.

    Attributes:
        outcomes: An outcome for each start, by policy name, without policies that failed.
        errors: The error at the first failed start, by policy name.
    """

    outcomes: dict[str, tuple[Outcome, ...]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)


def replay_all(
    scenario: Scenario,
    policies: Sequence[Policy],
    starts_s: Sequence[float],
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] | None = None,
    tolerates: tuple[type[Exception], ...] = (),
) -> Replays:
    """Replay every policy from every start.

    Work that takes longer than a moment is shared with `workers - 1` other processes, which always end with this
    call. Policies that cannot be sent to another process, such as those defined in a notebook, are replayed in
    this one.

    Args:
        scenario: Jobs, prices and all other settings.
        policies: Policies to replay; names must differ.
        starts_s: Start times, seconds since 1970.
        workers: Number of processes, this one included; at least 1.
        on_progress: Called with the number of replays done so far.
        tolerates: Errors with which a policy may fail: its other starts are then left out. Other errors are
            raised.

    Raises:
        InputError: `workers` is less than 1.
        Exception: An error of a policy that is not tolerated; of several, that of the first start.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; at least 1 is needed")
    run = _Run(scenario, policies, starts_s, tolerates, on_progress or (lambda _done: None))
    # One thread here, too: sums over several threads would differ in their last bits.
    with one_thread():
        run.here_until(time.monotonic() + _ALONE_S if workers > 1 else None)
        if run.waiting:
            with _workers(scenario, policies, starts_s, min(workers - 1, len(run.waiting))) as (team, sendable):
                run.shared(team, sendable)
    return run.found()


class _Run:
    """The replays that are waiting and those that are done."""

    def __init__(
        self,
        scenario: Scenario,
        policies: Sequence[Policy],
        starts_s: Sequence[float],
        tolerates: tuple[type[Exception], ...],
        on_progress: Callable[[int], None],
    ) -> None:
        self._scenario = scenario
        self._policies = policies
        self._starts_s = tuple(starts_s)
        self._tolerates = tolerates
        self._on_progress = on_progress
        # By start, then by policy: policies differ in speed, and so the rest takes as long per replay as the part
        # done.
        self.waiting = deque((p, s) for s in range(len(starts_s)) for p in range(len(policies)))
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._done = [0] * len(policies)
        self._errors: dict[int, tuple[int, Exception]] = {}
        # Start and policy of the first error that is not tolerated, and the error.
        self._fatal: tuple[tuple[int, int], Exception] | None = None

    def here_until(self, until_s: float | None) -> None:
        """Replay in this process until all is done, or until a time (`time.monotonic`)."""
        while self.waiting and (until_s is None or time.monotonic() < until_s):
            self._replay(self.waiting.popleft())

    def shared(self, team: Sequence[_Worker], sendable: frozenset[int]) -> None:
        """Replay here and in the workers until all is done."""
        here = deque(item for item in self.waiting if item[0] not in sendable)
        common = deque(item for item in self.waiting if item[0] in sendable)
        while here or common or any(worker.busy for worker in team):
            for worker in team:
                while worker.wants_more and common:
                    worker.send(common.popleft())
            mine = here or common
            if mine:
                self._replay(mine.popleft())
            for worker in _heard(team, 0.0 if here or common else None):
                answer = worker.receive()
                if answer is None:
                    # The worker was killed: others do its work.
                    common.extendleft(reversed(worker.given_back()))
                elif answer[1] is None:
                    # The worker cannot import this policy: replay it here.
                    here.append(answer[0])
                else:
                    self._keep(answer[0], answer[1])
            here, common = self._still_wanted(here), self._still_wanted(common)

    def found(self) -> Replays:
        """The results by policy, in the given order; raises an error that is not tolerated."""
        if self._fatal is not None:
            raise self._fatal[1]
        found = Replays()
        for number, policy in enumerate(self._policies):
            if number in self._errors:
                found.errors[policy.name] = self._errors[number][1]
            else:
                found.outcomes[policy.name] = tuple(
                    self._outcomes[number, start] for start in range(len(self._starts_s))
                )
        return found

    def _replay(self, item: tuple[int, int]) -> None:
        number, start = item
        try:
            outcome: Outcome | Exception = self._scenario.run(self._policies[number], self._starts_s[start])
        except Exception as error:
            outcome = error
        self._keep(item, outcome)

    def _keep(self, item: tuple[int, int], outcome: Outcome | Exception) -> None:
        number, start = item
        if isinstance(outcome, Outcome):
            self._outcomes[item] = outcome
            self._done[number] += number not in self._errors
        elif not isinstance(outcome, self._tolerates):
            # Not raised before all earlier replays are done: which error is reported must not depend on speed.
            if self._fatal is None or (start, number) < self._fatal[0]:
                self._fatal = ((start, number), outcome)
        elif number not in self._errors or start < self._errors[number][0]:
            self._errors[number] = (start, outcome)
            self._done[number] = len(self._starts_s)
        if not isinstance(outcome, Outcome):
            self.waiting = self._still_wanted(self.waiting)
        self._on_progress(sum(self._done))

    def _still_wanted(self, items: deque[tuple[int, int]]) -> deque[tuple[int, int]]:
        if self._fatal is None and not self._errors:
            return items
        last = self._fatal[0] if self._fatal else (len(self._starts_s), 0)
        return deque(
            (number, start)
            for number, start in items
            # Earlier starts of a failed policy may fail, too: the first failure is reported.
            if (number not in self._errors or start < self._errors[number][0]) and (start, number) < last
        )


class _Worker:
    """A worker process that replays."""

    def __init__(self, errors: int | None) -> None:
        ours, theirs = Pipe()
        self.connection: Connection[Any, Any] = ours
        path = json.dumps([str(Path(part).resolve()) for part in sys.path])
        # A session of its own: Ctrl-C reaches only the main process, which ends the workers.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(theirs.fileno()), path],
            pass_fds=(theirs.fileno(),),
            env=os.environ | _ONE_THREAD,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            start_new_session=True,
        )
        theirs.close()
        self._given: deque[tuple[int, int]] = deque()
        self._ahead = 2
        self.is_alive = True

    @property
    def busy(self) -> bool:
        return bool(self._given)

    @property
    def wants_more(self) -> bool:
        return self.is_alive and len(self._given) < self._ahead

    def begin(self, scenario_at: str, policies: Sequence[bytes | None], starts_s: Sequence[float]) -> None:
        files = [str(file) for file in loaded_files()]
        try:
            self.connection.send((os.getpid(), scenario_at, files, policies, tuple(starts_s)))
        except OSError:
            self.is_alive = False

    def send(self, item: tuple[int, int]) -> None:
        self._given.append(item)
        try:
            self.connection.send(item)
        except OSError:
            # Its earlier results, and that it ended, are found at the next `receive`.
            self._ahead = 0

    def receive(self) -> tuple[tuple[int, int], Outcome | Exception | None] | None:
        """The next item and its outcome (None if the worker lacks the policy); None: the worker has ended."""
        try:
            item, outcome, took_s = self.connection.recv()
        except (EOFError, OSError):
            self.is_alive = False
            return None
        self._given.popleft()
        if self._ahead:
            self._ahead = int(min(max(_AHEAD_S / max(took_s, 1e-6), 2), _MOST_AHEAD))
        return item, outcome

    def given_back(self) -> list[tuple[int, int]]:
        left = list(self._given)
        self._given.clear()
        return left

    def end(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()


def _heard(team: Sequence[_Worker], timeout_s: float | None) -> Iterator[_Worker]:
    """Workers with results; without a timeout, waits for at least one if any is busy."""
    if timeout_s is None and not any(worker.busy for worker in team):
        return
    ready = wait([worker.connection for worker in team if worker.is_alive], timeout_s)
    yield from [worker for worker in team if worker.connection in ready]


@contextmanager
def _workers(
    scenario: Scenario, policies: Sequence[Policy], starts_s: Sequence[float], number: int
) -> Iterator[tuple[list[_Worker], frozenset[int]]]:
    """Start workers for a scenario; gives them and the indices of the policies they can replay."""
    sent = [sent_policy(policy) for policy in policies]
    sendable = frozenset(place for place, text in enumerate(sent) if text is not None)
    team: list[_Worker] = []
    try:
        with tempfile.TemporaryDirectory(prefix="ebbtide-replays-") as folder:
            if not write_scenario(scenario, Path(folder)):
                sendable = frozenset()
            for _ in range(number if sendable else 0):
                team.append(_Worker(_standard_error()))
                team[-1].begin(folder, sent, starts_s)
            yield team, sendable
    finally:
        for worker in team:
            worker.end()


def _standard_error() -> int | None:
    """File descriptor for the output of policies in workers; standard output is for results."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL
