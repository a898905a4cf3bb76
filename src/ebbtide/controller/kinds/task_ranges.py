"""Sets of task numbers as ranges: an array of a million tasks has few, since tasks are handed out in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskRanges:
    """Task numbers.

    Attributes:
        ranges: Pairs of a first number and one past the last, in order, without touching each other.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def below(cls, count: int) -> TaskRanges:
        """The numbers from 0 to one below `count`."""
        return cls(((0, count),) if count else ())

    @classmethod
    def of(cls, numbers: Iterable[int]) -> TaskRanges:
        """The set of these numbers."""
        return cls().put(numbers)

    def __len__(self) -> int:
        return sum(end - first for first, end in self.ranges)

    def take(self, count: int) -> tuple[tuple[int, ...], TaskRanges]:
        """The first numbers, `count` at most, and what is left."""
        taken: list[int] = []
        left: list[tuple[int, int]] = []
        for first, end in self.ranges:
            wanted = min(count - len(taken), end - first)
            taken.extend(range(first, first + wanted))
            if first + wanted < end:
                left.append((first + wanted, end))
        return tuple(taken), TaskRanges(tuple(left))

    def put(self, numbers: Iterable[int]) -> TaskRanges:
        """The set with these numbers added."""
        joined: list[tuple[int, int]] = []
        for first, end in sorted([*self.ranges, *((number, number + 1) for number in numbers)]):
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((first, end))
        return TaskRanges(tuple(joined))
