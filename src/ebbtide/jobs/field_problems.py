"""All problems of the fields of a file at once: which field, what is wrong, and what to write instead."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

# Types that pydantic tries for a value of a union and appends to the field's path.
_UNION_TYPES = frozenset({"bool", "int", "float", "str", "none"})

# The largest number of problems shown.
_MAX_SHOWN = 20


@dataclass(frozen=True)
class FieldProblem:
    """Problem of one field of a file.

    Attributes:
        field: Path of the field in the file, with dots between names; empty for the whole file.
        problem: What is wrong with it, and what to write instead.
    """

    field: str
    problem: str

    def __str__(self) -> str:
        return f"field {self.field}: {self.problem}" if self.field else self.problem


def field_problems(error: ValidationError, model: type[BaseModel]) -> list[FieldProblem]:
    """All problems that pydantic found, each field once, in the order of the file.

    Args:
        error: The error that pydantic raised.
        model: The model that the file was read into.
    """
    found: dict[str, FieldProblem] = {}
    meant: set[str] = set()
    for each in error.errors():
        place = _without_types(each["loc"], model)
        field = ".".join(str(part) for part in place)
        if each["type"] == "extra_forbidden":
            holder = _model_at(model, place[:-1])
            problem, near = _unknown(str(place[-1]), holder)
            meant.update(".".join(str(part) for part in (*place[:-1], name)) for name in near)
        elif each["type"] == "missing":
            problem = f"missing; {_write(model, place)}"
        else:
            problem = each["msg"].removeprefix("Value error, ")
            problem += _example_of(model, place) if not each["msg"].startswith("Value error, ") else ""
        found.setdefault(field, FieldProblem(field, problem))
    # A field that was written under a wrong name is not also reported as missing.
    kept = [each for each in found.values() if not (each.field in meant and each.problem.startswith("missing"))]
    rest = len(kept) - _MAX_SHOWN
    return kept if rest <= 0 else [*kept[:_MAX_SHOWN], FieldProblem("", f"and {rest} more")]


def _unknown(name: str, holder: type[BaseModel] | None) -> tuple[str, list[str]]:
    known = sorted(holder.model_fields) if holder is not None else []
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown field{hint}; known: {', '.join(known)}" if known else "unknown field", near


def _without_types(place: Sequence[int | str], model: type[BaseModel]) -> tuple[int | str, ...]:
    """The path of a value in the file, without the types that pydantic tried."""
    models = {
        each.__name__
        for base in model.__mro__
        if issubclass(base, BaseModel) and base is not BaseModel
        for each in base.__subclasses__()
    }
    kept: list[int | str] = []
    for part in place:
        text = str(part)
        if kept and (text in _UNION_TYPES or text in models or text.startswith(("list[", "dict[", "function-"))):
            continue
        kept.append(part)
    return tuple(kept)


def _model_at(model: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel] | None:
    """The model read at a path; None where the value is not a mapping of known fields."""
    current: Any = model
    for part in place:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = _model_in(field.annotation) if field is not None else None
        else:
            return None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _model_in(annotation: Any) -> Any:
    """The first model that an annotation names."""
    if get_origin(annotation) is Annotated:
        return _model_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        models = [found for found in map(_model_in, get_args(annotation)) if found is not None]
        return models[0] if models else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _write(model: type[BaseModel], place: Sequence[int | str]) -> str:
    example = _example(model, place)
    name = str(place[-1]) if place else ""
    return f"write `{_yaml({name: example})}`" if example is not None else f"write `{name}: ...`"


def _example_of(model: type[BaseModel], place: Sequence[int | str]) -> str:
    example = _example(model, place)
    return f"; for example `{_yaml({str(place[-1]): example})}`" if example is not None else ""


def _example(model: type[BaseModel], place: Sequence[int | str]) -> Any:
    holder = _model_at(model, place[:-1]) if place else None
    field = holder.model_fields.get(str(place[-1])) if holder is not None else None
    return field.examples[0] if field is not None and field.examples else None


def _yaml(content: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(content), default_flow_style=True, sort_keys=False, width=1000).strip()
    return " ".join(text.removeprefix("{").removesuffix("}").split())
