"""How functions here are compiled, and where the result is kept from run to run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
from numba import config, njit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    return _compile(function)


def inner(function: _Function) -> _Function:
    """Compile a function that only compiled code calls: what Python would need to call it costs as much again."""
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compile(function: Any, **options: bool) -> Any:
    folder = _folder()
    if folder is None:
        return njit(nogil=True, error_model="numpy", **options)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        return njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> Path | None:
    """A folder for these very sources; None: nothing can be kept.

    Numba looks only whether a function's own file has changed, not those of the functions compiled into it.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = platformdirs.user_cache_path("ebbtide") / "compiled" / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder
