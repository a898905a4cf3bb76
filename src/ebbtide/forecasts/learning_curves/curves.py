"""Learning curves: a metric by step, for training runs that are compared with each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ebbtide._files import replacing
from ebbtide._input_files import parsed_json
from ebbtide.errors import InputError
from ebbtide.market.sources.parquet import load_parquet

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


def write_curves(curves: Sequence[Curve], path: str | Path) -> None:
    """Write curves as Parquet, one row per measurement, atomically."""
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
    table = pd.concat(frames, ignore_index=True)[list(COLUMNS)]
    with replacing(path) as temporary:
        table.to_parquet(temporary, index=False)


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


def _read_ours(table: pd.DataFrame) -> list[Curve]:
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
    ({"workload", "setting", "step", "metric"}, _read_ours),
    ({"track", "record", "run", "part", "step", "split", "loss"}, _read_losses),
    ({"run", "dataset", "epoch", "split", "metric", "value"}, _read_accuracies),
)
