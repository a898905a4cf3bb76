"""Sections of params.yaml, as flows and stages read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ebbtide.base.utc import DAY_S, iso
from ebbtide.errors import InputError
from ebbtide.market.prices import PriceHistory

PARAMS = Path("params.yaml")


def training_prices(prices: Path) -> PriceHistory:
    """The prices that models may be trained on: all but the days that params.yaml holds back at the record's end.

    Args:
        prices: The price file.

    Raises:
        InputError: The record is not longer than the days held back.
    """
    history, days = PriceHistory.read(prices), float(parameters("held_back")["days"])
    until_s = history.end_s - days * DAY_S
    if days < 0 or until_s <= history.start_s:
        problem = f"is {days:g}; the record has {(history.end_s - history.start_s) / DAY_S:.1f} days"
        raise InputError(problem, file=PARAMS, field="held_back.days")
    return history.window(history.start_s, until_s)


def trained_on(history: PriceHistory) -> dict[str, str]:
    """The training window, as reports have it."""
    return {"from": iso(history.start_s), "until": iso(history.end_s)}


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
