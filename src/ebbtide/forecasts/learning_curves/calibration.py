"""Choosing EarlyCurve's thresholds and the width of its band on some workloads, for use on others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.base.cores import in_processes
from ebbtide.base.files import write_text
from ebbtide.base.input_files import read_json
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Curve, Floats
from ebbtide.forecasts.learning_curves.early_curve import EarlyCurve
from ebbtide.forecasts.learning_curves.evaluation import Ends, ends_of
from ebbtide.forecasts.learning_curves.stages import StageThresholds, stage_starts

Bools = np.ndarray

CHANGES = (0.03, 0.05, 0.08, 0.12, 0.2, 0.5)
STEADIES = (0.01, 0.02, 0.04, 0.08)
WINDOWS = (1, 3, 5)

# Before the middle of a run, stages are too few for thresholds to matter.
_THETAS = (0.5, 0.6, 0.7, 0.8, 0.9)

# The share of final metrics that should lie inside the band.
_COVERAGE = 0.9


@dataclass(frozen=True)
class StageCalibration:
    """Thresholds chosen on all workloads, and with each workload held out.

    Attributes:
        everywhere: The predictor chosen on all workloads, for use on new ones.
        without: By workload, the predictor chosen on all others; a workload is scored with its own entry.
        errors: Mean relative error by thresholds and workload, from which the thresholds were chosen.
    """

    everywhere: EarlyCurve
    without: dict[str, EarlyCurve]
    errors: list[dict[str, Any]]

    def for_workload(self, name: str) -> EarlyCurve:
        """The predictor to score a workload with: one that was not calibrated on it."""
        return self.without.get(name, self.everywhere)


def calibrate(
    curves: Sequence[Curve],
    start: EarlyCurve | None = None,
    *,
    changes: Sequence[float] = CHANGES,
    steadies: Sequence[float] = STEADIES,
    windows: Sequence[int] = WINDOWS,
    workers: int = 1,
    on_progress: Callable[[str], None] | None = None,
) -> StageCalibration:
    """Try all thresholds on all curves and choose those with the least relative error, workloads weighted equally.

    Args:
        curves: Complete curves of two workloads or more.
        start: Predictor whose other settings are kept.
        changes: Values of xi to try.
        steadies: Values of epsilon to try.
        windows: Values of `StageThresholds.window` to try, in measurements.
        workers: Number of processes for the tries; the calibration does not depend on it.
        on_progress: Called with a line of text before each fit, if there is one process.

    Raises:
        InputError: All curves are of one workload.
    """
    names = list(dict.fromkeys(curve.workload for curve in curves))
    if len(names) < 2:
        raise InputError(f"calibrating needs curves of two workloads or more; these are all of {names[0]}")
    own = start or EarlyCurve()
    tried = [replace(own, thresholds=each, band=1.0) for each in _different(curves, changes, steadies, windows)]
    workload = np.array([curve.workload for curve in curves])
    found = _ends_of_each(curves, tried, workers, on_progress)
    whole = [ends.errors() for ends in found]
    errors = np.array([[np.nanmean(each[workload == name]) for name in names] for each in whole])

    def chosen(kept: Sequence[str]) -> EarlyCurve:
        columns = [names.index(name) for name in kept]
        # Relative to the best on each workload, or the workload with the largest errors would decide alone.
        best = np.maximum(errors[:, columns].min(axis=0), 1e-9)
        row = int(np.argmin((errors[:, columns] / best).mean(axis=1)))
        return replace(tried[row], band=_band(found[row], np.isin(workload, kept)))

    without = {name: chosen([other for other in names if other != name]) for name in names}
    rows = [
        {**asdict(predictor.thresholds), **dict(zip(names, row.tolist(), strict=True))}
        for predictor, row in zip(tried, errors, strict=True)
    ]
    return StageCalibration(chosen(names), without, rows)


def _ends_of_each(
    curves: Sequence[Curve],
    tried: Sequence[EarlyCurve],
    workers: int,
    on_progress: Callable[[str], None] | None,
) -> list[Ends]:
    """Predictions of each predictor for each curve, by share of its steps that is known.

    Curves are pooled within a workload alone: predictions for a workload depend on the stages of its curves, and
    these are the same for many thresholds. So each workload is fitted once for each of its sets of stages.
    """
    rows: dict[str, list[int]] = {}
    for row, curve in enumerate(curves):
        rows.setdefault(curve.workload, []).append(row)
    parts = {name: [curves[row] for row in own] for name, own in rows.items()}
    asked = [{name: _stages(own, each.thresholds) for name, own in parts.items()} for each in tried]
    fits = {key: each for each, keys in zip(tried, asked, strict=True) for key in keys.items()}
    work = [(parts[name], each) for (name, _), each in fits.items()]
    if workers > 1:
        ends = in_processes(_ends_of, work, workers=workers)
    else:
        ends = []
        for number, one in enumerate(work):
            if on_progress:
                on_progress(f"fit {number + 1} of {len(work)}")
            ends.append(_ends_of(one))
    by_key = dict(zip(fits, ends, strict=True))
    return [_joined({name: by_key[name, keys[name]] for name in rows}, rows, len(curves)) for keys in asked]


def _ends_of(work: tuple[Sequence[Curve], EarlyCurve]) -> Ends:
    return ends_of(*work, _THETAS)


def _joined(parts: Mapping[str, Ends], rows: Mapping[str, Sequence[int]], curves: int) -> Ends:
    """The ends of all curves, from those of each workload and the rows of its curves."""
    workloads = np.empty(curves, dtype=object)
    truth = np.empty(curves)
    values, lower, upper = (np.empty((curves, len(_THETAS))) for _ in range(3))
    for name, part in parts.items():
        own = list(rows[name])
        workloads[own], truth[own] = name, part.truth
        values[own], lower[own], upper[own] = part.values, part.lower, part.upper
    return Ends(tuple(workloads), truth, values, lower, upper)


def _different(
    curves: Sequence[Curve], changes: Sequence[float], steadies: Sequence[float], windows: Sequence[int]
) -> list[StageThresholds]:
    """Thresholds that find different stages in these curves; of equivalent ones the most sensitive."""
    found: dict[tuple[tuple[int, ...], ...], StageThresholds] = {}
    for window, change, steady in product(windows, changes, steadies):
        each = StageThresholds(change, steady, window=window)
        found.setdefault(_stages(curves, each), each)
    return list(found.values())


def _stages(curves: Sequence[Curve], thresholds: StageThresholds) -> tuple[tuple[int, ...], ...]:
    """Indices at which the stages of each curve begin."""
    return tuple(tuple(stage_starts(_finite(curve.metric), thresholds)) for curve in curves)


def _finite(metric: Floats) -> Floats:
    return metric[np.isfinite(metric)]


def _band(ends: Ends, kept: Bools) -> float:
    """Half the width of the band, in units of the expected error, that covers the wanted share of the kept curves.

    Args:
        ends: Predictions with a band of one expected error on each side.
        kept: Which curves count, shape (curves,).
    """
    values = ends.values[kept]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: Floats = np.abs(values - ends.truth[kept, None]) / (ends.upper[kept] - values)
    return float(np.nanquantile(ratio[np.isfinite(ratio)], _COVERAGE))


def write_calibration(calibration: StageCalibration, path: str | Path) -> None:
    """Write a calibration as JSON, atomically."""
    content = {
        "everywhere": asdict(calibration.everywhere),
        "without": {name: asdict(predictor) for name, predictor in calibration.without.items()},
        "errors": calibration.errors,
    }
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_calibration(path: str | Path) -> StageCalibration:
    """Read what `write_calibration` wrote.

    Raises:
        InputError: The file is missing or is not a calibration.
    """
    if not Path(path).exists():
        raise InputError("there is no such file; `ebbtide curves calibrate` makes one", file=path)
    content = read_json(path)
    try:
        return StageCalibration(
            _predictor(content["everywhere"]),
            {name: _predictor(values) for name, values in content["without"].items()},
            content["errors"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"is no calibration of learning curves: {error}", file=path) from None


@lru_cache(maxsize=1)
def default_calibration() -> StageCalibration:
    """The calibration on the curves of Table II that comes with the package."""
    return read_calibration(Path(str(files("ebbtide.forecasts.learning_curves") / "data" / "calibration.json")))


def _predictor(values: dict[str, Any]) -> EarlyCurve:
    return EarlyCurve(**{**values, "thresholds": StageThresholds(**values["thresholds"])})
