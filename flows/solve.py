"""Solving a cookbook as a flow: a workflow, a deadline and a price chain in, what to do when out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide._utc import HOUR_S, to_epoch_s
from ebbtide.analysis.tracking import log_cookbook
from ebbtide.forecasts.price_chain import PriceChain, load_chain
from ebbtide.jobs.workflow import Workflow
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide.policies.cookbook.solving import solve
from ebbtide.policies.cookbook.storage import save_cookbook


@task(persist_result=False)
def induce(workflow: Workflow, chain: PriceChain, start_s: float, parameters: Mapping[str, Any]) -> Cookbook:
    """Backward induction."""
    market = ChargeModel(chain.prices, *chain.steps(start_s, parameters["deadline_h"], HOUR_S))
    if parameters["on_demand_usd_per_hour"] is not None:
        market = market.with_on_demand(parameters["on_demand_usd_per_hour"])
    return solve(
        CookbookProblem(workflow, market, most=parameters["most"], risk_aversion=parameters["risk_aversion"])
    )


@task(retries=2, retry_delay_seconds=2, persist_result=False)
def track(book: Cookbook, about: Mapping[str, Any], file: Path, tracking: Mapping[str, Any]) -> None:
    """Log the cookbook."""
    log_cookbook(book, about, file, uri=tracking["uri"], artifacts=tracking["artifacts"])


@flow(name="solve", validate_parameters=False)
def solve_cookbook(parameters: Mapping[str, Any], tracking: Mapping[str, Any], chain: Path, into: Path) -> None:
    """Solve, write and track.

    Args:
        parameters: The `solve` section of params.yaml.
        tracking: The `tracking` section.
        chain: The price chain's file.
        into: The cookbook's file.

    Raises:
        InputError: A file is not what it should be, or the deadline cannot be met.
    """
    learned, about = load_chain(chain)
    start_s = to_epoch_s(parameters["start"] if parameters["start"] is not None else about["to"])
    book = induce(Workflow.read(parameters["workflow"]), learned, start_s, parameters)
    save_cookbook(book, into)
    track(book, about, into, tracking)
