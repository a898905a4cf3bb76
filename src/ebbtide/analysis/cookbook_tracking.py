"""Cookbooks and the price chains under them in MLflow: a run each, with the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param

from ebbtide.analysis.tracking import parent_tags, tracking
from ebbtide.policies.cookbook.cookbook import Cookbook

EXPERIMENT = "cookbooks"


def log_chain(
    scores: Mapping[str, float], about: Mapping[str, Any], file: Path, *, uri: str, artifacts: str
) -> None:
    """Log a price chain.

    Args:
        scores: Of it, on later days.
        about: What it was learned from.
        file: Where it was written; kept with the run.
        uri: Where to track.
        artifacts: See `tracking`.
    """
    _log("price-chain", str(about["market"]), about, scores, file, uri, artifacts)


def log_cookbook(book: Cookbook, about: Mapping[str, Any], file: Path, *, uri: str, artifacts: str) -> None:
    """Log a cookbook: what it was solved for, and what it expects at the middle price.

    Args:
        book: The cookbook.
        about: What its market was learned from.
        file: Where it was written; kept with the run.
        uri: Where to track.
        artifacts: See `tracking`.
    """
    problem = book.problem
    middle = len(problem.market.prices) // 2
    parameters = {
        "workflow": problem.workflow.name,
        "deadline_h": problem.market.steps * problem.step_h,
        "most": problem.most,
        "risk_aversion": problem.risk_aversion,
        "work_h": problem.workflow.work_h,
        **about,
    }
    metrics = {
        "expected_usd": float(book.mean_usd[0, -1, 0, middle]),
        "deviation_usd": float(book.deviation_usd[0, -1, 0, middle]),
        "price_usd_per_hour": float(problem.market.prices[middle]),
    }
    _log("cookbook", problem.workflow.name, parameters, metrics, file, uri, artifacts)


def _log(
    kind: str,
    name: str,
    parameters: Mapping[str, Any],
    metrics: Mapping[str, float],
    file: Path,
    uri: str,
    artifacts: str,
) -> None:
    with tracking(uri, EXPERIMENT, artifacts) as client:
        home = client.get_experiment_by_name(EXPERIMENT).experiment_id
        run_id = client.create_run(home, run_name=name, tags={"ebbtide.kind": kind, **parent_tags()}).info.run_id
        told = [Param(key, str(value)) for key, value in parameters.items()]
        found = [Metric(key, value, 0, 0) for key, value in metrics.items()]
        client.log_batch(run_id, params=told, metrics=found)
        client.log_artifact(run_id, str(file))
        client.set_terminated(run_id)
