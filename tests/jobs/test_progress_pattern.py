"""A pattern of the user's for lines of progress."""

from __future__ import annotations

import pytest

from ebbtide.errors import InputError
from ebbtide.jobs.one_training import SingleTraining
from ebbtide.jobs.progress_pattern import checked_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"it (?P<step>\d+) of (?P<total>\d+)",
        r"^\[(?P<step>[\d,]+)/(?P<total>[\d,]+)\].*loss=(?P<metric>\S+)",
        r"(?:step|iter)\s*(?P<step>\d+)",
        r"(?P<step>\d{1,9}) done",
    ],
)
def test_a_pattern_that_can_be_used_stays_as_it_is(pattern: str) -> None:
    assert checked_pattern(pattern) == pattern
    sweep = SingleTraining.parse({"command": "python t.py", "progress": pattern}).work()
    assert sweep.progress == pattern


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"it (?P<step>\d+", "is no regular expression"),
        (r"it (\d+)", "has no group named step"),
        (r"(?P<step>\d+) (?P<loss>\d+)", "has a group loss; there are step, total, metric"),
        (r"(?:(?P<step>\d+)+)+x", "repeats what repeats something"),
        (r"(?:a|a)*(?P<step>\d+)", "repeats what repeats something"),
        (r"(?:\d{1,50}){1,50}(?P<step>\d+)", "repeats what repeats something"),
        (r".*.*.*.*.*(?P<step>\d+)x", "takes too long"),
        ("(?P<step>1)" + "a" * 500, "500 at most"),
    ],
)
def test_a_pattern_that_cannot_is_refused_with_what_would_be_right(pattern: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        SingleTraining.parse({"command": "python t.py", "progress": pattern})
