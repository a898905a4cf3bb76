"""Users' YAML, read into checked models; every error names the file and the field."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from ebbtide.base.input_files import read_text
from ebbtide.errors import InputError
from ebbtide.jobs.field_problems import field_problems


class Frozen(BaseModel):
    """An immutable model that rejects unknown fields.

    Raises:
        InputError: Fields are missing, unknown or out of range; all are listed, each with what to write.
    """

    # Infinity stays what it is when a model is written down as plain values.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _input_error(error, type(self)) from None

    # Pydantic itself makes models within models without `__init__`, as if it were not overridden.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


_Model = TypeVar("_Model", bound=BaseModel)

# Limits that no hand-written file reaches, against hostile ones.
_MAX_DEPTH = 50
_MAX_VALUES = 100_000
_MAX_INT_BITS = 1024  # larger integers do not fit in a float

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Refused(yaml.constructor.ConstructorError):
    """YAML that is well formed but not accepted here."""


class _Loader(_BaseLoader):  # type: ignore[misc]
    """Loads plain values only. A repeated key or a scalar that is invalid for its type is an error with a line."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float) or isinstance(key, bool):
                raise _wrong(f"the key {_as_written(key_node)} is not text; put it in quotes", key_node)
            if key in seen:
                raise _wrong(f"the key {_as_written(key_node)} stands twice in one mapping", key_node)
            seen.add(key)
        built: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return built

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            built = super().construct_object(node, deep)
            if isinstance(built, int) and built.bit_length() > _MAX_INT_BITS:
                raise ValueError
            return built
        except (ValueError, OverflowError, KeyError, AttributeError):
            kind = node.tag.rpartition(":")[2].replace("timestamp", "date")
            raise _wrong(f"{_as_written(node)} is not a valid {kind}", node) from None


def read_mapping(path: str | Path, what: str) -> dict[str, Any]:
    """The mapping in a YAML file.

    Args:
        path: Path of the YAML file.
        what: What the file should hold, for the error message.

    Raises:
        InputError: The file cannot be read (`input_files.read_text`), is not YAML, holds a key twice or a key
            that is not text, nests too deeply, is too large, or holds something else than a mapping.
    """
    text = read_text(path)
    try:
        _check_size(text, path)
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # An unexpected end of the file is reported in the line after the last.
        line = min(mark.line + 1, max(len(text.splitlines()), 1)) if mark else None
        problem = getattr(error, "problem", None) or str(error)
        message = problem if isinstance(error, _Refused) else f"is not YAML: {problem}"
        raise InputError(message, file=path, row=line) from None
    if not isinstance(content, dict):
        raise InputError(f"holds no {what}", file=path)
    for key in content:
        if not isinstance(key, str):
            raise InputError(f"the key {key} is not text; put it in quotes", file=path, field=str(key))
    return content


def parse_value(text: str, what: str) -> Any:
    """The value that YAML text stands for.

    Args:
        text: One value as a file would have it.
        what: Where it stands, for the error message.

    Raises:
        InputError: It is not YAML, or is too large.
    """
    try:
        _check_size(text, what)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"{what} is {text!r:.80}, which is not YAML: {problem:.200}") from None


def validated(model: type[_Model], content: dict[str, Any], file: str | Path | None = None) -> _Model:
    """The model read from plain values.

    Raises:
        InputError: Fields are missing, unknown or out of range; all are listed, each with what to write.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _input_error(error, model, file) from None


def _input_error(error: ValidationError, model: type[BaseModel], file: str | Path | None = None) -> InputError:
    found = field_problems(error, model)
    if len(found) == 1:
        return InputError(found[0].problem, file=file, field=found[0].field or None)
    return InputError(f"{len(found)} problems", file=file, problems=map(str, found))


def _check_size(text: str, path: str | Path) -> None:
    """Limit depth and number of values before anything is built, since building is recursive and expands aliases.

    An alias counts as many values as its anchor, so that a few lines of aliases of aliases are refused too.
    """
    values = 0
    before: list[int] = []  # values before each open collection
    names: list[str | None] = []
    size_of: dict[str, int] = {}
    events: Any = yaml.parse(text, Loader=_BaseLoader)
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in names:
                raise InputError(f"the alias *{event.anchor} stands inside what it names", file=path, row=line)
            values += size_of.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor:
                size_of[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            before.append(values)
            names.append(event.anchor)
            values += 1
            if len(before) > _MAX_DEPTH:
                raise InputError(f"nests more than {_MAX_DEPTH} levels deep", file=path, row=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, name = values - before.pop(), names.pop()
            if name:
                size_of[name] = size
        if values > _MAX_VALUES:
            raise InputError(f"holds more than {_MAX_VALUES:,} values", file=path)


def _wrong(problem: str, node: yaml.Node) -> _Refused:
    return _Refused(None, None, problem, node.start_mark)


def _as_written(node: yaml.Node, most: int = 40) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "of several values"
    text = str(node.value)
    return repr(text if len(text) <= most else f"{text[:most]}...")
