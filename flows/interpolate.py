"""Interpolation as a flow: change points to an even grid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide.market.prices import PriceHistory


@task
def write_grid(prices: Path, into: Path, step_s: float, method: str, max_gap_s: float | None) -> None:
    """Write the grid of all markets in one task, since each market takes one look-up."""
    PriceHistory.read(prices).resample(step_s, method=method, max_gap_s=max_gap_s).write(into)


@flow(name="interpolate")
def interpolate(parameters: Mapping[str, Any], prices: Path, into: Path) -> None:
    """Lay the price file on a grid.

    Args:
        parameters: The `interpolate` section of params.yaml.
        prices: The price file.
        into: The grid.
    """
    write_grid(prices, into, **parameters)
