"""The rounds of the benchmark: every policy from a few starts, then from more those that need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ebbtide.analysis.benchmark_records import LeftOut
from ebbtide.analysis.benchmark_starts import Replays, more_starts

# Starts of a task at most: processes share the runs of one policy.
_MOST_AT_ONCE = 4


@dataclass(frozen=True)
class Task:
    """One policy on one record, for one kind of work, from some of its starts.

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


class Rounds:
    """What is to be replayed, round by round, and what came of it.

    Args:
        first_starts: How many starts every policy has in the first round, by indices of record and work.
        policies: Names of the policies.
        always: A policy that runs whenever others do.
        most: The most starts of a cell.

    Attributes:
        groups: The replays of each policy, by indices of record and work.
        left_out: What could not be replayed, and why.
    """

    def __init__(
        self, first_starts: Mapping[tuple[int, int], int], policies: Sequence[str], always: str, most: int
    ) -> None:
        self.groups: dict[tuple[int, int], dict[str, Replays]] = {place: {} for place in first_starts}
        self.left_out: list[LeftOut] = []
        self._always, self._most = always, most
        self._found: dict[Task, Replays | LeftOut] = {}
        self._tasks = [
            task
            for place, end in first_starts.items()
            for name in policies
            for task in _tasks(place, name, 0, end)
        ]

    @property
    def tasks(self) -> Sequence[Task]:
        """Those of this round; none: there is no further round."""
        return self._tasks

    def note(self, task: Task, found: Replays | LeftOut) -> None:
        """Note what came of a task."""
        self._found[task] = found

    def end(self) -> None:
        """End a round all of whose tasks are noted, and begin the next."""
        failed = set()
        for task in self._tasks:
            one, group = self._found[task], self.groups[task.record, task.work]
            which = task.record, task.work, task.policy
            if isinstance(one, LeftOut):
                if which not in failed:
                    self.left_out.append(one)
                failed.add(which)
                # What fails in a later start is left out whole.
                group.pop(task.policy, None)
            elif which not in failed:
                group[task.policy] = group[task.policy] + one if task.policy in group else one
        self._found.clear()
        self._tasks = [
            task
            for place, group in self.groups.items()
            if group
            for name, end in more_starts(group, self._always, self._most).items()
            for task in _tasks(place, name, group[name].starts, end)
        ]


def _tasks(place: tuple[int, int], policy: str, first: int, end: int) -> list[Task]:
    begins = range(first, end, _MOST_AT_ONCE)
    return [Task(*place, policy, begin, min(begin + _MOST_AT_ONCE, end)) for begin in begins]
