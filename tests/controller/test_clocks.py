"""Clocks of controller and machines that differ by minutes mislead neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate

import pytest
from tests.harness.deterministic import world
from tests.harness.deterministic.cloud import CloudOf
from tests.harness.deterministic.faults import Faults
from tests.harness.deterministic.scenario import START_S, Scenario
from tests.harness.deterministic.simulate import in_memory

from ebbtide.base.utc import DAY_S
from ebbtide.clouds.clock import ForwardClock


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


@pytest.mark.long
@pytest.mark.parametrize("policy", ["cheapest-spot", "fickle"])
@pytest.mark.parametrize("behind_s", [45.0, 3600.0])
def test_a_controller_whose_clock_is_behind_the_cloud_s_goes_on(
    behind_s: float, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines have begun, by the cloud's clock, when by the controller's they have not."""
    monkeypatch.setattr(CloudOf, "now_s", property(lambda self: self._cloud.time.now_s - behind_s))
    with in_memory() as place:
        simulated = world._World(
            1, place / "run", (), lambda drawn: replace(two_on_demand(drawn), policy_name=policy)
        )
        run = simulated.run()
    # None of its controllers had to be started again.
    assert (run.violations, run.state, run.controllers) == ([], "finished", 1)


@pytest.mark.long
def test_a_clock_that_is_set_back_while_a_run_goes_on_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def told_s(cloud: CloudOf) -> float:
        now_s = cloud._cloud.time.now_s
        return now_s - 86_400.0 * (now_s - START_S > 60.0)

    monkeypatch.setattr(CloudOf, "now_s", property(told_s))
    with in_memory() as place:
        drawn = lambda drawn: replace(two_on_demand(drawn), policy_name="fickle")  # noqa: E731
        run = world._World(1, place / "run", (), drawn).run()
    assert (run.violations, run.state, run.controllers) == ([], "finished", 1)


def test_the_time_of_rented_machines_never_goes_back() -> None:
    """A clock that is set back would have machines cost less than they do."""
    told = {"wall": 1_000.0, "since_boot": 5.0}
    clock = ForwardClock(lambda: told["wall"], lambda: told["since_boot"])
    assert clock.now_s() == 1_000.0
    told.update(wall=400.0, since_boot=15.0)
    assert clock.now_s() == 1_010.0
    told.update(wall=-1e9, since_boot=25.0)
    assert clock.now_s() == 1_020.0
    # Where it was set right, for good, it is followed.
    told.update(wall=9_000.0, since_boot=26.0)
    assert clock.now_s() == 1_021.0
    told.update(wall=9_029.0, since_boot=55.0)
    assert clock.now_s() == 1_050.0
    told.update(wall=9_030.0, since_boot=56.0)
    assert clock.now_s() == 9_030.0
    told.update(wall=9_034.5, since_boot=57.5)
    assert clock.now_s() == 9_034.5


def test_a_clock_that_is_ahead_for_a_moment_is_not_followed() -> None:
    """Before, a clock that was a day ahead for a second spent the budget for good."""
    told = {"wall": 1_000.0, "since_boot": 5.0}
    clock = ForwardClock(lambda: told["wall"], lambda: told["since_boot"])
    assert clock.now_s() == 1_000.0
    for since_boot in (10.0, 12.0):
        told.update(wall=1_000.0 + DAY_S, since_boot=since_boot)
        assert clock.now_s() == 995.0 + since_boot
    told.update(wall=1_095.0, since_boot=100.0)
    assert clock.now_s() == 1_095.0
    # Another moment, much later, is another one.
    told.update(wall=1_000.0 + DAY_S, since_boot=200.0)
    assert clock.now_s() == 1_195.0


def test_a_clock_that_is_behind_the_cloud_s_follows_the_dates_of_its_answers() -> None:
    """Before, with a clock an hour behind, a budget was passed by what machines cost in an hour."""
    told = {"wall": 1_000.0, "since_boot": 5.0}
    clock = ForwardClock(lambda: told["wall"], lambda: told["since_boot"])
    for date in ("", "soon", formatdate(990.0, usegmt=True)):
        clock.follow(date)
        assert clock.now_s() == 1_000.0
    clock.follow(formatdate(4_600.0, usegmt=True))
    assert clock.now_s() == 4_600.0
    told.update(wall=1_020.0, since_boot=25.0)
    clock.follow(formatdate(4_600.0, usegmt=True))
    assert clock.now_s() == 4_620.0
    # Where the local clock is set right, nothing jumps.
    told.update(wall=4_625.0, since_boot=30.0)
    assert clock.now_s() == 4_625.0
