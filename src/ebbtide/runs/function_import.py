"""Checks that a function imported by machines is the same there as here: values changed since are not sent."""

from __future__ import annotations

import ast
import dis
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from ebbtide.errors import InputError
from ebbtide.runs.function_state import bindings_of, differs_from_source, is_plain, literals_of

# Frames, roughly, from a warning to the user's line that begins the run.
_ABOVE = 5


def check_as_imported(function: FunctionType) -> None:
    """Check that a function's defaults, and the constants that it uses, are what importing its file gives.

    Raises:
        InputError: A default or a constant was changed since its file was run, or is only set if the file is run
            as a script.
    """
    file = function.__code__.co_filename
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return  # it runs, so it is not what is read here
    guarded = {name for part in tree.body if _is_guard(part) for name in _bound_in(part)}
    imported = {name for part in tree.body if not _is_guard(part) for name in _bound_in(part)}
    literals, by_function = literals_of(tree), _declared_global(tree)
    definitions = {
        part.name: part for part in tree.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for user in _beside(function):
        name = user.__name__
        node = definitions.get(name)
        if node is not None and (parameter := differs_from_source(node, user)):
            raise InputError(
                f"the default of {parameter} of {name} was changed after its definition, and machines import it "
                f"as it is written: give {function.__name__} a parameter",
                file=file,
            )
        for used in sorted(_names_of(user.__code__)):
            if used in guarded - imported and used in user.__globals__:
                raise InputError(
                    f"{name} uses {used}, which is set only where this script is run, below `__name__`; machines "
                    f"import it: set it above, or give {function.__name__} a parameter",
                    file=file,
                )
            if used not in literals or isinstance(literals[used], list | dict | set):
                continue
            here = user.__globals__.get(used)
            if not is_plain(here) or repr(here) == repr(literals[used]):
                continue
            problem = (
                f"{name} uses {used}, which is {here!r:.40} here and {literals[used]!r:.40} in the file that "
                f"machines import: give {function.__name__} a parameter"
            )
            if used not in by_function:
                raise InputError(problem, file=file)
            # A function that is called during the import may set it there as well.
            warnings.warn(problem, stacklevel=_ABOVE)


def _beside(function: FunctionType) -> Iterator[FunctionType]:
    """A function, and the functions of its file that it uses."""
    known: set[str] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if one.__name__ in known:
            continue
        known.add(one.__name__)
        yield one
        found = (one.__globals__.get(name) for name in _names_of(one.__code__))
        file = function.__code__.co_filename
        waiting += [each for each in found if isinstance(each, FunctionType) and each.__code__.co_filename == file]


def _names_of(code: CodeType) -> set[str]:
    """Names of globals in a function's code, and in the code of functions within it."""
    found = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names_of(constant)
    return found


def _bound_in(part: ast.stmt) -> set[str]:
    names = set(bindings_of(ast.Module([part], [])))
    for node in ast.walk(part):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def _declared_global(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _is_guard(part: ast.stmt) -> bool:
    return isinstance(part, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(part.test)
    )
