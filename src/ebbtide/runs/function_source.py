"""Writes a program file for a function that has none, such as one of a notebook, with the source of what it uses.

Whatever the function uses is found by name: imports as they were written, functions and classes beside it by their
source, plain constants by their value. Nothing is pickled: the file shows all that a machine runs.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import logging
import pprint
import symtable
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ebbtide.agent.code_files import is_like_secret
from ebbtide.errors import InputError
from ebbtide.runs.function_state import AsItIs, are_alike, bindings_of, definitions_in, is_plain, shape_of

_LOGGER = logging.getLogger(__name__)

# A constant with more characters is data, which belongs in a file.
_MOST_CHARACTERS = 100_000
_WIDTH = 110
# Expressions that may do more than make a value.
_MAY_DO_MORE = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda, ast.comprehension)
# Stands for a missing value.
_NOTHING = object()
# Frames, roughly, from a warning to the user's line that begins the run.
_ABOVE = 6
# Names that notebooks add to the builtins.
_OF_NOTEBOOKS = frozenset({"display", "get_ipython", "exit", "quit"})


def program_text(function: FunctionType, decorator: object = None) -> str:
    """The text of a module in which a function is defined, with all that it uses.

    Args:
        function: A function of a notebook, or of a file that cannot be imported.
        decorator: The decorator to leave out, since a machine calls the function itself.

    Raises:
        InputError: Its source is not known, or it uses something that has none and is no plain constant.
    """
    check_function(function)
    writer = _Writer(function, decorator)
    writer.add_function(function)
    return writer.text()


def check_function(function: object) -> None:
    """Raise `InputError` for anything that a machine could not call by its name."""
    if inspect.ismethod(function):
        raise InputError(
            f"{function.__qualname__} is a method, and its object is not sent to machines: write a function that "
            "makes the object"
        )
    if not isinstance(function, FunctionType):
        raise InputError(f"what trains is a function, written with `def`; this is a {type(function).__name__}")
    name = function.__name__
    if name == "<lambda>":
        raise InputError("a lambda has no name by which a machine could call it: write it with `def`")
    if function.__code__.co_freevars and "<locals>" in function.__qualname__:
        held = ", ".join(function.__code__.co_freevars)
        raise InputError(
            f"{name} uses {held} of the function around it, which is not sent to machines: define it at the top "
            "level, with parameters"
        )
    if function.__qualname__ != name:
        raise InputError(
            f"{function.__qualname__} is within another function or class: define {name} at the top level"
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InputError(
            f"{name} only makes a coroutine or generator when it is called: write it as a plain `def`"
        )


class _Writer:
    """Collects what a function uses.

    Args:
        function: The function.
        decorator: The decorator to leave out.
    """

    def __init__(self, function: FunctionType, decorator: object) -> None:
        self._function, self._decorator = function, decorator
        self._space: Mapping[str, Any] = function.__globals__
        self._imports: dict[str, None] = {}
        self._constants: list[str] = []
        self._sources: list[str] = []
        self._bound: dict[str, object] = {}
        # Plain constants by name; and for each of their lists and dictionaries, by id, the constant's name.
        self._plain: dict[str, object] = {}
        self._parts: dict[int, str] = {}

    def text(self) -> str:
        """The module's text."""
        about = f'"""Written by Ebbtide: {self._function.__name__}, with what it uses."""'
        future = self._function.__code__.co_flags & annotations.compiler_flag
        parts = ["from __future__ import annotations"] if future else []
        # Packages before their submodules, then `from` imports.
        parts += ["\n".join(sorted(self._imports, key=lambda line: (line.startswith("from"), line)))]
        parts += ["\n".join(self._constants)]
        top = "\n\n".join([about, *(part for part in parts if part)])
        return "\n\n\n".join([top, *self._sources]) + "\n"

    def add_function(self, function: FunctionType, name: str = "") -> None:
        """Add a function, after whatever it uses."""
        check_function(function)
        self._check_name(function)
        source = self._undecorated(textwrap.dedent(_block(function.__code__, function.__name__)))
        state = self._state(source)
        (node,) = ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._check_decorators(node, function)
            state.add_function(node, function, function.__name__)
        self._add(state.text(), function.__name__, name)

    def _add_class(self, found: type, name: str) -> None:
        self._check_name(found)
        source = textwrap.dedent(self._class_source(found))
        state = self._state(source)
        (node,) = ast.parse(source).body
        assert isinstance(node, ast.ClassDef)
        state.add_class(node, found, str(self._space.get("__name__")))
        self._add(state.text(), found.__name__, name)

    def _state(self, source: str) -> AsItIs:
        return AsItIs(source, self._value_of, self._is_stable, self._check_current, _warn_of_secret)

    def _check_current(self, value: object, what: str) -> None:
        """Check that functions and classes in a value are those that their names mean now."""
        for one in definitions_in(value):
            now = self._space.get(one.__name__)
            if not self._is_beside(one) or not isinstance(now, FunctionType | type):
                continue
            if not are_alike(now, one) and not are_alike(inspect.unwrap(now), one):
                raise InputError(
                    f"{what} was made with an earlier {one.__name__}, which has been defined again since: define "
                    f"{what} again, too"
                )

    def _check_decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType) -> None:
        """Check that what the notebook's decorators made of a function is what they would make of it now."""
        made, makers = self._space.get(function.__name__), dict[int, CodeType]()
        for decorator in node.decorator_list:
            for part in ast.walk(decorator):
                if isinstance(part, ast.Name | ast.Attribute):
                    self._add_codes(self._value_of(part), makers)
        inner = [one for maker in makers.values() for one in _codes_in(maker)]
        while isinstance(made, FunctionType) and made is not function:
            same = [one for one in inner if one.co_qualname == made.__code__.co_qualname]
            if same and all(shape_of(one) != shape_of(made.__code__) for one in same):
                raise InputError(
                    f"a decorator of {function.__name__} has been defined again since: define "
                    f"{function.__name__} again, too"
                )
            made = getattr(made, "__wrapped__", None)

    def _add_codes(self, value: object, found: dict[int, CodeType]) -> None:
        """Add the code of a function or a class of the notebook, and of all that it names."""
        value = inspect.unwrap(value) if callable(value) else value
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, type) and self._is_beside(value):
            for part in vars(value).values():
                self._add_codes(part, found)
        elif isinstance(value, FunctionType) and value.__globals__ is self._space and id(value) not in found:
            found[id(value)] = value.__code__
            for code in (value.__code__, *_codes_in(value.__code__)):
                for name in code.co_names:
                    self._add_codes(self._space.get(name), found)

    def _is_stable(self, expression: ast.expr) -> bool:
        """Return whether the plain values in an expression were set at most once, so that they are unchanged."""
        names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        return all(self._times_bound[name] <= 1 for name in names if is_plain(self._space.get(name, _NOTHING)))

    @cached_property
    def _times_bound(self) -> Counter[str]:
        return Counter(name for _, tree in self._cells for name in bindings_of(tree))

    def _check_name(self, found: Any) -> None:
        """Check that a definition's own name does not mean something else by now."""
        other = self._space.get(found.__name__, found)
        if other is not found and inspect.unwrap(other) is not found:
            raise InputError(f"{found.__name__} was defined again, and both are used: give one another name")
        self._bound[found.__name__] = other

    def _add(self, source: str, own: str, name: str) -> None:
        for used in _names_used(source):
            self._bind(used, own)
        self._bind_evaluated(source, own)
        for chain in _chains(source):
            self._import_submodules(chain)
        self._sources.append(source.strip("\n"))
        if name not in ("", own):
            self._sources.append(f"{name} = {own}")

    def _bind_evaluated(self, source: str, user: str) -> None:
        """Bind names in text that is evaluated; warn about text that is only made at run time."""
        for called, text in _evaluated(source):
            if text is None:
                warnings.warn(
                    f"{user} calls {called} on what is made while it runs: functions and values that only this "
                    "names are not sent to machines, and it fails there; name them in the function as well",
                    stacklevel=_ABOVE,
                )
                continue
            for name in _names_used(text.strip()):
                if name in self._space and not hasattr(builtins, name):
                    self._bind(name, user)

    def _bind(self, name: str, user: str) -> None:
        """Make a name mean in the file what it means in the notebook."""
        if name in self._bound:
            return
        if name not in self._space:
            if hasattr(builtins, name) and name not in _OF_NOTEBOOKS:
                return
            if name in _OF_NOTEBOOKS:
                raise InputError(f"{user} uses `{name}` (or a line with ! or %), which only notebooks have")
            raise InputError(f"{user} uses `{name}`, which is not defined")
        value = self._bound[name] = self._space[name]
        plain = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
        if (line := self._import_of(name, value)) is not None:
            self._imports[line] = None
        elif isinstance(plain, FunctionType) and self._is_beside(plain):
            self.add_function(plain, name)
        elif isinstance(value, type) and self._is_beside(value):
            self._add_class(value, name)
        elif is_plain(value):
            self._add_constant(name, value, user)
        elif name in _OF_NOTEBOOKS:
            raise InputError(f"{user} uses `{name}` (or a line with ! or %), which only notebooks have")
        else:
            raise InputError(
                f"{user} uses `{name}`, a {_kind(value)}, which is not sent to machines: make or read it within "
                f"{user}, or give {user} a parameter for what it is made from"
            )

    def _is_beside(self, value: Any) -> bool:
        return bool(value.__module__ == self._space.get("__name__"))

    def _add_constant(self, name: str, value: object, user: str) -> None:
        """Add a constant; a second name of a mutable one becomes a second name in the file as well.

        Raises:
            InputError: It shares a mutable part with another constant, or holds one twice.
        """
        same = next((other for other, known in self._plain.items() if known is value), None)
        self._plain[name] = value
        if same is not None and isinstance(value, list | dict):
            self._constants.append(f"{name} = {same}")
            return
        for part in _changeable(value):
            if id(part) in self._parts:
                raise InputError(
                    f"{user} uses `{name}`, which shares a {type(part).__name__} with `{self._parts[id(part)]}`: "
                    "on a machine a change of one would not be one of the other; make it within the function"
                )
            self._parts[id(part)] = name
        _warn_of_secret(name, value, f"`{name}`, which {user} uses,")
        self._constants.append(self._constant(name, value, user))

    def _constant(self, name: str, value: object, user: str) -> str:
        text = pprint.pformat(value, width=_WIDTH - len(name) - 3, sort_dicts=False, compact=True)
        if len(text) > _MOST_CHARACTERS:
            raise InputError(
                f"{user} uses `{name}`, a {_kind(value)} of {len(text):,} characters, which is data: write it "
                f"into a file that {user} reads"
            )
        if isinstance(value, str):
            text = repr(value)
        return f"{name} = {text}"

    # Imports.

    def _import_of(self, name: str, value: Any) -> str | None:
        """The import that gives a name its value; None: there is none."""
        for line, module, attribute in self._written.get(name, ()):
            if _imported(module, attribute) is value:
                return line
        if isinstance(value, ModuleType):
            if value.__name__ == "__main__":
                return None
            return f"import {value.__name__}" + ("" if name == value.__name__ else f" as {name}")
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(home, str) or not isinstance(own, str) or "." in own or is_plain(value):
            return None
        if home == self._space.get("__name__") or _imported(home, own) is not value:
            return None
        return f"from {home} import {own}" + ("" if name == own else f" as {name}")

    @cached_property
    def _written(self) -> dict[str, list[tuple[str, str, str]]]:
        """The imports that were written in the notebook, by the name that each binds: line, module, attribute."""
        found: dict[str, list[tuple[str, str, str]]] = {}
        for _, tree in self._cells:
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        name = alias.asname or alias.name.partition(".")[0]
                        module = alias.name if alias.asname else name
                        line = f"import {module}" + (f" as {name}" if alias.asname else "")
                        found.setdefault(name, []).insert(0, (line, module, ""))
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    for alias in node.names:
                        name = alias.asname or alias.name
                        line = f"from {node.module} import {alias.name}"
                        line += f" as {name}" if alias.asname else ""
                        found.setdefault(name, []).insert(0, (line, node.module, alias.name))
        return found

    def _import_submodules(self, chain: list[str]) -> None:
        """Import `a.b` where `a.b.c` is used: `import a` alone does not always bring it."""
        module = self._bound.get(chain[0])
        for attribute in chain[1:]:
            if not isinstance(module, ModuleType):
                return
            name, module = f"{module.__name__}.{attribute}", getattr(module, attribute, None)
            if module is not None and module is sys.modules.get(name) and f"import {chain[0]}" in self._imports:
                self._imports[f"import {name}"] = None

    # Sources.

    @cached_property
    def _cells(self) -> list[tuple[str, ast.Module]]:
        """Text and syntax tree of each cell of the notebook, or of the whole file if the function is in one."""
        file = self._function.__code__.co_filename
        names = [file] if Path(file).is_file() else [name for name in linecache.cache if not Path(name).is_file()]
        found = []
        for name in names:
            text = "".join(linecache.getlines(name))
            try:
                found.append((text, ast.parse(text)))
            except (SyntaxError, ValueError):
                continue
        return found

    def _class_source(self, found: type) -> str:
        codes = [value.__code__ for value in vars(found).values() if isinstance(value, FunctionType)]
        places = {code.co_filename for code in codes if code.co_qualname == f"{found.__qualname__}.{code.co_name}"}
        texts = ["".join(linecache.getlines(place)) for place in places]
        sources = set()
        for text, tree in self._cells:
            for node in tree.body:
                is_it = isinstance(node, ast.ClassDef) and node.name == found.__name__
                if is_it and (text in texts or not any(texts)):
                    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])  # type: ignore[attr-defined]
                    sources.add("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
        if len(sources) != 1:
            several = "has several sources in this notebook" if sources else "has no source that is known"
            raise InputError(f"class {found.__qualname__} {several}: put it into a module, and import it")
        return sources.pop()

    def _undecorated(self, source: str) -> str:
        """The source without Ebbtide's own decorator."""
        lines = source.splitlines()
        (node,) = ast.parse(source).body
        for used in reversed(getattr(node, "decorator_list", [])):
            called = used.func if isinstance(used, ast.Call) else used
            if self._decorator is not None and self._value_of(called) is self._decorator:
                del lines[used.lineno - 1 : used.end_lineno]
        return "\n".join(lines)

    def _value_of(self, node: ast.expr) -> object:
        if isinstance(node, ast.Name):
            return self._space.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._value_of(node.value), node.attr, None)
        # An expression of plain constants alone, without a call, can be evaluated again.
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        plain = {name: self._space[name] for name in names if is_plain(self._space.get(name, _NOTHING))}
        if len(plain) < len(names) or any(isinstance(one, _MAY_DO_MORE) for one in ast.walk(node)):
            return None
        try:
            return eval(compile(ast.Expression(node), "<default>", "eval"), {"__builtins__": {}}, plain)
        except Exception:
            return None


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """The codes of functions that a function's code makes."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes_in(one)


def _changeable(value: object) -> Iterator[object]:
    """The lists and dictionaries in a plain constant, itself included."""
    if isinstance(value, list | dict):
        yield value
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _changeable(part)


def _evaluated(source: str) -> Iterator[tuple[str, str | None]]:
    """Pairs of what evaluates text, and the text; None: it is only made at run time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            given = node.args[0] if node.args else None
            is_text = isinstance(given, ast.Constant) and isinstance(given.value, str)
            text = given.value if is_text else None  # type: ignore[union-attr]
            yield f"`{node.func.id}`", text if text is not None and _can_be_parsed(text) else None
        elif isinstance(node, ast.Subscript) and _is_globals(node.value):
            name = node.slice
            is_name = isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isidentifier()
            yield "`globals()`", name.value if is_name else None  # type: ignore[attr-defined]
        elif isinstance(node, ast.Attribute) and _is_globals(node.value):
            yield "`globals()`", None


