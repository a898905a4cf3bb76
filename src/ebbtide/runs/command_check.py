"""Checks, before a machine is rented, that the program that a sweep calls exists."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from ebbtide.agent.processes import program_path
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import OneJob, Runnable

# Options of torchrun that take no value, and those after which no Python file follows.
_TORCHRUN_FLAGS = frozenset({"--standalone", "--run-path", "--run_path", "--virtual-local-rank"})
_TORCHRUN_OTHERS = frozenset({"-m", "--module", "--no-python", "--no_python", "-h", "--help"})
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")


def check_command(work: Runnable, folder: Path, *, here: bool) -> None:
    """Look for the executable of each trial's command, and for the file that Python is to run.

    Args:
        work: The sweep, or the list of jobs, whose commands are checked.
        folder: Folder with the user's code, in which programs run.
        here: Whether programs run on this machine; else only files sent with the code can be checked.

    Raises:
        InputError: The executable or the file does not exist.
    """
    for place, sweep in enumerate(work.parts):
        try:
            _check_sweep(sweep, folder, here=here)
        except InputError as error:
            raise work.located(error, place) from None


def _check_sweep(sweep: OneJob, folder: Path, *, here: bool) -> None:
    checked: set[tuple[str, str]] = set()
    for arguments, field in sweep.programs():
        called = arguments[0], _script(arguments)
        if called not in checked:
            checked.add(called)
            _check(called, folder, here=here, field=field)


def _script(arguments: Sequence[str]) -> str:
    """The Python file that a command runs; empty: it runs none, or that is not obvious."""
    called, words = Path(arguments[0]).name, list(arguments[1:])
    if called == "torchrun":
        while words and words[0].startswith("-"):
            if words[0] in _TORCHRUN_OTHERS:
                return ""
            has_value = "=" not in words[0] and words[0] not in _TORCHRUN_FLAGS
            words = words[1 + has_value :]
    elif not _PYTHON.fullmatch(called):
        return ""
    return words[0] if words and words[0].endswith(".py") else ""


def _check(command: tuple[str, str], folder: Path, *, here: bool, field: str) -> None:
    called, script = command
    is_python = _PYTHON.fullmatch(Path(called).name) is not None
    if here and not (is_python and called == "python"):
        found = shutil.which(str(folder / called) if "/" in called else called, path=program_path())
        if found is None:
            raise InputError(_missing_executable(called, folder), field="command")
    if script:
        file = Path(script)
        if not (folder / file).is_file() and (here or not file.is_absolute()):
            beside = ", ".join(sorted(path.name for path in folder.glob("*.py"))[:5])
            have = f"; beside it are {beside}" if beside else ""
            raise InputError(f"{script} is not in {folder.resolve()}{have}", field=field)


def _missing_executable(called: str, folder: Path) -> str:
    if "/" in called:
        path = folder / called
        return (
            f"{called} cannot be executed: `chmod +x` it"
            if path.is_file()
            else f"there is no {called} in {folder}"
        )
    if (folder / called).is_file():
        how = f"python {called}" if called.endswith(".py") else f"./{called}"
        return f"executable {called!r} is not found, but a file of that name is in the folder: write `{how}`"
    known = [name for name in ("python", "bash", "torchrun", "accelerate", "mpirun") if name != called]
    near = get_close_matches(called, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "is it installed, and on the PATH?"
    return f"executable {called!r} is not found: {hint}"
