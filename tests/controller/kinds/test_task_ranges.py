"""Ranges of tasks beside plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.controller.kinds.task_ranges import TaskRanges

NUMBERS = st.sets(st.integers(0, 40))


def members(found: TaskRanges) -> set[int]:
    return {number for first, end in found.ranges for number in range(first, end)}


@given(NUMBERS, NUMBERS, st.integers(0, 50))
def test_they_are_the_sets_that_they_stand_for(one: set[int], other: set[int], count: int) -> None:
    both = TaskRanges.of(one).put(other)
    assert members(both) == one | other
    assert len(both) == len(one | other)
    # As few ranges as there can be, in order.
    assert all(end < first for (_, end), (first, _) in zip(both.ranges, both.ranges[1:], strict=False))
    taken, left = both.take(count)
    assert list(taken) == sorted(one | other)[:count]
    assert members(left) == (one | other) - set(taken)


def test_the_numbers_below_one() -> None:
    assert TaskRanges.below(3).ranges == ((0, 3),)
    assert len(TaskRanges.below(0)) == 0
