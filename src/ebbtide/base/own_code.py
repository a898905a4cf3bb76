"""The user's own code, named on the command line or in a file: `mine.py:Name` or `package.module:Name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from ebbtide.errors import InputError

# A traceback may end in library code: the line to report is the nearest one outside these folders.
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))

_loaded: dict[Path, bytes] = {}


def find(text: str, what: str, candidates: Callable[[ModuleType], Sequence[str]]) -> Any:
    """The object at `FILE.py:NAME` or `package.module:NAME`.

    Args:
        text: Where it is, as the user named it.
        what: What it should be, for errors: `policy`.
        candidates: Gives the names in a module that look like one.

    Raises:
        InputError: The file, module or name does not exist, or the module cannot be imported.
    """
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    module = load_file(place, what) if place.endswith(".py") or os.sep in place else _imported(place, what)
    if not name:
        first = next(iter(candidates(module)), "NAME")
        raise InputError(f"name the {what} in {place}, as in {place}:{first}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [each for each in vars(module) if not each.startswith("_")], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
            has = f"; {plural} there: {', '.join(candidates(module))}" if candidates(module) else ""
            raise InputError(f"{place} has no {name!r}{hint}{has}")
        found = getattr(found, part)
    return found


def load_file(path: str | Path, what: str = "policy") -> ModuleType:
    """Import a Python file, which may import modules beside it. A file is imported only once.

    Args:
        path: Path of the file.
        what: What it should hold, for errors.

    Raises:
        InputError: The file does not exist, or raises while it is imported; the message names the line.
    """
    file = Path(path)
    try:
        is_there = file.is_file()
    except (OSError, ValueError):
        is_there = False  # no name that a file can have
    if not is_there:
        raise InputError(f"no such file; a {what} of your own is named FILE.py:NAME", file=file)
    file = file.resolve()
    # The name comes from the path, so that worker processes that load the file use the same name for its classes.
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError("is no Python file; its name should end in .py", file=file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    read = file.read_bytes()
    # Nothing is left in the user's folder.
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        _search(file.parent)
        with as_input_errors(str(path), str(file)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
    _loaded[file] = read
    return module


def loaded_files() -> tuple[Path, ...]:
    """The files that `load_file` has imported and that have not changed since: other processes can load them."""
    return tuple(file for file, read in _loaded.items() if _content(file) == read)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _imported(name: str, what: str) -> ModuleType:
    try:
        _search(Path.cwd())
        with as_input_errors(name, ""):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"there is no module {error.name!r} to import for {what} {name!r}, neither installed nor in "
            f"{Path.cwd()}; a file is named with its ending: {name.split('.')[-1]}.py:NAME"
        ) from None


def _search(folder: Path) -> None:
    """Add a folder at the end of the module search path, so that it hides no other module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def as_input_errors(shown: str, file: str) -> Iterator[None]:
    """Turn an error in the user's code into an `InputError` with its file, line and message.

    Args:
        shown: The file or module, as the user named it.
        file: Its path, to find the line in the traceback; empty: a module, whose file comes from the traceback.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        # If the named module itself is missing, the caller reports it, with the folders that were searched.
        if not file and error.name and (shown == error.name or shown.startswith(f"{error.name}.")):
            raise
        raise _as_input(error, shown, file) from None
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise _as_input(error, shown, file) from None


def _as_input(error: BaseException, shown: str, file: str) -> InputError:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return InputError(f"line {error.lineno}: SyntaxError: {error.msg}", file=error.filename)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_importing(frame.filename)]
    theirs = [frame for frame in frames if frame.filename == file]
    nearest = theirs or [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    if not nearest:
        return InputError(what, file=shown)
    return InputError(f"line {nearest[-1].lineno}: {what}", file=shown if theirs else nearest[-1].filename)


def _is_importing(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or filename == importlib.__file__
