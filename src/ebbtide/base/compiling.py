"""Compiling functions with Numba, and keeping the machine code on disk between runs.

Numba is of the extra `fast`. Where it is not installed, the same functions run uncompiled, twenty times as long.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache, update_wrapper, wraps
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

import numpy as np
import platformdirs

_LOGGER = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_SOURCES = Path(__file__).parents[2]
_IMPORT = re.compile(rb"^from (ebbtide[\w.]+) import", re.MULTILINE)

# Constants and record types that are compiled into functions of other modules.
_RECORDS = Path(__file__).with_name("compiled_records.py")

_OPTIONS = {"nopython": True, "nogil": True, "error_model": "numpy", "boundscheck": None}
# No entry point for Python, which would take as long to compile as the function itself.
_INNER_OPTIONS = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_MAKING = threading.RLock()


def compiled(function: _Function) -> _Function:
    """Compile a function that Python code may call; compiled on its first call with each combination of types."""
    return cast(_Function, _Compiled(function, _OPTIONS) if _has_numba() else _uncompiled(function))


def inner(function: _Function) -> _Function:
    """Compile a function that only other compiled functions may call; from Python, it raises `TypeError`."""
    return cast(_Function, _Compiled(function, _INNER_OPTIONS)) if _has_numba() else function


class _Compiled:
    """A function that Numba compiles. Numba, which takes half a second, is imported at the first call."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self._function = cast(FunctionType, function)
        self._options = options
        self._dispatcher: Any = None

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self._options is _INNER_OPTIONS:
            raise TypeError(
                f"{self._function.__module__}.{self._function.__qualname__} is called by compiled functions only, "
                "not from Python; call the function decorated with @compiled that uses it"
            )
        return (self._dispatcher or self.dispatcher())(*given, **named)

    def dispatcher(self) -> Any:
        """Numba's function, in which names of other functions of this class stand for Numba's functions, too."""
        with _MAKING:
            if self._dispatcher is None:
                function = self._function
                names = dict(function.__globals__)
                copy = FunctionType(
                    function.__code__, names, function.__name__, function.__defaults__, function.__closure__
                )
                copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
                self._dispatcher = _compile(update_wrapper(copy, function), self._options)
                # After the assignment, since a function may call itself.
                for name in set(_names(function.__code__)):
                    if isinstance(names.get(name), _Compiled):
                        names[name] = names[name].dispatcher()
            return self._dispatcher


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@cache
def _has_numba() -> bool:
    try:
        return importlib.util.find_spec("numba") is not None
    except ModuleNotFoundError:
        return False


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


def _compile(function: Any, options: dict[str, Any]) -> Any:
    from numba import config
    from numba.core.registry import CPUDispatcher

    if config.DISABLE_JIT:
        return function
    dispatcher = CPUDispatcher(py_func=function, locals={}, targetoptions=dict(options))
    folder = _folder(Path(function.__code__.co_filename))
    if folder is None:
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
    from numba.core.compiler_lock import global_compiler_lock

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
            imported = _SOURCES.joinpath(*name.decode().split(".")).with_suffix(".py")
            if (
                imported not in found
                and imported.is_file()
                and b"from ebbtide.base.compiling" in imported.read_bytes()
            ):
                waiting.append(imported)
    return found
