"""While the controller's disk is full machines train on; budgets are kept all the same, its own and its team's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.harness.deterministic import world
from tests.harness.deterministic.scenario import RUN, START_S, Scenario
from tests.harness.deterministic.simulate import in_memory
from tests.harness.deterministic.storage import StorageOf
from tests.harness.deterministic.virtual_time import Process, VirtualRuntime

from ebbtide.controller.team.account_book import AccountBook
from ebbtide.controller.team.account_lines import month_of
from ebbtide.controller.team.team import Team

BUDGET_USD = 0.075


def two_on_demand(drawn: Scenario) -> Scenario:
    """Two trainings that end after ten minutes; the disk has room again long after that."""
    changed = {"grid": {"lr": [0.1, 0.2]}, "max_trial_steps": 175, "billing": "gcp-spot", "budget_usd": BUDGET_USD}
    return replace(drawn, sweep=drawn.sweep.model_copy(update=changed), policy_name="on-demand", poll_s=10.0)


def test_the_budget_ends_a_run_whose_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "FAULTS_S", 2_200.0)
    with in_memory() as place:
        simulated = world._World(2, place / "run", (), two_on_demand)

        def fill() -> None:
            simulated.disk.full_until_s = simulated.time.now_s + 1_500.0

        simulated.time.begin(simulated.user, fill, 60.0)
        run = simulated.run()
        spent_usd = sum(machine.bill_usd for machine in simulated.cloud.machines.values())
        ended_s = max(machine.ended_s for machine in simulated.cloud.machines.values()) - START_S
    assert run.violations == []
    # The run is resumed once, and ends again; the first of its controllers has ended it.
    first = simulated.engines["controller-1"]
    assert first.gave_up == "budget of 0.075 USD reached while the journal could not be written"
    assert 0.05 < spent_usd <= BUDGET_USD
    # Not when there was room again: at once.
    assert 60.0 < ended_s < 1_500.0


def in_a_team(drawn: Scenario) -> Scenario:
    """The same in a team that has so much money, and a budget of its own that it does not reach."""
    two = two_on_demand(drawn)
    sweep = two.sweep.model_copy(update={"budget_usd": 100.0})
    return replace(two, sweep=sweep, team=Team(accounts="accounts", monthly_budget_usd=BUDGET_USD))


def test_the_team_s_budget_ends_a_run_whose_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "FAULTS_S", 2_200.0)
    written_s: list[float] = []
    with in_memory() as place:
        simulated = world._World(2, place / "run", (), in_a_team)
        process = Process("reader")
        book = AccountBook(StorageOf(simulated.storage, process, VirtualRuntime(simulated.time, process, 0.0)))

        def look() -> None:
            """Its account goes on being written, for the others."""
            assert simulated.time.now_s < simulated.disk.full_until_s
            (account,) = [one for one in book.read(month_of(START_S), {}) if one.run == RUN]
            assert account.machines == 2
            written_s.append(simulated.time.now_s - START_S)

        def fill() -> None:
            simulated.disk.full_until_s = simulated.time.now_s + 1_500.0

        simulated.time.begin(simulated.user, fill, 60.0)
        simulated.time.begin(process, look, 200.0)
        run = simulated.run()
        spent_usd = sum(machine.bill_usd for machine in simulated.cloud.machines.values())
        ended_s = max(machine.ended_s for machine in simulated.cloud.machines.values()) - START_S
    assert run.violations == []
    assert simulated.engines["controller-1"].gave_up == (
        "the team's budget of 0.075 USD for 2023-11 reached while the journal could not be written"
    )
    assert 0.05 < spent_usd <= BUDGET_USD
    assert 60.0 < ended_s < 1_500.0
    assert written_s
