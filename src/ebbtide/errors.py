"""The errors a user can act on: what was wrong, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class InputError(ValueError):
    """Bad input, told in one line: the file, the row and the field, then what was wrong.

    Attributes:
        file: The file at fault, if there is one.
        row: Its row, counted from 1 below any header, as a spreadsheet or `head` would show it.
        field: The column or key at fault.
        problem: What was wrong, in one line; of several problems, how many there are.
        problems: Where several things are wrong with one input, a line for each, below the first.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        problems: Iterable[str] = (),
    ) -> None:
        self.file = str(file) if file is not None else None
        self.row = row
        self.field = field
        self.problem = " ".join(problem.split())
        where = [self.file] if self.file else []
        where += [f"row {row}"] if row is not None else []
        where += [f"field {field}"] if field else []
        self.problems = tuple(" ".join(line.split()) for line in problems)
        summary = f"{', '.join(where)}: {self.problem}" if where else self.problem
        super().__init__("\n  ".join((summary, *self.problems)))

    def __reduce__(self) -> tuple[object, ...]:
        # Workers send errors across processes; keyword arguments do not survive the default pickling.
        return _rebuild, (self.problem, self.file, self.row, self.field, self.problems)


def _rebuild(
    problem: str, file: str | None, row: int | None, field: str | None, problems: tuple[str, ...]
) -> InputError:
    return InputError(problem, file=file, row=row, field=field, problems=problems)


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> InputError:
    """An `InputError` for a name that is none of `valid`, suggesting the nearest."""
    names = sorted(valid)
    near = get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return InputError(f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}")
