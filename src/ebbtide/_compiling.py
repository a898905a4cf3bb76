"""Functions in compiled code, and where the result of compiling is kept from run to run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import platformdirs
from numba import config, njit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    return cast(_Function, _compile(function))


def inner(function: _Function) -> _Function:
    """Compile a function that only compiled code calls: what Python would need to call it costs as much again."""
    return cast(_Function, _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True))


def _compile(function: Any, **options: bool) -> Any:
    folder = _folder(Path(function.__code__.co_filename).parent)
    if folder is None:
        return njit(nogil=True, error_model="numpy", **options)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        return njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    finally:
        config.CACHE_DIR = before


@cache
def _folder(package: Path) -> Path | None:
    """A folder for the very sources of a package; None: nothing can be kept.

    Numba looks only whether a function's own file has changed, not those of the functions compiled into it; these
    are to be in the same package.
    """
    sources = sorted(package.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = platformdirs.user_cache_path("ebbtide") / "compiled" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder
