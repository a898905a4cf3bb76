"""Learning curves: a metric by step, for runs that are compared with each other, and predictions of their end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ebbtide.base.files import replacing
from ebbtide.base.input_files import parsed_json
from ebbtide.errors import InputError
from ebbtide.market.sources.parquet import load_parquet

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

COLUMNS = ("workload", "setting", "hyperparameters", "max_steps", "step", "metric", "train_seconds")


@dataclass(frozen=True, eq=False)
class Curve:
    """The metric of one run.

    Attributes:
        workload: Name of the workload; only runs of one workload are compared.
        name: Name of the run within the workload.
        steps: Step of each measurement, rising, shape (n,).
        metric: Metric at each step, lower is better, shape (n,).
        max_steps: The last step of the whole run.
        hyperparameters: Hyper-parameters of the run, empty where unknown.
        train_seconds: Seconds of training until each measurement, shape (n,); None if unknown.
    """

    workload: str
    name: str
    steps: Floats
    metric: Floats
    max_steps: float
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    train_seconds: Floats | None = None

    @property
    def final(self) -> float:
        """The metric at the end."""
        return float(self.metric[-1])

    def until(self, theta: float) -> tuple[Floats, Floats]:
        """Steps and metric up to the share `theta` of the whole run; at least one measurement."""
        seen = max(int(np.searchsorted(self.steps, theta * self.max_steps * (1 + 1e-9), side="right")), 1)
        return self.steps[:seen], self.metric[:seen]


def curves_frame(curves: Sequence[Curve]) -> pd.DataFrame:
    """A row for each measurement of each curve, with columns `COLUMNS`."""
    import pandas as pd

    frames = []
    for curve in curves:
        seconds = curve.train_seconds if curve.train_seconds is not None else np.full(len(curve.steps), np.nan)
        about = {
            "workload": curve.workload,
            "setting": curve.name,
            "hyperparameters": json.dumps(dict(curve.hyperparameters)),
            "max_steps": float(curve.max_steps),
        }
        measured = {"step": curve.steps, "metric": curve.metric, "train_seconds": seconds}
        frames.append(pd.DataFrame({**about, **measured}))
    return pd.concat(frames, ignore_index=True)[list(COLUMNS)]


def write_curves(curves: Sequence[Curve], path: str | Path) -> None:
    """Write `curves_frame` as Parquet, atomically."""
    with replacing(path) as temporary:
        curves_frame(curves).to_parquet(temporary, index=False)


def read_curves(path: str | Path) -> list[Curve]:
    """Read curves from Parquet.

    Three layouts are recognised by their columns: Ebbtide's own (`COLUMNS`); training logs by track, record and
    run with a loss (rows with `split` of `val`); and logs by run and epoch with an accuracy, read as error rates.

    Raises:
        InputError: The file cannot be read, has no known layout, or holds no curve.
    """
    path = Path(path)
    table = load_parquet(path)
    for needed, read in _LAYOUTS:
        if needed <= set(table.columns):
            curves = read(table)
            if not curves:
                raise InputError("holds no curve", file=path)
            return curves
    columns = ", ".join(map(str, table.columns))
    raise InputError(f"is of no known layout: it has {columns}; curves need {', '.join(COLUMNS)}", file=path)


def curves_of(table: pd.DataFrame) -> list[Curve]:
    """Curves of the rows of `curves_frame`."""
    curves = []
    for (workload, name), rows in table.groupby(["workload", "setting"], sort=False):
        ordered = rows.sort_values("step", kind="stable")
        about = {}
        if "hyperparameters" in ordered:
            about = parsed_json(str(ordered["hyperparameters"].iloc[0]), f"hyperparameters of {workload} {name}")
        seconds = ordered["train_seconds"].to_numpy(float) if "train_seconds" in ordered else None
        last = float(ordered["max_steps"].iloc[0]) if "max_steps" in ordered else float(ordered["step"].max())
        curves.append(_curve(str(workload), str(name), ordered["step"], ordered["metric"], last, about, seconds))
    return curves


def _read_losses(table: pd.DataFrame) -> list[Curve]:
    measured = table[table["split"] == "val"].dropna(subset=["loss"])
    curves = []
    keys = ["track", "record", "run", "part"]
    for (track, record, run, part), rows in measured.groupby(keys, sort=False, observed=True):
        ordered = rows.sort_values("step", kind="stable").drop_duplicates("step", keep="last")
        last = float(ordered["step"].max())
        curves.append(_curve(f"{track}/{record}", f"{run}/{part}", ordered["step"], ordered["loss"], last))
    return curves


def _read_accuracies(table: pd.DataFrame) -> list[Curve]:
    measured = table[(table["split"] == "val") & (table["metric"] == "accuracy")]
    curves = []
    for (dataset, run), rows in measured.groupby(["dataset", "run"], sort=False, observed=True):
        ordered = rows.sort_values("epoch", kind="stable").drop_duplicates("epoch", keep="last")
        steps = ordered["epoch"] + 1
        curves.append(_curve(str(dataset), str(run), steps, 1.0 - ordered["value"], float(steps.max())))
    return curves


def _curve(
    workload: str,
    name: str,
    steps: pd.Series[Any],
    metric: pd.Series[Any],
    max_steps: float,
    hyperparameters: Mapping[str, Any] | None = None,
    train_seconds: Floats | None = None,
) -> Curve:
    return Curve(
        workload,
        name,
        steps.to_numpy(dtype=float),
        metric.to_numpy(dtype=float),
        max_steps,
        hyperparameters or {},
        train_seconds,
    )


_LAYOUTS = (
    ({"workload", "setting", "step", "metric"}, curves_of),
    ({"track", "record", "run", "part", "step", "split", "loss"}, _read_losses),
    ({"run", "dataset", "epoch", "split", "metric", "value"}, _read_accuracies),
)


class Status(StrEnum):
    """Basis of a prediction."""

    FITTED = "fitted"  # curves fitted to the measurements
    CONVERGED = "converged"  # the metric has stopped changing: the last value, and more training is useless
    FINISHED = "finished"  # the last step itself was measured
    SHORT = "short"  # too few measurements to fit: the last one, with a wide band
    DIVERGED = "diverged"  # the last measurement is not a number or infinite: infinity


@dataclass(frozen=True)
class CurvePrediction:
    """The predicted end of a curve.

    Attributes:
        value: Predicted metric at the last step.
        lower: Lower end of a band meant to cover 90 % of final metrics.
        upper: Upper end of the same band.
        stages: The step at which each stage begins.
        status: What the prediction is based on.
        shares: Weight of each candidate, by name.
    """

    value: float
    lower: float
    upper: float
    stages: tuple[float, ...]
    status: Status
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ObservedCurve:
    """The first part of a curve, checked: finite measurements in the order of steps.

    Attributes:
        steps: Step of each measurement, rising, shape (n,), n >= 1 unless it diverged at once.
        metric: Metric at each step, lower is better, shape (n,).
        max_steps: The step at which to predict.
        diverged: Whether the last measurement was not finite.
        sweep: Name of the sweep; errors of curves of one sweep are partially pooled. None: no sweep.
    """

    steps: Floats
    metric: Floats
    max_steps: float
    diverged: bool = False
    sweep: str | None = None

    def until(self, theta: float) -> ObservedCurve:
        """The part up to a share of the whole run; at least one measurement."""
        seen = max(int(np.searchsorted(self.steps, theta * self.max_steps * (1 + 1e-9), side="right")), 1)
        if seen >= len(self.steps):
            return self
        return ObservedCurve(self.steps[:seen], self.metric[:seen], self.max_steps, False, self.sweep)

    @property
    def finished(self) -> bool:
        """True if the last step itself was measured."""
        return bool(len(self.steps)) and self.steps[-1] >= self.max_steps * (1 - 1e-9)


class CurvePredictor(Protocol):
    """Predicts where curves end from their first parts."""

    @property
    def name(self) -> str:
        """Name of the predictor in tables."""
        ...

    def ends(self, observed: Sequence[ObservedCurve]) -> list[CurvePrediction]:
        """Predict the end of each curve; never raises."""
        ...


def observed(
    steps: Sequence[float] | Floats, metric: Sequence[float] | Floats, max_steps: float, sweep: str | None = None
) -> ObservedCurve:
    """Check the first part of a curve.

    Single measurements that are not finite are left out. Steps may come in any order; of two measurements at one
    step the later in the sequence is used.

    Raises:
        InputError: Lengths differ, there is no measurement, steps are negative or not finite, or `max_steps` is
            not positive or lies before the last step.
    """
    at, values = np.asarray(steps, dtype=float), np.asarray(metric, dtype=float)
    if at.ndim != 1 or at.shape != values.shape:
        raise InputError(f"steps have shape {at.shape}, metric {values.shape}; both need the same one axis")
    if not len(at):
        raise InputError("a curve needs at least one measurement")
    if not np.isfinite(at).all() or at.min() < 0:
        raise InputError("steps must be finite and not negative")
    if not max_steps > 0 or not np.isfinite(max_steps):
        raise InputError(f"max_steps is {max_steps}; it must be positive and finite")
    if at.max() > max_steps * (1 + 1e-9):
        raise InputError(f"step {at.max():g} lies beyond max_steps {max_steps:g}")
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    last_of_step = np.append(at[1:] != at[:-1], True)
    at, values = at[last_of_step], values[last_of_step]
    finite = np.isfinite(values)
    return ObservedCurve(at[finite], values[finite], float(max_steps), not finite[-1], sweep)


def without_fit(seen: ObservedCurve) -> CurvePrediction | None:
    """The prediction where no fit is needed: the curve diverged, or its end was measured. None elsewhere."""
    if seen.diverged or not len(seen.metric):
        return CurvePrediction(np.inf, np.inf, np.inf, (), Status.DIVERGED)
    if seen.finished:
        end = float(seen.metric[-1])
        return CurvePrediction(end, end, end, (float(seen.steps[0]),), Status.FINISHED)
    return None
