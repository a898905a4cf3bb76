"""The policy of a run: by its file, by the command line, by default; with what the sweep says of its goals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.job_files import read_sweep
from ebbtide.jobs.job_list import OneJob, kind_of_saved
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import InstanceType, default_catalogue
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.for_job import asked_policy, policies_for, policy_for
from ebbtide.policies.registry import DEFAULT
from ebbtide.policies.spottune.policy import SpotTune


def sweep(**more: Any) -> OneJob:
    return kind_of_saved(more).parse({"name": "s", "command": "python train.py", **more})


def two_trials(**more: Any) -> Sweep:
    given = {"grid": {"lr": [0.1, 0.2]}, "metric": "loss", "max_trial_steps": 100}
    return Sweep.parse({"name": "s", "command": "python train.py {lr}", **given, **more})


def test_the_file_s_policy_is_the_default() -> None:
    asked = sweep(policy={"name": "reactive", "max_price_ratio": 0.5})
    assert policy_for(asked, DEFAULT) == Reactive(max_price_ratio=0.5)
    assert asked_policy(asked, DEFAULT) == ("reactive", {"max_price_ratio": 0.5})
    usual = policy_for(sweep(), DEFAULT)
    assert isinstance(usual, Ebbtide)
    assert usual.measured == sweep().is_measured
    assert isinstance(policy_for(sweep(policy="default"), DEFAULT), Ebbtide)


def test_its_parameters_hold_for_the_policy_that_it_names_and_no_other() -> None:
    asked = sweep(policy={"name": "reactive", "max_price_ratio": 0.5})
    assert policy_for(asked, "reactive") == Reactive(max_price_ratio=0.5)
    assert policy_for(asked, "cheapest-spot").name == "cheapest-spot"


def test_the_command_line_comes_before_the_file(tmp_path: Path) -> None:
    asked = sweep(policy={"name": "reactive", "max_price_ratio": 0.5})
    assert policy_for(asked, DEFAULT, parameters={"max_price_ratio": 2}) == Reactive(max_price_ratio=2.0)
    (tmp_path / "mine.yaml").write_text("policy: reactive\nmax_price_ratio: 0.7\n")
    file = str(tmp_path / "mine.yaml")
    # A file of parameters that is named is nearer than what the job says of the policy that it is one of.
    assert asked_policy(asked, file) == ("reactive", {"name": "mine", "max_price_ratio": 0.7})
    own = sweep(policy={"name": file, "max_price_ratio": 0.5})
    for name in (DEFAULT, file, f"{tmp_path}/../{tmp_path.name}/mine.yaml"):
        assert asked_policy(own, name) == ("reactive", {"name": "mine", "max_price_ratio": 0.5})
    assert asked_policy(sweep(), file, {"max_price_ratio": 3}) == (
        "reactive",
        {"name": "mine", "max_price_ratio": 3},
    )
    # What was resolved once leads to the same policy again, whatever becomes of the file.
    (tmp_path / "mine.yaml").unlink()
    assert policy_for(sweep(), "reactive", parameters={"name": "mine", "max_price_ratio": 0.7}).name == "mine"


def test_deadline_and_budget_are_what_the_policies_aim_at() -> None:
    goals = {"deadline_h": 12, "budget_usd": 20}
    within = cast(WithinBudget, policy_for(sweep(**goals), "dynamic-pricing-makespan"))
    found = cast(DynamicPricing, within.policy)
    assert (found.slo_h, found.budget_usd) == (12.0, 20.0)
    own = {"name": "dynamic-pricing-makespan", "slo_h": 6}
    within = cast(WithinBudget, policy_for(sweep(**goals, policy=own), DEFAULT))
    assert cast(DynamicPricing, within.policy).slo_h == 6.0
    known = {"max_trial_steps": 100, "other_steps_per_hour_per_vcpu": 5.0}
    late = cast(WithinBudget, policy_for(sweep(**goals, **known), "deadline")).policy
    assert cast(Deadline, late).deadline_s == 12 * HOUR_S


def test_spottune_takes_them_with_the_sweep_s_own_settings() -> None:
    found = cast(SpotTune, policy_for(two_trials(theta=0.4, policy={"name": "spottune-bid", "mcnt": 1}), DEFAULT))
    assert (found.name, found.theta, found.mcnt) == ("spottune-bid", 0.4, 1)
    usual = cast(Ebbtide, policy_for(two_trials(theta=0.4), DEFAULT, parameters={"theta": 0.6}))
    assert (usual.theta, usual.selects) == (0.6, True)
    late = two_trials(decides="capacity", deadline_h=10)
    assert cast(Ebbtide, policy_for(late, DEFAULT)).deadline_s == 36_000.0
    assert cast(Ebbtide, policy_for(late, DEFAULT, parameters={"deadline_s": 7200})).deadline_s == 7200.0


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"slo_h": {"s-2": 3}}, r"field slo_h\.s-2: unknown job 's-2'"),
        ({"quotas": {"p3.2xlage": 3}}, r"field quotas\.p3\.2xlage: unknown instance type .* 'p3.2xlarge'"),
    ],
)
def test_a_limit_of_something_that_is_not_there_is_told(parameters: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        policy_for(two_trials(), "dynamic-pricing-cost", parameters=parameters)


def test_instance_types_of_the_user_s_own_may_be_limited() -> None:
    known = default_catalogue() + [InstanceType("aws", "x9.own", 6, 12.0)]  # noqa: RUF005
    asked = two_trials(policy={"name": "dynamic-pricing-cost", "quotas": {"x9.own": 1}})
    (found,) = policies_for("dynamic-pricing-cost", asked, None, known)
    assert cast(DynamicPricing, found).quotas == {"x9.own": 1}


def test_jobs_are_limited_by_their_names() -> None:
    given = {"slo_h": {"s-1": 3}, "quotas": {"p3.2xlarge": 2}}
    found = cast(DynamicPricing, policy_for(two_trials(), "dynamic-pricing-cost", parameters=given))
    assert found.slo_h == {"s-1": 3.0}


@pytest.mark.usefixtures("in_project")
def test_a_cookbook_needs_to_know_how_long_the_work_takes() -> None:
    known = read_sweep("examples/matrix/rsvd.yaml", to_run=True)
    made = policy_for(known, "default")
    assert (made.name, made.policy.deadline_s) == ("skyline", 6 * 3600.0)  # type: ignore[attr-defined]
    unknown = read_sweep("examples/matrix/gnmf.yaml", to_run=True)
    with pytest.raises(InputError, match="policy skyline plans by how long the work takes.*gnmf.*task_s"):
        policy_for(unknown, "skyline")


@pytest.mark.parametrize(
    ("more", "parameters", "missing"),
    [
        ({"policy": "deadline"}, {}, "steps and steps_per_hour"),
        ({"policy": "deadline", "max_trial_steps": 100}, {}, "steps_per_hour"),
        ({"policy": "deadline", "other_steps_per_hour_per_vcpu": 5.0}, {}, "steps"),
        (
            {"policy": "deadline", "command": "python {task}", "tasks": ["a"]},
            {},
            "steps_per_hour",
        ),
        ({"policy": "uniform-progress", "deadline_h": 2.0}, {}, "steps and steps_per_hour"),
        ({"policy": "uniform-progress"}, {"deadline_s": 7200.0}, "steps and steps_per_hour"),
    ],
)
def test_a_deadline_needs_to_know_how_long_the_work_takes(
    more: dict[str, Any], parameters: dict[str, Any], missing: str
) -> None:
    with pytest.raises(InputError, match=f"field policy: policy .* plans by how long .* write its {missing},"):
        policy_for(sweep(**more), DEFAULT, parameters=parameters)


def test_where_no_deadline_is_given_some_rules_need_not_know_it() -> None:
    assert isinstance(policy_for(sweep(policy="uniform-progress"), DEFAULT), Deadline)
    known = sweep(policy="deadline", max_trial_steps=100, other_steps_per_hour_per_vcpu=5.0)
    assert isinstance(policy_for(known, DEFAULT), Deadline)
