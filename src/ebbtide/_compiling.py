"""Compiling functions with Numba, and keeping the machine code on disk between runs.

Numba is of the extra `fast`. Where it is not installed, the same functions run uncompiled, twenty times as long.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import platformdirs

try:
    from numba import config, njit
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import CPUDispatcher
except ModuleNotFoundError:
    njit, CPUDispatcher = None, object

_LOGGER = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(rb"^from ebbtide\.([\w.]+) import", re.MULTILINE)

# Constants and record types that are compiled into functions of other modules.
_RECORDS = _PACKAGE / "_compiled_records.py"


def compiled(function: _Function) -> _Function:
    """Compile a function that Python code may call; compiled on its first call with each combination of types."""
    if njit is None:
        return cast(_Function, _uncompiled(function))
    return cast(_Function, _compile(function, njit(nogil=True, error_model="numpy")))


def inner(function: _Function) -> _Function:
    """Compile a function that only other compiled functions may call; called from Python, it raises `TypeError`.

    It gets no entry point for Python, which would take as long to compile as the function itself.
    """
    return function if njit is None else cast(_Function, _compile(function, _inner_dispatcher))


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as it is, divisions by zero as when compiled; says once that it is slow."""

    @wraps(function)
    def slow(*given: Any, **named: Any) -> Any:
        _say_once()
        with np.errstate(all="ignore"):
            return function(*given, **named)

    return slow


@cache
def _say_once() -> None:
    _LOGGER.warning("Numba is not installed: this takes some twenty times longer; pip install 'ebbtide[fast]'")


class _InnerFunction(CPUDispatcher):  # type: ignore[misc]
    """A compiled function without an entry point for Python: to enter it anyway would crash the interpreter."""

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"{self.py_func.__module__}.{self.py_func.__qualname__} is called by compiled functions only, not "
            "from Python; call the function decorated with @compiled that uses it"
        )


def _inner_dispatcher(function: Any) -> Any:
    if config.DISABLE_JIT:
        return function
    options = {
        "nopython": True,
        "nogil": True,
        "error_model": "numpy",
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "boundscheck": None,
    }
    return _InnerFunction(py_func=function, locals={}, targetoptions=options)


def _compile(function: Any, dispatcher_of: Callable[[Any], Any]) -> Any:
    folder = _folder(Path(function.__code__.co_filename))
    dispatcher = dispatcher_of(function)
    if folder is None or config.DISABLE_JIT:
        return dispatcher
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        dispatcher.enable_caching()
    finally:
        config.CACHE_DIR = before
    _compile_once(dispatcher, folder / f"{function.__qualname__}.lock")
    return dispatcher


def _compile_once(dispatcher: Any, lock: Path) -> None:
    """Let one process at a time compile a function: another that needs it waits, and loads the machine code.

    Numba's own lock is taken first: functions that call each other would otherwise be locked by two threads in two
    orders. Where the folder cannot be written, each process compiles for itself.
    """
    compile_or_load = dispatcher.compile

    def locked(signature: Any) -> Any:
        with global_compiler_lock, ExitStack() as held:
            with suppress(OSError):
                fcntl.flock(held.enter_context(lock.open("ab")), fcntl.LOCK_EX)
            return compile_or_load(signature)

    dispatcher.compile = locked


@cache
def _folder(source: Path) -> Path | None:
    """The cache folder for the compiled functions of one source file; None: no folder can be made.

    Numba recompiles a function only when its own file has changed, not when a function or constant of another file
    that was compiled into it has. So the folder is named by a hash of all these files.
    """
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_compiled_into(source))))
    folder = platformdirs.user_cache_path("ebbtide") / "compiled" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder


def _compiled_into(source: Path) -> set[Path]:
    """A file, the file of records, and all files with compiled functions that it imports, directly or not."""
    found, waiting = {_RECORDS}, [source]
    while waiting:
        path = waiting.pop()
        found.add(path)
        for name in _IMPORT.findall(path.read_bytes()):
            imported = _PACKAGE.joinpath(*name.decode().split(".")).with_suffix(".py")
            if (
                imported not in found
                and imported.is_file()
                and b"from ebbtide._compiling" in imported.read_bytes()
            ):
                waiting.append(imported)
    return found
