"""Execution as a flow: a job of each kind on days that no model has seen, its policies mapped over tasks.

Every policy that asks models runs twice from the same starts: with the bundle, and without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped

from ebbtide.backtesting.record import write_records
from ebbtide.backtesting.result import BacktestResult
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.market.availability import Availability
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.parquet import load_parquet
from ebbtide.tracking.execute_stage import JobRun, executed, record_of, runs_of
from flows.task_runner import task_runner


@task(task_run_name="{run.name}-{name}", persist_result=False)
def replay(
    run: JobRun, name: str, models: ModelBundle, prices: PriceHistory, capacity: Availability | None
) -> BacktestResult:
    """One policy of a job from every start."""
    return executed(run, name, models, prices, capacity)


@flow(name="execute", validate_parameters=False, task_runner=task_runner("processes"))
def execute(parameters: Mapping[str, Any], prices: Path, capacity: Path, bundle: Path, into: Path) -> None:
    """Replay every job under its policies, and write a record for each job.

    Args:
        parameters: The `execute` section of params.yaml.
        prices: The price file.
        capacity: The file of probes of capacity, which may be empty.
        bundle: The folder of the model bundle.
        into: Folder of the records.

    Raises:
        InputError: There is no bundle, a policy or a job is unknown, or no days follow those that the models were
            trained on.
    """
    models = ModelBundle.read(bundle)
    history = PriceHistory.read(prices)
    later = history.window(max(models.trained_until_s, history.start_s), history.end_s)
    runs = runs_of(parameters)
    pairs = [(run, name) for run in runs for name in run.names(models)]
    results = replay.map(
        [run for run, _ in pairs],
        [name for _, name in pairs],
        models=unmapped(models),
        prices=unmapped(later),
        capacity=unmapped(Availability.read(capacity) if len(load_parquet(capacity)) else None),
    ).result()
    found: dict[str, list[BacktestResult]] = {run.name: [] for run in runs}
    for (run, _), result in zip(pairs, results, strict=True):
        found[run.name].append(result)
    write_records({run.name: record_of(run, found[run.name], models, later) for run in runs}, into)
