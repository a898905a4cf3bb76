"""Parameters of policies, as a job's file, a file of parameters or `--set` gives them: checked against the policy.

A policy is a dataclass, and those of its fields that hold plain values are its parameters.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from ebbtide.errors import InputError, unknown_name
from ebbtide.jobs.parsing import parse_value
from ebbtide.policies.api.protocol import Policy

# A field of many policies, and no parameter: it is given by where the policy is from.
NAME = "name"

_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def parameters_of(policy: Policy) -> dict[str, Any]:
    """The parameters that a policy takes, by name, each with the value that it has.

    Its name is none of them: a run that could give itself another policy's name would not be resumed with its own.
    """
    return {each.name: getattr(policy, each.name) for each, _ in _settable(policy) if each.name != NAME}


def with_parameters(
    policy: Policy, given: Mapping[str, Any], file: str | Path | None = None, place: str = ""
) -> Policy:
    """The policy with other parameters.

    Args:
        policy: The policy with its defaults.
        given: Values by name, as YAML has them.
        file: The file that they are from, for errors.
        place: Path of the mapping in that file, for errors.

    Raises:
        InputError: The policy has no such parameter, or it cannot have that value.
    """
    if not given:
        return policy
    hints = {each.name: hint for each, hint in _settable(policy)}
    if not hints:
        raise InputError(f"policy {policy.name} takes no parameters, but {', '.join(given)} is given", file=file)
    values = {}
    for name, value in given.items():
        field = f"{place}.{name}" if place else str(name)
        if name not in hints:
            known = [each for each in hints if each != NAME]
            raise InputError(unknown_name("parameter", str(name), known).problem, file=file, field=field)
        try:
            # As JSON: a number is no text, true is no number, and a name stands for what it names.
            values[name] = TypeAdapter(hints[name]).validate_json(json.dumps(value), strict=True)
        except (ValidationError, TypeError, ValueError):
            asked = f"is {value!r:.80}; {needed(hints[name])} is needed"
            like = getattr(policy, name)
            alike = f", as {_as_yaml(like)} is" if like not in (None, "", {}, ()) else ""
            raise InputError(f"{asked}{alike}", file=file, field=field) from None
        if isinstance(values[name], str) and not (values[name] and values[name].isprintable()):
            raise InputError(f"is {value!r:.80}; text that can be printed is needed", file=file, field=field)
    try:
        made: Policy = replace(policy, **values)  # type: ignore[type-var]
    except InputError as error:
        raise InputError(error.problem, file=file, field=error.field or place or None) from None
    except Exception as error:
        # A policy of the user's own may refuse a value in any way.
        told = f"policy {policy.name} cannot be made with {parameters_text(given)}: {error!r}"
        raise InputError(" ".join(f"{told:.300}".split()), file=file, field=place or None) from None
    return made


def assignments(words: Sequence[str]) -> dict[str, Any]:
    """Parameters from a command line, each as `NAME=VALUE` with the value in YAML.

    Raises:
        InputError: A word is no assignment, a name stands twice, or the policy itself is named.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {word!r} is no assignment; write --set NAME=VALUE, as in --set theta=0.5")
        if name.strip() in found:
            raise InputError(f"--set {name.strip()} is given twice")
        if name.strip() == NAME:
            raise InputError(f"--set {NAME} names no parameter: --policy says which policy decides")
        found[name.strip()] = parse_value(value, f"--set {name.strip()}")
    return found


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Parameters in one line, as a job's file may have them."""
    return ", ".join(f"{name}: {_as_yaml(value)}" for name, value in parameters.items())


def needed(hint: Any) -> str:
    """The values of a type, in words."""
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return f"one of {', '.join(hint)}"
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, within = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, within))}"
    if origin in (Union, types.UnionType):
        return " or ".join(needed(each) for each in within if each is not type(None))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping of names, each to {needed(within[1])}"
    return f"a list, each {needed(within[0])}"


def _settable(policy: Policy) -> list[tuple[Field[Any], Any]]:
    """The fields of a policy that hold plain values, with their types."""
    if not is_dataclass(policy):
        return []
    found = ((each, _hint(type(policy), each.name)) for each in fields(policy) if each.init)
    return [(each, hint) for each, hint in found if _is_plain(hint)]


def _hint(kind: type, name: str) -> Any:
    """The type of a field; None: its name is not known, as of one that is imported for type checkers alone."""
    owner = next(base for base in kind.__mro__ if name in inspect.get_annotations(base))
    alone = type(owner.__name__, (), {"__annotations__": {name: inspect.get_annotations(owner)[name]}})
    try:
        return get_type_hints(alone, vars(sys.modules[owner.__module__]), dict(vars(owner)))[name]
    except Exception:
        return None


def _is_plain(hint: Any) -> bool:
    if hint in _PLAIN or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return True
    origin, within = get_origin(hint), get_args(hint)
    if origin is Literal:
        return True
    if origin in (Union, types.UnionType):
        return all(each is type(None) or _is_plain(each) for each in within)
    if isinstance(origin, type) and issubclass(origin, Mapping | tuple | list):
        return all(each is Ellipsis or _is_plain(each) for each in within)
    return False


def _as_yaml(value: Any) -> str:
    if isinstance(value, StrEnum):
        value = str(value)
    text: str = yaml.safe_dump(json.loads(json.dumps(value)), default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")
