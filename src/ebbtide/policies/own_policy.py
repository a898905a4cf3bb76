"""A user's own policy, named on the command line: `my_policy.py:Mine` or `package.module:Mine`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from ebbtide.errors import InputError
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy

# The members that a policy needs, and what each of them is.
_PARTS = {
    "name": "the text it is called by in tables",
    "wakes_on": "a frozenset of Wake, empty for nothing beyond what is always delivered",
    "decide": "decide(view), which answers with actions",
}

# A traceback may end in library code: the line to report is the nearest one outside these folders.
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))

_loaded: dict[Path, bytes] = {}


def is_own(text: str) -> bool:
    """Whether a policy's name refers to the user's own code."""
    return ":" in text or text.endswith(".py")


def load_policy(text: str) -> Policy:
    """The policy at `FILE.py:NAME` or `package.module:NAME`.

    A class without required arguments is instantiated, a function without required arguments is called, an
    instance is used as it is.

    Raises:
        InputError: The file, module or name does not exist, the module cannot be imported, the class needs
            arguments, or the object is not a policy; the message says which, where, and how to correct it.
    """
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    module = load_file(place) if place.endswith(".py") or os.sep in place else _imported(place)
    if not name:
        raise InputError(f"name the policy in {place}, as in {place}:{_first(_candidates(module))}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [each for each in vars(module) if not each.startswith("_")], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            has = f"; policies there: {', '.join(_candidates(module))}" if _candidates(module) else ""
            raise InputError(f"{place} has no {name!r}{hint}{has}")
        found = getattr(found, part)
    return _checked(_made(found, text), text)


def load_file(path: str | Path) -> ModuleType:
    """Import a Python file, which may import modules beside it. A file is imported only once.

    Raises:
        InputError: The file does not exist, or raises while it is imported; the message names the line.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError("no such file; a policy of your own is named FILE.py:NAME", file=file)
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
    # Nothing is left in the folder of somebody's policy.
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        _search(file.parent)
        with _as_input_errors(str(path), str(file)):
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


def _imported(name: str) -> ModuleType:
    try:
        _search(Path.cwd())
        with _as_input_errors(name, ""):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"there is no module {error.name!r} to import for policy {name!r}, neither installed nor in "
            f"{Path.cwd()}; a file is named with its ending: {name.split('.')[-1]}.py:NAME"
        ) from None


def _search(folder: Path) -> None:
    """Add a folder at the end of the module search path, so that it hides no other module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@contextmanager
def _as_input_errors(shown: str, file: str) -> Iterator[None]:
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


def _made(found: Any, text: str) -> Any:
    """The policy for the named object: an instance of a class, the result of a function, or the object itself."""
    if not isinstance(found, type) and hasattr(found, "decide"):
        return found
    if not callable(found):
        raise InputError(
            f"{text} is {_a(type(found).__name__)}, not a policy: name a class, a function that gives a "
            "policy, or a policy"
        )
    if isinstance(found, type) and not hasattr(found, "decide"):
        # Checked before it is instantiated: the arguments it would need do not matter.
        raise InputError(f"{text} is no policy: it has no `decide` ({_PARTS['decide']})")
    kind = "class" if isinstance(found, type) else "function"
    needed = _required(found)
    if needed:
        raise InputError(
            f"{kind} {text} needs arguments ({', '.join(needed)}); give them defaults, or name a function without "
            "arguments that gives the policy"
        )
    with _as_input_errors(text, ""):
        return found()


def _required(found: Any) -> list[str]:
    """Names of the arguments that have no default."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is inspect.Parameter.empty and each.kind not in loose]


def _checked(found: Any, text: str) -> Policy:
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if missing:
        missing_parts = "; ".join(f"no `{part}` ({_PARTS[part]})" for part in missing)
        raise InputError(f"{text} is no policy: it has {missing_parts}")
    if not isinstance(found.name, str) or not found.name.strip():
        raise InputError(f"{text}: `name` is {found.name!r}; it should be {_PARTS['name']}")
    if not isinstance(found.wakes_on, frozenset | set) or not all(
        isinstance(each, Wake) for each in found.wakes_on
    ):
        raise InputError(f"{text}: `wakes_on` is {found.wakes_on!r}; it should be {_PARTS['wakes_on']}")
    if not callable(found.decide):
        raise InputError(f"{text}: `decide` is {found.decide!r}; it should be {_PARTS['decide']}")
    policy: Policy = found
    return policy


def _candidates(module: ModuleType) -> list[str]:
    """Names in a module that look like policies defined there."""
    return [
        name
        for name, found in vars(module).items()
        if not name.startswith("_")
        and hasattr(found, "decide")
        and (not isinstance(found, type) or found.__module__ == module.__name__)
    ]


def _first(names: list[str]) -> str:
    return names[0] if names else "NAME"


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
