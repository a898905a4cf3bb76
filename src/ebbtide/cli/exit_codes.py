"""Report a command's errors: one line on standard error and an exit code, never a traceback.

| code | meaning |
|---|---|
| 1 | the user's training failed, or machines could not be ended |
| 2 | bad input: a wrong option, file, field or policy; a path that does not exist or is not allowed |
| 3 | `plan`: the budget or the deadline cannot be kept |
| 69 | a cloud, a service or a journal's server does not answer, or refused |
| 70 | a bug in Ebbtide |
| 71 | out of memory |
| 74 | reading or writing failed: disk full, a journal that cannot be written |
| 130 | interrupted |

`EBBTIDE_DEBUG=1` shows the traceback as well.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import traceback
from typing import NoReturn

import typer

from ebbtide.errors import (
    CloudError,
    InputError,
    JournalAwayError,
    JournalError,
    PolicyError,
    StorageError,
    TrainingError,
)

FAILED = 1
BAD_INPUT = 2
UNAVAILABLE = 69
DEFECT = 70
OUT_OF_MEMORY = 71
INPUT_OUTPUT = 74
INTERRUPTED = 130

DEBUG = "EBBTIDE_DEBUG"

# Named here, not imported: importing botocore would make every command slow.
_AWS_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    # An answer that is not AWS's, such as the page of a proxy.
    "botocore.parsers": ("ResponseParserError",),
}

# Typer contains a private copy of click; this is click's error for a wrong command line.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickException: type[Exception] = _UsageError.__mro__[1]

# Errors of a path that the user named, which naming another path fixes.
_WRONG_PATH = frozenset(
    {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EROFS,
        errno.ENOTEMPTY,
        errno.EINVAL,
        errno.ENODEV,
        errno.ENXIO,
    }
)


# Modules that each extra installs.
_EXTRAS = {
    "train": ("torch", "sklearn"),
    "pipeline": ("prefect", "dvc", "mlflow", "sqlalchemy", "cronsim"),
    "plots": ("plotly", "matplotlib", "jinja2"),
    "portfolio": ("cvxopt",),
    "postgres": ("psycopg",),
    "ui": ("fastapi", "uvicorn", "prometheus_client", "starlette"),
}


def extra_of(module: str) -> str | None:
    """Return the extra of Ebbtide that installs a module; None: no extra does."""
    top = module.partition(".")[0]
    return next((extra for extra, modules in _EXTRAS.items() if top in modules), None)


def end_with(error: BaseException) -> NoReturn:
    """End the process with the message and exit code of an exception."""
    if isinstance(error, BrokenPipeError):
        # The reader of the output, such as `head`, has closed the pipe.
        sys.stderr.close()
        sys.exit(0)
    code, line = ending_of(error)
    if os.environ.get(DEBUG):
        sys.stderr.write("".join(traceback.format_exception(error)))
    if line:
        sys.stderr.write(f"{line}\n")
    _drop_output()
    sys.exit(code)


def _drop_output() -> None:
    """Discard output that cannot be written: at exit the interpreter would retry, and set its own exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def ending_of(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the text for an exception: a line per problem, empty if help was printed."""
    if isinstance(error, (typer.Abort, KeyboardInterrupt)):
        return INTERRUPTED, "interrupted"
    # Imported here, since commands without errors do not need it.
    from ebbtide.base.terminal import visible

    code, problem = _code_and_problem(error)
    # An input error has a line for each problem; other errors are joined into one line.
    lines = problem.splitlines() if isinstance(error, InputError) else [problem]
    first, *others = [visible(" ".join(line.split())) for line in lines] or [""]
    return code, "\n".join([f"ebbtide: {first}" if first else "", *(f"  {line}" for line in others)])


def _code_and_problem(error: BaseException) -> tuple[int, str]:
    if isinstance(error, (InputError, PolicyError)):
        return BAD_INPUT, str(error)
    if isinstance(error, TrainingError):
        return FAILED, str(error)
    if isinstance(error, _UsageError):
        if not str(error):
            # No command was given, and typer has printed the help.
            return BAD_INPUT, ""
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "ebbtide"
        # For a value that is not one of several choices, typer's message also names the kind of error.
        told = error.format_message().replace("Value error, ", "")  # type: ignore[attr-defined]
        return BAD_INPUT, f"{told} (see `{command} --help`)"
    if isinstance(error, _ClickException):
        return BAD_INPUT, error.format_message()  # type: ignore[attr-defined]
    if isinstance(error, JournalError) and not isinstance(error, JournalAwayError):
        return INPUT_OUTPUT, f"the run's journal cannot be used: {error}"
    if isinstance(
        error, (ConnectionError, TimeoutError, CloudError, StorageError, JournalAwayError, *_service_errors())
    ):
        return UNAVAILABLE, str(error) or type(error).__name__
    if isinstance(error, sqlite3.Error):
        return INPUT_OUTPUT, f"a database cannot be used: {error}"
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY, "out of memory; use fewer prices, policies or starts, or a larger machine"
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        code = BAD_INPUT if error.errno in _WRONG_PATH and where else INPUT_OUTPUT
        return code, f"{where}{(error.strerror or type(error).__name__).lower()}"
    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")) is not None:
        return BAD_INPUT, f"this needs {error.name}, of an extra: pip install 'ebbtide[{extra}]'"
    kind = type(error).__name__
    return DEFECT, f"internal error: {kind}: {_short(str(error))}; {DEBUG}=1 shows where; please report it"


def _service_errors() -> tuple[type[Exception], ...]:
    """Return AWS's error classes if this process has imported them; otherwise none can have been raised."""
    return tuple(
        getattr(sys.modules[module], name)
        for module, names in _AWS_ERRORS.items()
        if module in sys.modules
        for name in names
    )


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
