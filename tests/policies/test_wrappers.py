"""Policies that wrap others leave them as they are: what is affordable and given is done, action by action."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import JobList, ListedJob, OneJob, Runnable, one_job
from ebbtide.market.billing import billing_preset
from ebbtide.market.generator import generate_auction_prices
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.backoff import BacksOff
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import POLICIES
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.stand_in_curves import stand_in_curves

PRICES = generate_auction_prices(days=14, seed=5)
START_S = PRICES.start_s + 6 * 86_400.0
RATES = {"c3.xlarge": 400.0, "m3.medium": 150.0}


def sweep(name: str, **fields: object) -> OneJob:
    work: OneJob = one_job(
        {"name": name, "command": "x", "max_trial_steps": 200, "steps_per_hour": RATES} | fields
    )
    return work


def works() -> dict[str, Runnable]:
    """One job, a cluster, a sweep that shares machines, and jobs in order."""
    cluster = {"framework": "dask", "machines": 2, "checkpoint": {"save_s": 0, "restore_s": 0}}
    shared = {"command": "x {n}", "grid": {"n": [1, 2, 3, 4]}, "metric": "m", "share": 0.5}
    parts = [
        ListedJob(work=sweep("a")),
        ListedJob(work=sweep("side", max_trial_steps=450)),
        ListedJob(work=sweep("b", **cluster), needs=("a",)),
        ListedJob(work=sweep("c"), needs=("a", "b")),
    ]
    return {
        "single": sweep("single", deadline_h=48.0),
        "cluster": sweep("cluster", deadline_h=48.0, **cluster),
        "shared": sweep("shared", **shared),
        "list": JobList(name="list", listed=tuple(parts), deadline_h=30.0),
    }


WRAPPERS: dict[str, Callable[[Policy], Policy]] = {
    "budget": lambda policy: WithinBudget(policy, 1e6),
    "refusals": BacksOff,
    "both": lambda policy: BacksOff(WithinBudget(policy, 1e6)),
}


def run(work: Runnable, policy: Policy) -> Outcome:
    jobs: tuple[Job, ...] = work.jobs()
    curves = tuple(stand_in_curves(jobs, maximise=False)) if len(jobs) > 1 else ()
    return Scenario(jobs, PRICES, billing_preset("gcp-spot"), seed=2, curves=curves).run(policy, START_S)


@cache
def bare(kind: str, name: str) -> Outcome:
    return run(works()[kind], policy_for(works()[kind], name))


# Each of these looks at what has come of its actions, or wraps what does.
NAMES = [
    "reactive",
    "on-demand",
    "exosphere",
    "dynamic-pricing-cost",
    "deadline",
    "skyline",
    "spottune",
    "deepspotcloud-migrate",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", works())
@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrapped_rents_the_same_machines(name: str, kind: str, wrapper: str) -> None:
    work = works()[kind]
    if name == "skyline" and kind == "shared":
        pytest.skip("it plans for one job")
    wrapped = run(work, WRAPPERS[wrapper](policy_for(work, name)))
    alone = bare(kind, name)
    assert alone.finished
    assert [(lease.market, lease.requested_s, lease.ended_s) for lease in wrapped.leases] == [
        (lease.market, lease.requested_s, lease.ended_s) for lease in alone.leases
    ]
    assert wrapped.cost_usd == pytest.approx(alone.cost_usd)
    assert not set(NAMES) - set(POLICIES)


def test_a_budget_that_suffices_changes_nothing_on_a_list_and_one_that_does_not_is_kept() -> None:
    work = works()["list"].model_copy(update={"budget_usd": 3.0})
    outcome = run(work, policy_for(work, "dynamic-pricing-cost"))
    assert outcome.finished
    assert outcome.cost_usd == pytest.approx(bare("list", "dynamic-pricing-cost").cost_usd)
    small = work.model_copy(update={"budget_usd": 0.5 * outcome.cost_usd})
    ended = run(small, policy_for(small, "dynamic-pricing-cost"))
    assert not ended.finished
    assert ended.cost_usd <= 0.5 * outcome.cost_usd
