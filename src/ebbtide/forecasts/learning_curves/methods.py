"""The predictors by name, as they are compared, and the curves that come with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ebbtide.errors import unknown_name
from ebbtide.forecasts.learning_curves.calibration import Calibration
from ebbtide.forecasts.learning_curves.curves import Curve, read_curves
from ebbtide.forecasts.learning_curves.evaluation import Ends, ends_of, scores_of
from ebbtide.forecasts.learning_curves.predictions import CurvePredictor
from ebbtide.forecasts.learning_curves.rivals import LastValue, PublishedEarlyCurve, power_law_rival, slaq

Predictors = CurvePredictor | Callable[[str], CurvePredictor]

_RIVALS: dict[str, Callable[[], CurvePredictor]] = {
    "earlycurve-published": PublishedEarlyCurve,
    "slaq": slaq,
    "power-law": power_law_rival,
    "last-value": LastValue,
}
METHODS = ("earlycurve", *_RIVALS)


def method(name: str, calibration: Calibration) -> Predictors:
    """A method by name; EarlyCurve uses on each workload the thresholds chosen on the others.

    Raises:
        InputError: The method is unknown.
    """
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return calibration.for_workload if name == "earlycurve" else _RIVALS[name]()


def evaluate_methods(
    curves: Sequence[Curve],
    calibration: Calibration,
    names: Sequence[str] = METHODS,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Scores of methods on the same curves and thetas: `{"methods": {name: {"by_theta", "workloads"}}}`.

    Raises:
        InputError: A method is unknown.
    """
    chosen = {name: method(name, calibration) for name in names}
    ends: dict[str, Ends] = {}
    for name, predictor in chosen.items():
        if on_progress:
            on_progress(name)
        ends[name] = ends_of(curves, predictor)
    return scores_of(ends)


@lru_cache(maxsize=1)
def table_two_curves() -> list[Curve]:
    """The 96 curves of SpotTune's Table II in the package, measured with `ebbtide curves measure`."""
    return read_curves(Path(str(files("ebbtide.forecasts.learning_curves") / "data" / "table-two.parquet")))
