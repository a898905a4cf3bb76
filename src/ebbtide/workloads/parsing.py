"""YAML that users write, read into checked models; every error names the file and the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from ebbtide.errors import InputError
from ebbtide.workloads.field_problems import field_problems


class Frozen(BaseModel):
    """A model that cannot be changed and knows all of its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_Model = TypeVar("_Model", bound=BaseModel)


def read_mapping(path: str | Path, what: str) -> dict[str, Any]:
    """The mapping in a YAML file.

    Args:
        path: The file.
        what: It should hold, for the error.

    Raises:
        InputError: The file is missing, is not YAML, or holds something else.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no such file", file=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=path) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        raise InputError(f"is not YAML: {getattr(error, 'problem', error)}", file=path, row=line) from None
    if not isinstance(content, dict):
        raise InputError(f"holds no {what}", file=path)
    return content


def validated(model: type[_Model], content: dict[str, Any], file: str | Path | None = None) -> _Model:
    """The model of plain values.

    Raises:
        InputError: Fields are missing, unknown or out of range; all of them are told, each with what to write.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        found = field_problems(error, model)
        if len(found) == 1:
            raise InputError(found[0].problem, file=file, field=found[0].field or None) from None
        raise InputError(f"{len(found)} problems", file=file, problems=map(str, found)) from None
