"""Interpolation as a flow: change points to an even grid."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from ebbtide.market.prices import PriceHistory
from flows.parameters import Interpolate


@task
def write_grid(parameters: Interpolate, prices: Path, into: Path) -> None:
    """Write the grid of all markets in one task, since each market takes one look-up."""
    PriceHistory.read(prices).resample(**parameters.model_dump()).write(into)


@flow(name="interpolate")
def interpolate(parameters: Interpolate, prices: Path, into: Path) -> None:
    """Lay the price file on a grid.

    Args:
        parameters: Step and method.
        prices: The price file.
        into: The grid.
    """
    write_grid(parameters, prices, into)
