"""Execution as a flow: a job on days that no model has seen, its policies mapped over tasks.

Every policy that asks models runs twice from the same starts: with the bundle, and without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped

from ebbtide.backtesting.record import outcomes_frame, typical_start
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import unknown_name
from ebbtide.forecasts.bundle import MODEL_PARTS, ModelBundle
from ebbtide.market.availability import Availability
from ebbtide.market.prices import PriceHistory
from ebbtide.market.sources.parquet import load_parquet
from ebbtide.policies.registry import names_of
from ebbtide.tracking.execute_stage import COOKBOOK, JobRun, PreparedRun, prepared
from flows.parameters import Execute, own_policies
from flows.resumable import KEEP_RESULT, Item, resumable
from flows.task_runner import task_runner


@task(task_run_name="replay-{item.name}", **KEEP_RESULT)
def replay(item: Item, run: PreparedRun) -> list[dict[str, Any]]:
    """Outcomes of one policy of a job from every start."""
    return run.rows(item.name)


@task(task_run_name="show-{name}", persist_result=False)
def show(name: str, run: PreparedRun, start_s: float) -> Outcome:
    """The outcome of one policy from the start that the report shows, with its timeline."""
    return run.shown(name, start_s)


@flow(name="execute", flow_run_name="execute@{name}", task_runner=task_runner("processes"))
def execute(
    name: str, parameters: Execute, prices: Path, capacity: Path, bundle: Path, policies: Path, into: Path
) -> None:
    """Replay a job under its policies, and write its record.

    Args:
        name: Name of the job in the parameters.
        parameters: The jobs, and how they are replayed.
        prices: The price file.
        capacity: The file of probes of capacity, which may be empty.
        bundle: The folder of the model bundle.
        policies: The folder of own policies.
        into: Folder of the record.

    Raises:
        InputError: There is no bundle, a policy or the job is unknown, or no days follow those that the models
            were trained on.
    """
    run = job_run(name, parameters)
    models, history = _executable(ModelBundle.read(bundle)), PriceHistory.read(prices)
    later = history.window(max(models.trained_until_s, history.start_s), history.end_s)
    known = Availability.read(capacity) if len(load_parquet(capacity)) else None
    ready, names = prepared(run, models, later, known), list(run.names(models))
    settings = [parameters.model_dump(mode="json"), models.versions]
    with resumable(
        f"execute@{name}", names, settings, [prices, capacity, run.job, bundle, *own_policies(policies)]
    ) as items:
        rows = replay.map(items, unmapped(ready)).result()
        outcomes = outcomes_frame([row for each in rows for row in each])
        start_s = ready.starts_s[typical_start(outcomes)]
        shown = show.map(names, unmapped(ready), unmapped(start_s)).result()
        ready.record(outcomes, {outcome.policy: outcome for outcome in shown}).write(into)


def _executable(models: ModelBundle) -> ModelBundle:
    """The bundle with what runs ask: models, and the cookbook; nothing depends on other solved parts."""
    asked = {name: part for name, part in models.parts.items() if name in MODEL_PARTS or name == COOKBOOK}
    return ModelBundle(models.folder, asked)


def job_run(name: str, parameters: Execute) -> JobRun:
    """A job as `execute` replays it, with the settings that it shares with the others."""
    if name not in parameters.runs:
        raise unknown_name("job of execute.runs", name, parameters.runs)
    own = parameters.runs[name]
    return JobRun(
        name=name,
        job=own.job,
        policies=tuple(names_of(own.policies)),
        starts=own.starts or parameters.starts,
        seed=parameters.seed,
        billing=parameters.billing,
        market=own.market,
        every_h=own.every_h,
    )
