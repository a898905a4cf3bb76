"""Sections of params.yaml, as flows and stages read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ebbtide.errors import InputError

PARAMS = Path("params.yaml")


def parameters(section: str) -> dict[str, Any]:
    """One section of params.yaml in the working directory.

    Args:
        section: The name of a mapping at the top of the file, such as `ingest`.

    Returns:
        The values of the section by name, as YAML has them.

    Raises:
        InputError: The file or the section is missing or is not a mapping.
    """
    try:
        content = yaml.safe_load(PARAMS.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("there is no such file; run from the project's folder", file=PARAMS) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML: {' '.join(str(error).split())}", file=PARAMS) from None
    values = content.get(section) if isinstance(content, Mapping) else None
    if not isinstance(values, dict):
        raise InputError("is missing or is not a mapping", file=PARAMS, field=section)
    return values
