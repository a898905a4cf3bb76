"""Execution as a flow: a backtest on days that no model has seen, its policies mapped over tasks.

Every policy that asks models runs twice from the same starts: with the bundle, and without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped

from ebbtide.analysis.backtest import backtest
from ebbtide.analysis.result import BacktestResult
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.jobs.job import Job
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.api.view import View
from ebbtide.policies.registry import ASK_MODELS, names_of, policy
from flows.task_runner import task_runner

# Added to the name of a policy that runs without the models that it could ask.
WITHOUT = "-without-models"


@dataclass(frozen=True)
class Renamed:
    """A policy under another name.

    Attributes:
        policy: The policy that decides.
        name: The name in tables.
    """

    policy: Policy
    name: str

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return self.policy.wakes_on

    @property
    def period_lead_s(self) -> float:
        return getattr(self.policy, "period_lead_s", 0.0)

    def decide(self, view: View) -> Iterable[Action]:
        return self.policy.decide(view)


@task(task_run_name="backtest-{name}", persist_result=False)
def backtest_policy(
    name: str, models: ModelBundle, job: Job, prices: PriceHistory, billing: str, starts: int, seed: int
) -> BacktestResult:
    """One policy from every start."""
    return backtest([named(name, models)], job, prices, billing=billing, starts=starts, seed=seed, models=models)


def named(name: str, models: ModelBundle) -> Policy:
    """The policy of a name, with the models, or without them if the name says so."""
    if not name.endswith(WITHOUT):
        return policy(name, models)
    return Renamed(policy(name.removesuffix(WITHOUT)), name)


@flow(name="execute", validate_parameters=False, task_runner=task_runner())
def execute(parameters: Mapping[str, Any], prices: Path, bundle: Path, into: Path) -> None:
    """Backtest, and write the record.

    Args:
        parameters: The `execute` section of params.yaml.
        prices: The price file.
        bundle: The folder of the model bundle.
        into: The record's folder.

    Raises:
        InputError: There is no bundle, a policy or the job is unknown, or no days follow those that the models
            were trained on.
    """
    models = ModelBundle.read(bundle)
    history = PriceHistory.read(prices)
    wanted = names_of(parameters["policies"])
    asks = {name for name in wanted if set(ASK_MODELS.get(name, ())) & models.parts.keys()}
    names = [each for name in wanted for each in ((name, name + WITHOUT) if name in asks else (name,))]
    results = backtest_policy.map(
        names,
        models=unmapped(models),
        job=unmapped(Job.read(parameters["job"])),
        prices=unmapped(history.window(max(models.trained_until_s, history.start_s), history.end_s)),
        billing=unmapped(parameters["billing"]),
        starts=unmapped(parameters["starts"]),
        seed=unmapped(parameters["seed"]),
    ).result()
    BacktestResult.joined(results).record().write(into)
