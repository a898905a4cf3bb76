"""Execution as a flow: a backtest, its policies mapped over tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped

from ebbtide.analysis.backtest import backtest
from ebbtide.analysis.result import BacktestResult
from ebbtide.jobs.job import Job
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.registry import policies, policy
from flows.task_runner import task_runner


@task(task_run_name="backtest-{name}", persist_result=False)
def backtest_policy(
    name: str, job: Job, prices: PriceHistory, billing: str, starts: int, seed: int
) -> BacktestResult:
    """One policy from every start."""
    return backtest([policy(name)], job, prices, billing=billing, starts=starts, seed=seed)


@flow(name="execute", validate_parameters=False, task_runner=task_runner())
def execute(parameters: Mapping[str, Any], prices: Path, into: Path) -> None:
    """Backtest, and write the record.

    Args:
        parameters: The `execute` section of params.yaml.
        prices: The price file.
        into: The record's folder.
    """
    names = [each.name for each in policies(parameters["policies"])]
    results = backtest_policy.map(
        names,
        job=unmapped(Job.read(parameters["job"])),
        prices=unmapped(PriceHistory.read(prices)),
        billing=unmapped(parameters["billing"]),
        starts=unmapped(parameters["starts"]),
        seed=unmapped(parameters["seed"]),
    ).result()
    BacktestResult.joined(results).record().write(into)