def _is_globals(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "globals"


def _can_be_parsed(text: str) -> bool:
    try:
        ast.parse(text.strip())
    except (SyntaxError, ValueError):
        return False
    return True


def _kind(value: object) -> str:
    module = type(value).__module__.partition(".")[0]
    name = type(value).__name__
    return name if module in ("builtins", "__main__") else f"{module} {name}"


def _block(code: CodeType, name: str) -> str:
    """The source of a function as it was entered."""
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise InputError(
            f"the source of {name} is not known ({code.co_filename}): define it in a notebook, a script or a "
            "module"
        )
    return "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))


def _names_used(source: str) -> list[str]:
    """Names of globals that a definition needs, in alphabetical order."""
    table = symtable.symtable(source, "<program>", "exec")
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    for inner in _tables(table):
        used |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global()}
    return sorted(used - own)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for inner in table.get_children():
        yield inner
        yield from _tables(inner)


def _chains(source: str) -> list[list[str]]:
    """Dotted names such as `a.b.c`, in parts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name):
            found.append([node.id, *parts])
    return found


def _imported(module: str, attribute: str) -> object:
    """Find what an import would give, among the modules already imported; None: nothing."""
    found = sys.modules.get(module)
    if not attribute:
        return found
    return getattr(found, attribute, None) or sys.modules.get(f"{module}.{attribute}")


def _warn_of_secret(name: str, value: object, what: str) -> None:
    if is_like_secret(name, value):
        _LOGGER.warning(
            "%s may be a secret, and is sent in plain text with the code: name an environment variable in "
            "`secrets`, and read it within the function",
            what,
        )
