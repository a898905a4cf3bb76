"""Goals of some work reach every policy in one way, a user's own among them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import ebbtide as eb
from ebbtide.agent.config import AgentConfig
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.cli.main import main
from ebbtide.clouds.settings import LiveSettings, RunFolder
from ebbtide.controller.controller import Controller, Programs
from ebbtide.errors import InputError
from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.common_fields import Direction
from ebbtide.jobs.job_list import JobList, ListedJob
from ebbtide.jobs.sweep import Sweep
from ebbtide.policies.api.goals import Goals, for_goals, keeps_deadlines
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.for_job import deadline_remarks, policies_for, policy_for
from ebbtide.policies.registry import POLICIES, policy
from ebbtide.replay.scenario import Scenario

OWN = """
from dataclasses import dataclass, replace

import ebbtide as eb


@dataclass(frozen=True)
class Mine:
    goals: object = None
    name: str = "mine"
    wakes_on: frozenset[eb.policies.Wake] = frozenset()

    def for_goals(self, goals):
        return replace(self, goals=goals)

    def decide(self, view):
        for job in view.jobs:
            if not job.is_finished and not view.leases_of(job.job_id):
                market = min((m for m in view.markets if view.steps_per_s(job.job, m) > 0), key=view.on_demand_price)
                yield eb.policies.Request(market, on_demand=True, job=job.job_id)
"""

# It notes the deadline, the budget and theta that the view shows.
SEES = """
import json
import os
from dataclasses import dataclass

import ebbtide as eb


@dataclass(frozen=True)
class Sees:
    name: str = "sees"
    wakes_on: frozenset[eb.policies.Wake] = frozenset()

    def decide(self, view):
        goals = view.goals
        with open(os.environ["SEEN_GOALS"], "a") as out:
            out.write(json.dumps([goals.deadline_s, dict(goals.deadlines_s), goals.budget_usd, goals.theta]) + chr(10))
        return eb.policies.OnDemand().decide(view)
