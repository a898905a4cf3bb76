"""While the controller's disk is full machines train on; the budget is kept all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbtide.testing.deterministic import world
from ebbtide.testing.deterministic.scenario import START_S, Scenario
from ebbtide.testing.deterministic.simulate import in_memory

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
