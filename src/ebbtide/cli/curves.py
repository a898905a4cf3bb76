"""`ebbtide curves predict`, `evaluate`, `measure`, `profile` and `calibrate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebbtide.base.files import write_text
from ebbtide.base.json_values import json_text
from ebbtide.cli.options import print_written, terminal, to_be_written
from ebbtide.cli.progress import progress
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Curve, read_curves, write_curves
from ebbtide.market.sources.tables import read_csv_text

curves_app = typer.Typer(
    no_args_is_help=True,
    help="Predict the final metric of a training from its first part, and evaluate the predictors.",
)

CurvesOption = Annotated[
    Path | None,
    typer.Option("--curves", help="A Parquet file of complete curves; by default the included ones of Table II."),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option("--calibration", help="A file written by `calibrate`; by default the included one."),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", callback=to_be_written, help="File to write the result to.")
]


@curves_app.command("predict")
def predict_command(
    file: Annotated[Path, typer.Argument(help="CSV with step and metric (and run), or Parquet of curves.")],
    max_steps: Annotated[
        float | None, typer.Option(help="The last step, if the file does not contain it.")
    ] = None,
    theta: Annotated[float, typer.Option(help="Use at most this share of each run.")] = 1.0,
    json_path: JsonOption = None,
) -> None:
    """Predict the final metric of every run in a file, best first. Lower metrics are better.

    ebbtide curves predict losses.csv --max-steps 10000
    """
    from ebbtide.forecasts.learning_curves.calibration import default_calibration
    from ebbtide.forecasts.learning_curves.curves import observed

    if not 0 < theta <= 1:
        raise InputError(f"theta is {theta:g}; it must be above 0 and at most 1")
    curves = _read_csv(file, max_steps) if file.suffix.lower() == ".csv" else read_curves(file)
    seen = [observed(*curve.until(theta), max_steps or curve.max_steps, curve.workload) for curve in curves]
    with progress(f"predicting {len(seen)} runs"):
        answers = default_calibration().everywhere.ends(seen)
    rows: list[dict[str, Any]] = [
        {
            "workload": curve.workload,
            "run": curve.name,
            "at_step": float(part.steps[-1]) if len(part.steps) else 0.0,
            "now": float(part.metric[-1]) if len(part.metric) else None,
            "predicted": _number(answer.value),
            "lower": _number(answer.lower),
            "upper": _number(answer.upper),
            "status": str(answer.status),
            "stages": list(answer.stages),
        }
        for curve, part, answer in sorted(
            zip(curves, seen, answers, strict=True), key=lambda row: (row[0].workload, row[2].value)
        )
    ]
    table = Table(title="predicted ends, best first; infinite ones have diverged", box=SIMPLE_HEAD)
    headings = ("workload", "run", "at_step", "now", "predicted", "lower", "upper", "status")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("workload", "run", "status") else "right")
    for row in rows:
        table.add_row(*(_cell(row[heading]) for heading in headings))
    if json_path:
        write_text(json_path, json_text({"runs": rows}))
    terminal().print(table)


@curves_app.command("evaluate")
def evaluate_command(
    curves: CurvesOption = None,
    calibration: CalibrationOption = None,
    names: Annotated[
        str, typer.Option("--methods", help="Methods to score, with commas between.")
    ] = "earlycurve,earlycurve-published,slaq,power-law,last-value",
    json_path: JsonOption = None,
) -> None:
    """Score predictors by the share of each run they see: error, and whether they find the best run.

    On each workload of Table II, EarlyCurve uses thresholds chosen on the other five.

        ebbtide curves evaluate --json out.json
    """
    from ebbtide.forecasts.learning_curves.calibration import default_calibration, read_calibration
    from ebbtide.forecasts.learning_curves.methods import evaluate_methods, table_two_curves

    whole = read_curves(curves) if curves else table_two_curves()
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    known = read_calibration(calibration) if calibration else default_calibration()
    began = time.perf_counter()
    with progress("fitting", len(chosen)) as state:
        scores = evaluate_methods(whole, known, chosen, lambda method: state.begin(f"fitting {method}"))
    took_s = time.perf_counter() - began
    scores["curves"] = {"file": curves.name if curves else "table-two.parquet", "number": len(whole)}
    if json_path:
        write_text(json_path, json_text(scores))
    titles = {
        "relative_error_mean": "mean relative error",
        "top1": "the best run was ranked first",
        "top3": "the best run was among the first three",
    }
    for key, title in titles.items():
        _print_by_theta(title, scores["methods"], key)
    typer.echo(f"{len(whole)} curves in {took_s:.1f} s")
    print_written(json_path)


@curves_app.command("measure")
def measure_command(
    into: Annotated[Path, typer.Option("--into", "-o", help="The Parquet file to write.")] = Path(
        "curves.parquet"
    ),
    workloads: Annotated[str, typer.Option(help="Workloads of Table II; all six by default.")] = "",
    data: Annotated[
        Path | None, typer.Option(help="Folder of the original datasets; by default stand-ins.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel trainings, each on one core.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data order.")] = 0,
) -> None:
    """Train the settings of Table II and write their learning curves.

    ebbtide curves measure --workloads svm,linear-regression --into curves.parquet
    """
    from ebbtide.jobs.reference.benchmarks import BENCHMARKS, benchmark
    from ebbtide.jobs.reference.measuring import measure_curves

    names = [name.strip() for name in workloads.split(",") if name.strip()] or list(BENCHMARKS)
    trials = [(name, number) for name in names for number in range(len(benchmark(name).settings))]
    with progress("training", len(trials)) as state:

        def report(curve: Curve) -> None:
            state.advance()
            state.say(f"training; {curve.workload} {curve.name} ended at {curve.final:.4f}")

        measured = measure_curves(trials, seed=seed, data=data, workers=workers, on_curve=report)
    write_curves(measured, into)
    typer.echo(f"wrote {len(measured)} curves to {into}")


@curves_app.command("profile")
def profile_command(
    workload: Annotated[str, typer.Argument(help="A workload of Table II.")] = "resnet",
    setting: Annotated[int, typer.Option(help="Index of its setting, from 0.")] = 0,
    instance_types: Annotated[
        str, typer.Option(help="AWS types to estimate for; by default those of SpotTune's Table III.")
    ] = "r4.large,r3.xlarge,r4.xlarge,m4.2xlarge,r4.2xlarge,m4.4xlarge",
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to measure on each number of cores.")] = 2.0,
    json_path: JsonOption = None,
) -> None:
    """Time the steps of a training here, and estimate them for instance types (SpotTune Fig. 6).

    ebbtide curves profile resnet --setting 3
    """
    from ebbtide.jobs.reference.profiling import profile
    from ebbtide.market.catalogue import default_catalogue

    names = [name.strip() for name in instance_types.split(",") if name.strip()]
    machines = [default_catalogue().instance_type("aws", name) for name in names]
    with progress(f"timing {workload} on several numbers of cores"):
        model, found = profile(workload, setting, seconds=seconds)
    content = {
        "workload": workload,
        "setting": setting,
        "parallel_share": model.parallel,
        "measured": {
            str(cores): {
                "seconds_per_step": times.mean_s,
                "coefficient_of_variation": times.coefficient_of_variation,
            }
            for cores, times in found.items()
        },
        "estimated": {machine.name: model.seconds_per_step(machine) for machine in machines},
    }
    if json_path:
        write_text(json_path, json_text(content))
    table = Table(title=f"{workload}, setting {setting}: seconds per step", box=SIMPLE_HEAD)
    for heading in ("machine", "vCPUs", "seconds", "variation"):
        table.add_column(heading, justify="left" if heading == "machine" else "right")
    for cores, times in found.items():
        table.add_row("here", str(cores), f"{times.mean_s:.3g}", f"{times.coefficient_of_variation:.3f}")
    for machine in machines:
        table.add_row(machine.name, str(machine.vcpus), f"{model.seconds_per_step(machine):.3g}", "")
    terminal().print(table)


@curves_app.command("calibrate")
def calibrate_command(
    curves: CurvesOption = None,
    into: Annotated[Path, typer.Option("--into", "-o", help="The JSON file to write.")] = Path("calibration.json"),
) -> None:
    """Choose EarlyCurve's thresholds on complete curves: on all workloads, and on all but each.

    ebbtide curves calibrate --curves curves.parquet --into calibration.json
    """
    from ebbtide.forecasts.learning_curves.calibration import calibrate, write_calibration
    from ebbtide.forecasts.learning_curves.methods import table_two_curves

    whole = read_curves(curves) if curves else table_two_curves()
    with progress("calibrating") as state:
        found = calibrate(whole, on_progress=state.counted)
    write_calibration(found, into)
    chosen = found.everywhere.thresholds
    typer.echo(f"xi {chosen.change:g}, epsilon {chosen.steady:g}; wrote {into}")


def _read_csv(file: Path, max_steps: float | None) -> list[Curve]:
    if max_steps is None:
        raise InputError("a CSV does not contain the last step: give --max-steps", file=file)
    table = read_csv_text(file)
    for column in ("step", "metric"):
        if column not in table:
            raise InputError(f"has no column {column}; it has {', '.join(map(str, table.columns))}", file=file)
        values = pd.to_numeric(table[column], errors="coerce").astype("float64")
        bad = table.index[values.isna() & table[column].notna() & (table[column].astype(str).str.lower() != "nan")]
        if len(bad):
            found = table[column].iloc[bad[0]]
            raise InputError(f"{found!r} is not a number", file=file, row=int(bad[0]) + 2, field=column)
        table[column] = values
    runs = table.groupby("run", sort=False) if "run" in table else [("run", table)]
    return [
        Curve(file.stem, str(name), rows["step"].to_numpy(float), rows["metric"].to_numpy(float), max_steps)
        for name, rows in runs
    ]


def _number(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _cell(value: float | str | None) -> str:
    if value is None:
        return "inf"
    return value if isinstance(value, str) else f"{value:.6g}"


def _print_by_theta(title: str, methods: dict[str, Any], key: str) -> None:
    table = Table(title=f"{title}, by theta", box=SIMPLE_HEAD)
    table.add_column("method", no_wrap=True)
    by_method = {name: scores["by_theta"] for name, scores in methods.items()}
    for theta in next(iter(by_method.values()), {}):
        table.add_column(theta, justify="right")
    for name, scores in by_method.items():
        table.add_row(name, *("-" if found[key] is None else f"{found[key]:.4f}" for found in scores.values()))
    terminal().print(table)
