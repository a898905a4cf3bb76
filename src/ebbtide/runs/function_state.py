"""Source of definitions, with the values that their defaults and attributes have now.

A definition is evaluated once, in its place: `def fit(n=N)` keeps the N of that moment, whatever N is later.
Attributes set on a function or a class afterwards are in no source. So running the source again would differ.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import EnumType
from types import CodeType, FunctionType
from typing import Any

from ebbtide.errors import InputError

# Gives the value that an expression of names and attributes has now; None: it has none.
ValueOf = Callable[[ast.expr], object]


@dataclass
class AsItIs:
    """Collects the edits that bring a source up to date.

    Attributes:
        source: The source of a function or a class, not indented.
        value_of: Gives the value that a name has now.
        is_stable: Whether all names of an expression still mean what they meant when it was evaluated.
        check_current: Raises `InputError` if a value holds a function or a class that has been defined again; also
            takes the name of that value.
        warn_of_secret: Warns if a value that is written into the source may be a secret; takes its own name, the
            value, and its name in words.
        edits: Ranges of bytes in the source, each with the text that replaces it.
        after: Lines to run after the source.
    """

    source: str
    value_of: ValueOf
    is_stable: Callable[[ast.expr], bool]
    check_current: Callable[[object, str], None]
    warn_of_secret: Callable[[str, object, str], None]
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The edited source, followed by the lines to run after it."""
        content = self.source.encode()
        for first, end, text in sorted(self.edits, reverse=True):
            content = content[:first] + text.encode() + content[end:]
        return "\n".join([content.decode().strip("\n"), *self.after])

    def add_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType, name: str
    ) -> None:
        """Write a function's present defaults, and the attributes that were set on it.

        Raises:
            InputError: A present value cannot be written.
        """
        written, actual = _written_defaults(node), defaults_of(function)
        if set(written) != set(actual):
            changed = ", ".join(sorted(set(written) ^ set(actual)))
            raise InputError(
                f"the defaults of {name} ({changed}) were changed after its definition: define it again"
            )
        for parameter, expression in written.items():
            self._value(expression, actual[parameter], parameter, f"the default of {parameter} of {name}")
        for one in node.decorator_list:
            if not self.is_stable(one):
                raise InputError(
                    f"a decorator of {name} uses a value that was set more than once, and may have been another "
                    "then: write the value itself"
                )
        for attribute, value in vars(function).items():
            if attribute == "__wrapped__":
                continue
            if is_plain(value):
                self._set(name, attribute, value)
            elif not node.decorator_list:
                raise InputError(
                    f"{name}.{attribute} was set to a {type(value).__name__}, which is not sent to machines"
                )

    def add_class(self, node: ast.ClassDef, found: type, module: str) -> None:
        """Write the present attributes of a class, and the present defaults of its methods.

        Raises:
            InputError: A present value cannot be written.
        """
        self.check_current(found.__bases__, f"class {found.__name__}")
        written: set[str] = set()
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                written.add(part.name)
                value = vars(found).get(part.name)
                value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not isinstance(value, FunctionType):
                    continue
                if value.__code__.co_qualname == f"{found.__qualname__}.{part.name}" or part.decorator_list:
                    self._method(part, value, found)
                else:
                    raise InputError(
                        f"{found.__name__}.{part.name} was set after its class was defined: define it there"
                    )
            for name, expression in _assigned(part):
                written.add(name)
                if expression is not None and name in vars(found):
                    self._attribute(name, expression, vars(found)[name], found)
        for name, value in vars(found).items():
            if name in written or name.startswith("_"):
                continue
            if is_plain(value):
                self._set(found.__name__, name, value)
            elif isinstance(value, FunctionType) and value.__module__ == module:
                raise InputError(f"{found.__name__}.{name} was set after its class was defined: define it there")

    def _method(self, node: ast.FunctionDef | ast.AsyncFunctionDef, method: FunctionType, found: type) -> None:
        if method.__code__.co_qualname != f"{found.__qualname__}.{node.name}":
            return  # a decorator replaced the method
        written, actual = _written_defaults(node), defaults_of(method)
        for parameter in written.keys() & actual.keys():
            self._value(
                written[parameter],
                actual[parameter],
                parameter,
                f"the default of {parameter} of {found.__name__}.{node.name}",
            )

    def _attribute(self, name: str, expression: ast.expr, value: object, found: type) -> None:
        self.check_current(value, f"{found.__name__}.{name}")
        literal = _literal(expression)
        if literal is _NONE_SUCH:
            if is_plain(value):
                self._value(expression, value, name, f"{found.__name__}.{name}")
            elif not self.is_stable(expression):
                raise InputError(f"{found.__name__}.{name} {_MADE_OF_OTHERS}")
        elif is_plain(value) and not _same(literal, value):
            # The definition stays, since a dataclass takes its default from there.
            self._set(found.__name__, name, value)

    def _set(self, owner: str, name: str, value: object) -> None:
        """Set an attribute of a function or a class after its definition."""
        self.warn_of_secret(name, value, f"{owner}.{name}")
        self.after.append(f"{owner}.{name} = {value!r}")

    def _value(self, expression: ast.expr, value: object, name: str, what: str) -> None:
        """Make an expression give a value."""
        literal = _literal(expression)
        now = self.value_of(expression) if literal is _NONE_SUCH else literal
        # A name has to mean the very same list or dictionary, since others may change it.
        must_be_it = _is_name(expression) and isinstance(value, list | dict)
        is_same = now is value or (not must_be_it and is_plain(value) and _same(now, value))
        is_same = is_same or (literal is not _NONE_SUCH and _same(literal, value))
        # A name without a known value gives None as well.
        if is_same and (value is not None or literal is None):
            return
        if is_plain(value):
            self.warn_of_secret(name, value, what)
            self.edits.append((*self._place(expression), repr(value)))
        elif literal is not _NONE_SUCH or _is_name(expression):
            raise InputError(f"{what} is a {type(value).__name__} that is not sent to machines: make it within it")
        elif not self.is_stable(expression):
            raise InputError(f"{what} {_MADE_OF_OTHERS}")

    def _place(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        starts = [0]
        for line in self.source.encode().splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


_MADE_OF_OTHERS = (
    "was made at its definition, from a value that was set more than once and may have been another then: write "
    "the value itself, or make it within it"
)


def is_plain(value: object, within: tuple[int, ...] = ()) -> bool:
    """Return whether a value is a plain constant: what JSON can hold, and tuples.

    Args:
        value: Value of any type.
        within: Ids of the containers around the value; a container that holds itself is not plain.
    """
    if type(value) is float:
        return math.isfinite(value)
    if type(value) in (list, tuple, dict):
        if id(value) in within:
            return False
        parts: Any = value
        if isinstance(value, dict):
            if not all(type(key) in (str, int) for key in value):
                return False
            parts = value.values()
        return all(is_plain(part, (*within, id(value))) for part in parts)
    return value is None or type(value) in (bool, int, str)


def defaults_of(function: FunctionType) -> dict[str, object]:
    """The defaults that a function has now, by parameter."""
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    return {**dict(zip(names[len(names) - len(given) :], given, strict=True)), **(function.__kwdefaults__ or {})}


def definitions_in(value: object, within: tuple[int, ...] = ()) -> Iterator[FunctionType | type]:
    """The functions and classes in a value: itself, those of a static or class method, or of a container.

    Args:
        value: Value of any type.
        within: Ids of the containers around the value.
    """
    if isinstance(value, FunctionType | type):
        yield value
    elif isinstance(value, staticmethod | classmethod):
        yield from definitions_in(value.__func__)
    elif isinstance(value, list | tuple | set | frozenset | dict) and id(value) not in within:
        for one in value.values() if isinstance(value, dict) else value:
            yield from definitions_in(one, (*within, id(value)))


def are_alike(one: object, other: object, within: tuple[int, ...] = ()) -> bool:
    """Return whether two values are the same, or definitions that a cell made when it was run twice.

    Args:
        one: Value of any type.
        other: Value of any type.
        within: Ids of the classes and containers around the first value.
    """
    if one is other or id(one) in within:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return shape_of(one.__code__) == shape_of(other.__code__) and _same(defaults_of(one), defaults_of(other))
    within = (*within, id(one))
    if isinstance(one, type) and isinstance(other, type):
        of_one, of_other = _made_of(one), _made_of(other)
        if isinstance(one, EnumType) and isinstance(other, EnumType):
            of_one, of_other = _members_of(one), _members_of(other)
    elif isinstance(one, staticmethod | classmethod | property):
        of_one, of_other = _made_of(one), _made_of(other)
    elif isinstance(one, dict) and isinstance(other, dict):
        of_one, of_other = one, other
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        of_one, of_other = dict(enumerate(one)), dict(enumerate(other))
    else:
        # Other objects that a cell made show no more than their type.
        return _same(one, other) if is_plain(one) else True
    return of_one.keys() == of_other.keys() and all(
        are_alike(of_one[key], of_other[key], within) for key in of_one
    )


def _members_of(found: EnumType) -> dict[Any, object]:
    members: dict[str, Any] = dict(found.__members__)
    return {name: member.value for name, member in members.items()}


def shape_of(code: CodeType) -> tuple[object, ...]:
    """A function's code without its place in the source."""
    constants = [shape_of(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, *constants


# Parts of a property and of other methods that are not called as they stand.
_PARTS = ("__func__", "fget", "fset", "fdel")


def _made_of(value: object) -> dict[Any, object]:
    """Parts of a class, or of a method that is not called as it stands, by name."""
    if isinstance(value, type):
        return {name: part for name, part in vars(value).items() if not name.startswith("__") or callable(part)}
    return {name: getattr(value, name) for name in _PARTS if hasattr(value, name)}


def differs_from_source(node: ast.FunctionDef | ast.AsyncFunctionDef, function: FunctionType) -> str:
    """A parameter whose default differs from the literal in its source; empty: there is none."""
    written, actual = _written_defaults(node), defaults_of(function)
    for name in sorted(written.keys() | actual.keys()):
        if name not in written or name not in actual:
            return name
        literal = _literal(written[name])
        if literal is not _NONE_SUCH and not _same(literal, actual[name]):
            return name
    return ""


def literals_of(tree: ast.Module) -> dict[str, object]:
    """Literals at the top level of a module, by the names that are assigned exactly once there."""
    found: dict[str, list[object]] = {}
    for part in tree.body:
        for name, expression in _assigned(part):
            found.setdefault(name, []).append(_NONE_SUCH if expression is None else _literal(expression))
    return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0] is not _NONE_SUCH}


def bindings_of(tree: ast.Module) -> Iterator[str]:
    """Names bound at a module's top level, or by functions with `global`, each as often as it is bound."""
    declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    own: list[ast.AST] = list(tree.body)
    while own:
        node = own.pop()
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            # A loop may bind a name more than once.
            yield from (
                one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            )
        if inner:
            stored = (
                one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            )
            yield from (one.id for one in stored if one.id in declared)
        else:
            own += ast.iter_child_nodes(node)


_NONE_SUCH = object()


def _literal(expression: ast.expr) -> object:
    try:
        return ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _NONE_SUCH


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)


def _is_name(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) or (
        isinstance(expression, ast.Attribute) and _is_name(expression.value)
    )


def _written_defaults(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    args = node.args
    positional, given = [*args.posonlyargs, *args.args], args.defaults
    found = {one.arg: value for one, value in zip(positional[len(positional) - len(given) :], given, strict=True)}
    named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return found | {one.arg: value for one, value in named if value is not None}


def _assigned(part: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that a statement assigns, each with its expression; None: only part of one, or none."""
    if isinstance(part, ast.Assign):
        for target in part.targets:
            if isinstance(target, ast.Name):
                yield target.id, part.value
            else:
                yield from ((one.id, None) for one in ast.walk(target) if isinstance(one, ast.Name))
    elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
        yield part.target.id, part.value
    elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
        yield part.target.id, None
