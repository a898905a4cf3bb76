"""JSON that every reader accepts, without NaN and infinity; and what is wrong with a document, in words."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """A plain value, at any depth of mappings and sequences, with None in place of NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value


def json_text(content: Any) -> str:
    """Plain values as the text of a JSON file, figures that are not finite as null: the same bytes for the same
    values."""
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


def misfit(error: Exception) -> str:
    """Describe what is wrong with a parsed document, from the error raised when it was read as another kind."""
    match error:
        case KeyError(args=(name, *_)):
            return f"it has no {name!r}"
        case IndexError():
            return "a list in it is too short"
        case TypeError() | AttributeError():
            return "a part of it is of another kind"
        case _:
            return " ".join(str(error).split()) or "a value in it cannot be read"


# Last words of names of numbers.
_UNITS = ("_s", "usd", "_hour", "steps_done", "steps_saved", "steps_run", "steps_lost", "checkpoints")


def check_numbers(value: Any, name: str = "") -> None:
    """Check that whatever is named by a unit is a number, or None.

    Args:
        value: Plain values.
        name: Name of the field that holds them.

    Raises:
        TypeError: A field such as `ended_s` or `refund_usd` holds something else.
    """
    if isinstance(value, dict):
        for key, each in value.items():
            check_numbers(each, key)
    elif isinstance(value, list | tuple):
        for each in value:
            check_numbers(each, name)
    elif name.endswith(_UNITS) and not (value is None or isinstance(value, int | float)):
        raise TypeError(f"{name} is no number")
