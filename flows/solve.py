"""Solving as a flow: a workflow, a deadline and a price chain of the bundle in, a cookbook of the bundle out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import flow, task

from ebbtide._utc import HOUR_S, iso, to_epoch_s
from ebbtide.analysis.tracking import expected_of, log_cookbook
from ebbtide.errors import unknown_name
from ebbtide.forecasts.bundle import SOLVED, ModelBundle, part_of, write_solved
from ebbtide.forecasts.price_chain import PriceChain
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
def solve_cookbook(parameters: Mapping[str, Any], tracking: Mapping[str, Any], folder: Path) -> None:
    """Solve, write and track.

    Args:
        parameters: The `solve` section of params.yaml.
        tracking: The `tracking` section.
        folder: The model bundle's folder; what is solved goes into its folder `solved`.

    Raises:
        InputError: A file is not what it should be, the market has no chain, or the deadline cannot be met.
    """
    bundle = ModelBundle.read(folder)
    chains = {str(market): (market, chain) for market, chain in bundle.price_chains.items()}
    name = parameters["market"]
    if name not in chains:
        raise unknown_name("market with a price chain", name, chains)
    _, chain = chains[name]
    part = bundle.parts["price-chains"]
    assert part.trained_from_s is not None
    assert part.trained_until_s is not None
    start_s = to_epoch_s(parameters["start"]) if parameters["start"] is not None else part.trained_until_s
    book = induce(Workflow.read(parameters["workflow"]), chain, start_s, parameters)
    file = folder / SOLVED / "cookbook.safetensors"
    save_cookbook(book, file)
    window = part.trained_from_s, part.trained_until_s
    about = {"market": name, "from": iso(window[0]), "until": iso(window[1])}
    expected = expected_of(book)
    write_solved(bundle, {"cookbook": part_of(folder, f"{SOLVED}/{file.name}", window_s=window, scores=expected)})
    track(book, about, file, tracking)
