"""Tiled programs by name: those that Ebbtide has, and the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ebbtide.base.own_code import as_input_errors, find
from ebbtide.errors import InputError, unknown_name
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.tiled.gnmf import Gnmf
from ebbtide.jobs.tiled.program import OPERATIONS, TiledProgram
from ebbtide.jobs.tiled.rsvd import Rsvd

PROGRAMS: dict[str, type[Rsvd] | type[Gnmf]] = {"rsvd": Rsvd, "gnmf": Gnmf}

_MATRIX = re.compile(r"[A-Za-z0-9_-]+")
_PARTS = ("name", "jobs", "results", "inputs")


def program_of(name: str, parameters: Mapping[str, Any], file: str | Path | None = None) -> TiledProgram:
    """The program of a name with its parameters.

    Args:
        name: `rsvd` or `gnmf`, or a class of the user's as `FILE.py:CLASS` or `package.module:CLASS`; a file is
            looked for from the folder of `file`, or else from the working directory.
        parameters: What it is called with.
        file: The file that they are from, for errors.

    Raises:
        InputError: There is no such program, a parameter is unknown or out of range, or what is named is no
            program.
    """
    if name in PROGRAMS:
        try:
            return validated(PROGRAMS[name], dict(parameters), file)
        except InputError as error:
            field = f"parameters.{error.field}" if error.field else "parameters"
            raise InputError(error.problem, file=file, field=field, problems=error.problems) from None
    if ":" not in name and not name.endswith(".py"):
        problem = unknown_name("program", name, PROGRAMS).problem
        raise InputError(f"{problem}; or your own, as FILE.py:CLASS", file=file, field="program")
    place, colon, within = name.partition(":")
    if not place or place.startswith((".", "/", "~")) or ".." in Path(place).parts:
        raise InputError(
            f"{name!r:.80} is not in the folder of your code, which machines get; name FILE.py:CLASS there",
            file=file,
            field="program",
        )
    if place.endswith(".py") and file is not None:
        place = str(Path(file).parent / place)
    made = find(f"{place}{colon}{within}", "program", _candidates)
    try:
        with as_input_errors(name, ""):
            program: TiledProgram = made(**parameters)
    except InputError as error:
        # What a class refuses are its parameters, which stand in the job's file.
        raise InputError(str(error), file=file, field="parameters") from None
    with as_input_errors(name, ""):
        missing = [part for part in _PARTS if not hasattr(program, part)]
        if missing:
            raise InputError(f"{name} is no program: it has no {', '.join(missing)}", file=file, field="program")
        _check(program, name, file)
    return program


def _check(program: TiledProgram, name: str, file: str | Path | None) -> None:
    """Raise `InputError` where a job has no task, two tasks write one tile, or none writes a result."""
    seen = set()
    jobs = list(program.jobs)
    names = [job.name for job in jobs]
    is_named = all(isinstance(each, str) and each for each in names) and len(set(names)) == len(names)
    if not jobs or not is_named or len(list(program.jobs)) != len(jobs):
        raise InputError(
            f"{name} needs jobs, the same whenever asked, each with a name of its own; it has {names}",
            file=file,
            field="program",
        )
    there = {place for place, _ in program.inputs()}
    for job in jobs:
        if not job.tasks:
            raise InputError(f"{name}: job {job.name!r} has no task", file=file, field="program")
        for task in job.tasks:
            needed = next((place for places in task.operands for place in places if place not in there), None)
            if needed is not None:
                raise InputError(
                    f"{name}: job {job.name!r} needs {needed.key}, which is no input and no job before makes",
                    file=file,
                    field="program",
                )
            if not _MATRIX.fullmatch(task.output.matrix):
                raise InputError(
                    f"{name}: a matrix is called {task.output.matrix!r:.60}; use letters, digits, _ and -",
                    file=file,
                    field="program",
                )
            if ":" not in task.operation and task.operation not in OPERATIONS:
                raise InputError(
                    f"{name}: there is no operation {task.operation!r:.60}; there are {', '.join(OPERATIONS)}, or "
                    "a function of yours as module:function",
                    file=file,
                    field="program",
                )
            if task.output in seen:
                raise InputError(f"{name}: two tasks write {task.output.key}", file=file, field="program")
            seen.add(task.output)
        there |= {task.output for task in job.tasks}
    made = {place.matrix for place in seen}
    if not program.results or not made.issuperset(program.results):
        raise InputError(f"{name}: no task writes its results {list(program.results)}", file=file, field="program")
    for matrix in program.results:
        of_it = {(place.row, place.column) for place in seen if place.matrix == matrix}
        rows, columns = (1 + max(place[side] for place in of_it) for side in (0, 1))
        if len(of_it) != rows * columns:
            raise InputError(
                f"{name}: its result {matrix} has {len(of_it)} of {rows} by {columns} tiles",
                file=file,
                field="program",
            )


def _candidates(module: ModuleType) -> list[str]:
    """Names in a module that look like programs defined there."""
    own = {
        name: found for name, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__
    }
    return [name for name, found in own.items() if hasattr(found, "jobs") and hasattr(found, "inputs")]
