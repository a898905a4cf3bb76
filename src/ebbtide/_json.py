"""JSON that every reader accepts: it has no NaN and no infinity, so figures that are not finite become null."""

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
    """Plain values as the text of a JSON file: the same bytes for the same values."""
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"
