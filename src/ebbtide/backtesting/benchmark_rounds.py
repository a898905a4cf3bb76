"""The rounds of a cell of the benchmark: every policy from a few starts, then from more those that need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.backtesting.benchmark_records import UnusedFile
from ebbtide.backtesting.benchmark_starts import LEAST_STARTS, CellRuns, more_starts

# Starts of a task at most: processes share the runs of one policy.
_MOST_AT_ONCE = 4


@dataclass(frozen=True)
class Task:
    """Runs of one policy on one record, for one kind of work, from a range of starts.

    Attributes:
        record: Index of the record.
        work: Index of the work among those of the record.
        policy: Name of the policy.
        first: Index of its first start.
        end: Index of the start after its last.
    """

    record: int
    work: int
    policy: str
    first: int
    end: int


@dataclass(frozen=True)
class Failed(UnusedFile):
    """A policy that failed in a run, by a defect of its own; the run counts as missed."""

    policy: str


class Rounds:
    """Replays of one cell, round by round, and their results.

    Args:
        place: Indices of the record and the work.
        policies: Names of the policies.
        always: A policy that runs whenever others do.
        first: Number of starts of every policy in the first round.
        most: The most starts.
        least: The least starts of `always` and of policies that may be the cheapest.

    Attributes:
        replays: The replays of each policy.
        left_out: Replays that were not possible, and why; `Failed` where a policy failed.
        tasks: Tasks of this round; none: there is no further round.
    """

    def __init__(
        self,
        place: tuple[int, int],
        policies: Sequence[str],
        always: str,
        first: int,
        most: int,
        least: int = LEAST_STARTS,
    ) -> None:
        self.replays: dict[str, CellRuns] = {}
        self.left_out: list[UnusedFile] = []
        self.tasks = [task for name in policies for task in _tasks(place, name, 0, first)]
        self._place, self._always, self._most, self._least = place, always, most, least
        self._found: dict[Task, CellRuns | UnusedFile] = {}

    def note(self, task: Task, found: CellRuns | UnusedFile) -> Sequence[Task]:
        """Note what came of a task; gives the tasks of the next round when it was the last of this one."""
        self._found[task] = found
        if len(self._found) < len(self.tasks):
            return ()
        self._end()
        return self.tasks

    def _end(self) -> None:
        failed = set()
        for task in self.tasks:
            one, name = self._found[task], task.policy
            if isinstance(one, UnusedFile):
                if name not in failed:
                    self.left_out.append(one)
                failed.add(name)
                # What fails in a later start is left out whole.
                self.replays.pop(name, None)
            elif name not in failed:
                self.replays[name] = self.replays[name] + one if name in self.replays else one
        self._found.clear()
        more = more_starts(self.replays, self._always, self._most, self._least) if self.replays else {}
        self.tasks = [
            task
            for name, end in more.items()
            for task in _tasks(self._place, name, self.replays[name].starts, end)
        ]


def _tasks(place: tuple[int, int], policy: str, first: int, end: int) -> list[Task]:
    begins = range(first, end, _MOST_AT_ONCE)
    return [Task(*place, policy, begin, min(begin + _MOST_AT_ONCE, end)) for begin in begins]
