"""Clocks of controller and machines that differ by minutes mislead neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ebbtide.testing.deterministic import world
from ebbtide.testing.deterministic.faults import Faults
from ebbtide.testing.deterministic.scenario import Scenario
from ebbtide.testing.deterministic.simulate import in_memory


def two_on_demand(drawn: Scenario) -> Scenario:
    """Two trainings of ten minutes: ten times what a machine goes on without its controller."""
    changed = {"grid": {"lr": [0.1, 0.2]}, "max_trial_steps": 200, "budget_usd": 500.0}
    return replace(drawn, sweep=drawn.sweep.model_copy(update=changed), policy_name="on-demand")


@pytest.mark.parametrize(("machines_s", "controllers_s"), [(400.0, -300.0), (-400.0, 300.0)])
def test_no_machine_ends_itself_while_its_controller_lives(
    machines_s: float, controllers_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: Callable[..., float] = Faults.number
    skews = {"skew": machines_s, "controller's skew": controllers_s}
    monkeypatch.setattr(Faults, "number", lambda self, what, *of: skews.get(what, given(self, what, *of)))
    with in_memory() as place:
        simulated = world._World(1, place / "run", (), two_on_demand)
        run = simulated.run()
    assert (run.violations, run.state, run.machines) == ([], "finished", 2)
