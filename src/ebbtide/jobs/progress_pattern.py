"""A pattern of the user's for lines of progress: whether it can be used, and takes no time to speak of."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_GROUPS = ("step", "total", "metric")
_MOST_CHARACTERS = 500
# Lines of so many characters must be read within this time.
_LENGTHS, _MOST_S = (25, 50, 100, 200, 400, 800), 0.02
_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT)


def checked_pattern(pattern: str) -> str:
    """The pattern, if it can be used.

    Raises:
        ValueError: It is no regular expression, has no group `step`, or could take very long for a line.
    """
    example = r"write for example 'it (?P<step>\d+) of (?P<total>\d+)'"
    if len(pattern) > _MOST_CHARACTERS:
        raise ValueError(f"progress is a pattern of {len(pattern)} characters; {_MOST_CHARACTERS} at most")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"progress {pattern!r} is no regular expression ({error}); {example}") from None
    if "step" not in compiled.groupindex:
        raise ValueError(f"progress {pattern!r} has no group named step; {example}")
    if unknown := sorted(compiled.groupindex.keys() - set(_GROUPS)):
        raise ValueError(f"progress {pattern!r} has a group {unknown[0]}; there are {', '.join(_GROUPS)}")
    if _has_nested_repeats(parser.parse(pattern)):
        raise ValueError(
            f"progress {pattern!r} repeats what repeats something, as in (a+)+, which may take for ever; leave "
            "out the outer one"
        )
    for length in _LENGTHS:
        for probe in _probes(pattern, length):
            began_s = time.perf_counter()
            compiled.search(probe)
            if time.perf_counter() - began_s > _MOST_S:
                raise ValueError(
                    f"progress {pattern!r} takes too long for a line of {length} characters; use fewer of `.*` "
                    "and its like"
                )
    return pattern


def _probes(pattern: str, length: int) -> Iterator[str]:
    """Lines that a pattern nearly matches."""
    plain = re.sub(r"\(\?P<\w+>|[\\()\[\]{}?*+|^$]", "", pattern) or "a"
    for piece in ("0", " ", "a", plain, f"{plain} 0", "a 0 "):
        yield (piece * (length // len(piece) + 1))[:length] + "\0"


def _has_nested_repeats(parsed: Any, *, is_repeated: bool = False) -> bool:
    for operator, argument in parsed:
        repeats = operator in _REPEATS and argument[1] > 1
        if is_repeated and (repeats or operator is constants.BRANCH):
            return True
        if any(_has_nested_repeats(each, is_repeated=is_repeated or repeats) for each in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns within the argument of an operator."""
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _parts(each)
