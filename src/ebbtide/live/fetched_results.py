"""Fetches the results of an array: a folder for each task that wrote files, and a line of JSON for every task."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from ebbtide._files import write_text
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import runnable
from ebbtide.live.agent.results import TaskResults, plain_result
from ebbtide.live.agent_state import trial_id_of
from ebbtide.live.settings import RunFolder
from ebbtide.live.storage import object_store

LINES = "results.jsonl"


@dataclass(frozen=True)
class FetchedResults:
    """What was fetched of an array.

    Attributes:
        folder: Local folder with `results.jsonl`, and a folder for each task that wrote files, by its number.
        done: Number of tasks with a result.
        missing: Number of tasks without one.
        new: Number of results that were not there before.
    """

    folder: Path
    done: int
    missing: int
    new: int


def fetch_results(run: RunFolder, into: Path, number: int = 0) -> FetchedResults:
    """Fetch the results that are stored; those that were fetched before are not fetched again.

    Args:
        run: Folder of the run.
        into: Folder that is made.
        number: Number of the array in the run.

    Raises:
        InputError: No task has a result, or the folder holds something else.
        OSError: Storage does not answer, has a damaged result, or the folder cannot be written.
    """
    if into.exists() and not into.is_dir():
        raise InputError("is a file; name a folder", file=into)
    if into.exists() and any(into.iterdir()) and not (into / LINES).is_file():
        raise InputError("holds something else; move it away, or name another folder by --into", file=into)
    settings = run.settings
    results = TaskResults(object_store(settings.store), trial_id_of(settings.run, number))
    tasks = runnable(settings.sweep).part_of(number)[0].task_values
    numbers = sorted(results.numbers())
    if not numbers:
        raise InputError(f"no task of run {settings.run} has a result yet")
    before = _read(into / LINES)
    into.mkdir(parents=True, exist_ok=True)
    if not before:
        write_text(into / LINES, "")
    lines, width = [], len(str(len(tasks) - 1))
    for task in numbers:
        if task in before:
            lines.append(before[task])
            continue
        result = results.result(task)
        if result.archive:
            coming, target = into / f".{task}.coming", into / f"{task:0{width}d}"
            for left in (coming, target):
                shutil.rmtree(left, ignore_errors=True)
            results.fetch(result, coming)
            coming.rename(target)
        lines.append(json.dumps(plain_result(result)))
    write_text(into / LINES, "".join(f"{line}\n" for line in lines))
    missing = len(tasks) - len(numbers)
    return FetchedResults(into, len(numbers), missing, len(numbers) - len(before))


def _read(lines: Path) -> dict[int, str]:
    """The lines that are there, by number of the task."""
    if not lines.is_file():
        return {}
    try:
        found = [(json.loads(line)["task"], line) for line in lines.read_text(encoding="utf-8").splitlines()]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            "is no list of results; move it away, or name another folder by --into", file=lines
        ) from None
    return dict(found)
