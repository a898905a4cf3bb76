"""Machines that differ in speed: how much, the same every time, and what a policy sees of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.markets import C3, START_S, history, job

import ebbtide as eb
from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.billing import billing_preset
from ebbtide.market.leases import Lease
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.speed_noise import SpeedNoise

PRICES = history({C3: [(0, 0.1)]})
STEPS = 36_000


@dataclass(frozen=True)
class Watching:
    """Rents one machine, and notes each hour which speed it is shown."""

    name: str = "watching"
    wakes_on: frozenset[eb.policies.Wake] = frozenset()
    seen: list[float | None] = field(default_factory=list)

    def decide(self, view: eb.policies.View) -> Any:
        (one,) = view.jobs
        if not view.leases:
            yield eb.policies.Request(C3, 1.0, job=0)
        self.seen.append(view.seen_steps_per_s(one.job, C3))
        yield eb.policies.WakeAt(view.now_s + HOUR_S)


def lease(number: int) -> Lease:
    return Lease(number, C3, 1.0, on_demand=False, requested_s=0.0)


def run(noise: float, seed: int = 0) -> tuple[eb.types.Outcome, list[float | None]]:
    scenario = Scenario((job(STEPS),), PRICES, billing_preset("ec2-second"), seed=seed, speed_noise=noise)
    watching = Watching()
    return scenario.run(watching, START_S), watching.seen


def test_a_slower_machine_takes_longer_by_its_factor_which_is_what_is_seen() -> None:
    outcome, seen = run(0.3)
    factor = SpeedNoise(0.3, 0, START_S).factor(lease(0))
    assert outcome.jobs[0].training_s == pytest.approx(STEPS / factor)
    # Nothing has trained when the first machine is asked for.
    assert seen[0] is None
    assert seen[2] == pytest.approx(factor)


def test_without_noise_speeds_are_those_declared() -> None:
    outcome, seen = run(0.0)
    assert outcome.jobs[0].training_s == pytest.approx(STEPS)
    assert set(seen) == {1.0}


def test_machines_differ_by_the_deviation_and_are_the_same_every_time() -> None:
    noise = SpeedNoise(0.2, 7)
    drawn = [math.log(noise.factor(lease(number))) for number in range(2000)]
    assert np.std(drawn) == pytest.approx(0.2, rel=0.1)
    assert abs(np.mean(drawn)) < 0.02
    assert SpeedNoise(0.2, 7, 1.0).factor(lease(0)) != SpeedNoise(0.2, 7, 2.0).factor(lease(0))
    assert run(0.2)[0].makespan_s == run(0.2)[0].makespan_s != run(0.2, seed=1)[0].makespan_s


@pytest.mark.parametrize("deviation", [-0.1, math.nan, math.inf])
def test_a_deviation_that_is_none_is_refused(deviation: float) -> None:
    with pytest.raises(InputError, match="speed_noise"):
        run(deviation)