"""

KEEP_DEADLINES = {
    *("ebbtide", "deadline", "uniform-progress", "next-cheapest", "greedy-spot", "spottune-bid"),
    *("cookbook", "cookbook-dynamic", "skyline", "fixed", "dba"),
    *("dynamic-pricing-throughput", "dynamic-pricing-cost", "dynamic-pricing-makespan"),
}


def sweep(**more: Any) -> Sweep:
    known = {"max_trial_steps": 100, "steps_per_hour": {"c3.xlarge": 50.0}, "metric": "loss"} | more
    given = {name: value for name, value in known.items() if value is not None}
    return Sweep(name="s", command="x {a}", grid={"a": [1, 2]}, **given)


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(OWN)
    return f"{tmp_path / 'mine.py'}:Mine"


@pytest.fixture
def sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "sees.py").write_text(SEES)
    monkeypatch.setenv("SEEN_GOALS", str(tmp_path / "seen.jsonl"))
    return f"{tmp_path / 'sees.py'}:Sees"


def seen(folder: Path) -> list[Any]:
    """The distinct goals that the policy was shown, in their order."""
    lines = (folder / "seen.jsonl").read_text().splitlines()
    (folder / "seen.jsonl").unlink()
    return [json.loads(line) for line in dict.fromkeys(lines)]


def test_registered_policies_that_keep_deadlines_are_these() -> None:
    assert {name for name in POLICIES if keeps_deadlines(policy(name))} == KEEP_DEADLINES


@pytest.mark.parametrize("name", sorted(KEEP_DEADLINES))
def test_the_deadline_of_a_job_reaches_each_of_them(name: str) -> None:
    (found,) = policies_for(name, None, goals=Goals(deadline_s=5 * HOUR_S))
    (same,) = policies_for(name, sweep(deadline_h=5.0))
    for given in (found, same):
        assert getattr(given, "deadline_s", None) == 5 * HOUR_S or getattr(given, "slo_h", None) == 5.0


def test_all_goals_of_a_sweep_are_given() -> None:
    goals = Goals.of_sweep(sweep(deadline_h=2.0, budget_usd=3.0, theta=0.4, mcnt=1, direction=Direction.MAXIMIZE))
    assert goals == Goals(
        deadline_s=2 * HOUR_S,
        budget_usd=3.0,
        theta=0.4,
        mcnt=1,
        maximise=True,
        selects=True,
        is_measured=True,
        has_steps=True,
        work="s",
    )
    assert goals.has_deadline
    assert not Goals().has_deadline


def test_a_goal_that_is_not_given_changes_nothing() -> None:
    for name in POLICIES:
        made = policy(name)
        assert for_goals(made, Goals()) == made


def test_a_policy_of_ones_own_gets_them_too(own: str) -> None:
    asked = sweep(deadline_h=2.0, budget_usd=3.0, theta=0.4)
    found = policy_for(asked, own)
    assert isinstance(found, WithinBudget)
    assert getattr(found.policy, "goals") == Goals.of_sweep(asked)  # noqa: B009
    (alone,) = policies_for(own, None, goals=Goals(deadline_s=60.0))
    assert getattr(alone, "goals").deadline_s == 60.0  # noqa: B009
    assert keeps_deadlines(found)


def test_a_policy_sees_the_goals_through_every_verb(
    sees: str, tmp_path: Path, in_project: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = sweep(deadline_h=50.0, budget_usd=30.0, theta=0.4, max_trial_steps=20)
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(asked.model_dump(mode="json", exclude_none=True)))
    whole = [50 * HOUR_S, {}, 30.0, 0.4]
    short = ("--generate", "12", "--kind", "auction", "--starts", "1")

    def cli(*words: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--policies", sees, "--workers", "1"])
        assert ended.value.code == 0

    prices = eb.generate_prices(days=12, seed=1, kind="auction")
    assert eb.run(file, provider="replay", prices=prices, policy=sees).finished
    assert seen(tmp_path) == [whole]
    cli("compare", str(file), *short)
    assert seen(tmp_path) == [whole]
    cli("compare", "examples/one-day.yaml", *short, "--deadline", "26")
    assert seen(tmp_path) == [[26 * HOUR_S, {}, math.inf, None]]
    scenario = Scenario(asked.jobs(), prices, eb.billing_preset("ec2-second"), goals=Goals.of(asked))
    view = scenario.at_end(policy("reactive"))
    assert view.goals == Goals.of_sweep(asked)


def test_a_live_run_shows_them(tmp_path: Path) -> None:
    asked, store = sweep(deadline_h=50.0, budget_usd=30.0), str(tmp_path / "store")
    (tmp_path / "x").write_text("")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    work = asked.model_dump(mode="json")
    folder.begin(LiveSettings("run", "local", "reactive", work, str(tmp_path), store, {}))
    cloud: Any = SimpleNamespace(now_s=0.0, markets=(), time_of=lambda epoch_s: epoch_s)
    agent = AgentConfig("run", "", store, "")
    controller = Controller(folder, policy("reactive"), cloud, agent, Programs(3600.0))
    assert controller.engine.view.goals == Goals.of_sweep(asked)


def test_a_policy_of_a_list_sees_the_goals_of_its_own_jobs(sees: str, tmp_path: Path) -> None:
    late = sweep(deadline_h=90.0, max_trial_steps=20).model_copy(update={"name": "late"})
    jobs = (ListedJob(work=sweep(max_trial_steps=20)), ListedJob(work=late, policy=AskedPolicy(name=sees)))
    listed = JobList(name="l", listed=jobs, budget_usd=30.0)
    assert Goals.of(listed).deadlines_s == dict.fromkeys(late.job_names, 90 * HOUR_S)
    prices = eb.generate_prices(days=12, seed=1, kind="auction")
    scenario = Scenario(listed.jobs(), prices, eb.billing_preset("ec2-second"), goals=Goals.of(listed))
    assert scenario.run(policy_for(listed, "default"), prices.start_s + DAY_S).finished
    # Its budget is the list's, which limits all policies together.
    assert seen(tmp_path) == [[90 * HOUR_S, {}, math.inf, late.theta]]


def test_parameters_by_name_count_more() -> None:
    found = policy_for(sweep(deadline_h=2.0), "ebbtide", parameters={"deadline_s": 60.0})
    assert getattr(found, "deadline_s") == 60.0  # noqa: B009


def test_parameters_of_a_file_count_more(tmp_path: Path) -> None:
    (tmp_path / "soon.yaml").write_text("policy: deadline\ndeadline_s: 60.0\n")
    (found,) = policies_for(str(tmp_path / "soon.yaml"), None, goals=Goals(deadline_s=5 * HOUR_S))
    assert getattr(found, "deadline_s") == 60.0  # noqa: B009


def test_who_plans_by_the_length_of_work_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"policy skyline plans .* not said of s: write its steps_per_hour"):
        policy_for(sweep(steps_per_hour=None), "skyline")
    assert Goals(has_steps=False).knows_length is False
    assert Goals().knows_length is True


def test_a_policy_that_ignores_a_deadline_is_named_once() -> None:
    due, free = sweep(deadline_h=5.0, budget_usd=9.0), sweep()
    chosen = policies_for("reactive,deadline,on-demand", due)
    assert deadline_remarks([*chosen, *chosen], due) == [
        "reactive takes no account of the deadline",
        "on-demand takes no account of the deadline",
    ]
    assert not deadline_remarks(chosen, free)
    assert not deadline_remarks(chosen, None)
    assert len(deadline_remarks(chosen, None, Goals(deadline_s=60.0))) == 2
    late = sweep(deadline_h=9.0).model_copy(update={"name": "late"})
    jobs = (ListedJob(work=sweep()), ListedJob(work=late, policy=AskedPolicy(name="reactive")))
    listed = JobList(name="l", listed=jobs)
    # Only the second job has a deadline, and its own policy ignores it.
    assert deadline_remarks([policy_for(listed, "default")], listed) == [
        "reactive takes no account of the deadline"
    ]


def test_compare_gives_the_deadline_to_all_and_names_who_ignores_it(
    own: str, tmp_path: Path, in_project: None, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.json"
    words = ("--generate", "30", "--deadline", "26", "--billing", "gcp-spot", "--starts", "4", "--json", str(rows))
    with pytest.raises(SystemExit) as ended:
        main(["compare", "examples/one-day.yaml", "--policies", f"ebbtide,deadline,reactive,{own}", *words])
    assert ended.value.code == 0
    found = {row["policy"]: row for row in json.loads(rows.read_text())["rows"]}
    assert found["ebbtide"]["misses"] == found["deadline"]["misses"] == 0
    assert math.isfinite(found["mine"]["cost_usd"])
    told = capsys.readouterr().err
    assert "reactive takes no account of the deadline" in told
    assert "ebbtide takes no account" not in told
    assert "mine takes no account" not in told
