"""How fast curves are fitted, beside reading their numbers once."""

from __future__ import annotations

import time

import numpy as np
from tests.benchmarks.floors import tell

from ebbtide.forecasts.learning_curves.calibration import default_calibration
from ebbtide.forecasts.learning_curves.evaluation import THETAS, ends_of
from ebbtide.forecasts.learning_curves.families import Pieces, sublinear
from ebbtide.forecasts.learning_curves.methods import evaluate_methods, table_two_curves


def test_all_fits_of_table_two(benchmark) -> None:
    """96 curves x 10 thetas by EarlyCurve."""
    curves = table_two_curves()
    benchmark.pedantic(lambda: ends_of(curves, default_calibration().for_workload), rounds=3)
    longest = max(len(curve.steps) for curve in curves)
    once = Pieces(
        np.tile(np.arange(1.0, longest + 1), (960, 1)),
        np.tile(np.linspace(2.0, 1.0, longest), (960, 1)),
        np.ones((960, longest)),
        np.full((960, 1), 100.0),
    )

    began = time.perf_counter()
    sublinear(once)
    floor_s = time.perf_counter() - began
    told = f"{len(curves)} curves x {len(THETAS)} thetas; target 10 s; floor: Eq. 4 once for each"
    tell("all fits", told, benchmark.stats.stats.median, floor_s)


def test_all_methods(benchmark) -> None:
    curves = table_two_curves()
    benchmark.pedantic(lambda: evaluate_methods(curves, default_calibration()), rounds=1)
    tell("all methods", "target 10 s", benchmark.stats.stats.median, benchmark.stats.stats.median)
