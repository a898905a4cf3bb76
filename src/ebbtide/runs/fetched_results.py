"""Fetches the results of an array: a folder for each task that wrote files, and a line of JSON for every task."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.agent.result_archive import DamagedResultError
from ebbtide.agent.results import TaskResults, plain_result
from ebbtide.base.files import write_text
from ebbtide.clouds.settings import RunFolder
from ebbtide.controller.kinds.state import trial_id_of
from ebbtide.errors import InputError, MissingObjectError, StorageError
from ebbtide.jobs.job_list import runnable
from ebbtide.storage.objects import object_store

LINES = "results.jsonl"
# Errors of a file system that refuses a name: other tasks have other names.
_OF_NAMES = frozenset({errno.EILSEQ, errno.EINVAL, errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR})


@dataclass(frozen=True)
class FetchedResults:
    """Result of fetching the results of an array.

    Attributes:
        folder: Local folder with `results.jsonl`, and a folder for each task that wrote files, by its number.
        done: Number of tasks with a result.
        missing: Number of tasks without one.
        new: Number of results that were not fetched before.
        problems: One line for each result that was not fetched: it is damaged in storage, or this file system
            refuses the name of a file.
    """

    folder: Path
    done: int
    missing: int
    new: int
    problems: tuple[str, ...] = ()


def fetch_results(run: RunFolder, into: Path, number: int = 0) -> FetchedResults:
    """Fetch stored results, except those that were fetched before.

    Args:
        run: Folder of the run.
        into: Folder for the results, which is created if necessary.
        number: Number of the array in the run.

    Raises:
        InputError: No task has a result, or the folder holds something else.
        OSError: Storage does not answer, or the folder cannot be written.
    """
    if into.exists() and not into.is_dir():
        raise InputError("is a file; name a folder", file=into)
    if into.exists() and any(into.iterdir()) and not (into / LINES).is_file():
        raise InputError("holds something else; move it away, or name another folder by --into", file=into)
    settings = run.settings
    array = trial_id_of(settings.run, number)
    results = TaskResults(object_store(settings.store), array)
    part = runnable(settings.sweep).part_of(number)[0]
    tasks = part.tasks if part.kind == "array" else ()
    numbers = sorted(results.numbers())
    if not numbers:
        raise InputError(f"no task of run {settings.run} has a result yet")
    known = _read(into / LINES, array, settings.unique_name)
    into.mkdir(parents=True, exist_ok=True)
    width, new, problems = len(str(len(tasks) - 1)), 0, []
    _write(into / LINES, known)
    with (into / LINES).open("a", encoding="utf-8") as lines:
        for task in numbers:
            folder = f"{task:0{width}d}"
            if task in known and (not known[task]["folder"] or (into / folder).is_dir()):
                continue
            if task not in known and (into / folder).exists():
                raise InputError(
                    f"has a {folder} that is no result of {array}; move it away, or name another folder by --into",
                    file=into,
                )
            coming = into / f".{task}.coming"
            shutil.rmtree(coming, ignore_errors=True)
            try:
                result = results.result(task)
                if result.archive:
                    results.fetch(result, coming)
            except (DamagedResultError, MissingObjectError) as error:
                shutil.rmtree(coming, ignore_errors=True)
                problems.append(str(error))
                continue
            except OSError as error:
                shutil.rmtree(coming, ignore_errors=True)
                if isinstance(error, StorageError) or error.errno not in _OF_NAMES:
                    raise
                problems.append(f"result of task {task} cannot be written here: {error}")
                continue
            known[task] = {
                "array": array,
                "run": settings.unique_name,
                "folder": folder if result.archive else None,
                **plain_result(result),
            }
            new += 1
            # The line comes first, since a folder without one counts as somebody else's.
            lines.write(f"{json.dumps(known[task])}\n")
            lines.flush()
            if result.archive:
                coming.rename(into / folder)
    _write(into / LINES, known)
    return FetchedResults(into, len(numbers), len(tasks) - len(numbers), new, tuple(problems))


def _read(lines: Path, array: str, run: str) -> dict[int, dict[str, Any]]:
    """Read the lines of results that were fetched before, by number of the task.

    Args:
        lines: Their file.
        array: The array, as its run names it.
        run: Unique name of the run, since others may have its id.

    Raises:
        InputError: The lines are something else, or results of another array.
    """
    found: dict[int, dict[str, Any]] = {}
    text = lines.read_text(encoding="utf-8", errors="replace") if lines.is_file() else ""
    # Only the last line can be cut off: its task is fetched again.
    whole = text[: text.rfind("\n") + 1]
    for line in whole.splitlines():
        try:
            values = json.loads(line)
            found[int(values["task"])] = values
            of, by, _ = values["array"], str(values.get("run", "")), values["folder"]
        except (ValueError, KeyError, TypeError):
            raise InputError(
                "is no list of results; move it away, or name another folder by --into", file=lines
            ) from None
        if of != array:
            raise InputError(f"has results of {of}, not of {array}; name another folder by --into", file=lines)
        if by != run:
            of_whom = f"of another run with the id of {run}" if by else "that an earlier Ebbtide fetched"
            raise InputError(f"has results {of_whom}; move it away, or name another folder by --into", file=lines)
    return found


def _write(lines: Path, known: Mapping[int, Mapping[str, Any]]) -> None:
    write_text(lines, "".join(f"{json.dumps(known[task])}\n" for task in sorted(known)))
