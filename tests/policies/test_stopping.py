"""ASHA: rungs and decisions by hand, whom it never stops, and a sweep under it in a replay."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import C3, R3, history, job

import ebbtide as eb
from ebbtide.engine.decisions import STOPPED
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.policies.api.actions import Stop
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.stopping import StopperName, SuccessiveHalving, has_diverged

PRICES = history({C3: [(0, 0.05)], R3: [(0, 0.09)]}, hours=300.0)


class _View:
    """As much of a view as the stopper looks at."""

    def __init__(self, trials: int, steps: int = 900) -> None:
        self.memory: dict = {"rungs": {}}
        self.jobs = [_Job(number, steps) for number in range(trials)]
        self.metrics: dict[int, float] = {}

    def measured(self, job_id: int) -> tuple[np.ndarray, np.ndarray]:
        known = [self.metrics[job_id]] if job_id in self.metrics else []
        return np.arange(1.0, len(known) + 1), np.array(known)


class _Job:
    def __init__(self, job_id: int, steps: int) -> None:
        self.job_id, self.job = job_id, job(steps)
        self.steps_done, self.is_finished = 0.0, False


def reached(stopper: SuccessiveHalving, view: _View, trial: int, step: float, metric: float) -> bool:
    """Whether a trial goes on that comes to a step with a metric."""
    one = view.jobs[trial]
    one.steps_done, view.metrics[trial] = step, metric
    stops = list(stopper.reached(view, one))  # type: ignore[arg-type]
    assert all(isinstance(stop, Stop) and stop.job == trial for stop in stops)
    return not stops


def test_rungs_by_hand() -> None:
    assert SuccessiveHalving().rungs(900) == [90, 270, 810]
    assert SuccessiveHalving(reduction=2.0, grace=0.25).rungs(100) == [25, 50]
    assert SuccessiveHalving(grace=0.1).rungs(5) == [1, 3]
    assert SuccessiveHalving(grace=1.0).rungs(100) == []
    assert SuccessiveHalving().rungs(1) == []


def test_decisions_by_hand() -> None:
    """Of three that come to the first rung one goes on, of six two, and so for each rung by itself."""
    stopper, view = SuccessiveHalving(), _View(7)
    # The first is alone, and so the best; the second is worse than it, the third better.
    assert reached(stopper, view, 0, 90, 0.5)
    assert not reached(stopper, view, 1, 90, 0.6)
    assert reached(stopper, view, 2, 90, 0.4)
    assert not reached(stopper, view, 3, 90, 0.45)
    assert not reached(stopper, view, 4, 90, 0.47)
    # Six have come: two of them go on, and it is the second best.
    assert reached(stopper, view, 5, 90, 0.42)
    # At the second rung only those that came there count.
    assert reached(stopper, view, 0, 270, 0.49)
    assert not reached(stopper, view, 2, 270, 0.495)
    # It is judged once at each rung.
    assert reached(stopper, view, 0, 300, 0.9)
    assert not reached(stopper, view, 6, 95, math.nan)


def test_a_trial_without_a_number_ranks_last_and_is_ended_once_that_lasts() -> None:
    """A rate that is too high may have the lowest loss of all just before its loss is no number any more."""
    stopper, view = SuccessiveHalving(), _View(3)
    # Alone it is not ended for one failed evaluation, and others are compared with no earlier value of it.
    assert reached(stopper, view, 0, 90, math.nan)
    assert reached(stopper, view, 1, 90, 0.9)
    assert not reached(stopper, view, 2, 90, math.nan)


def first_ended(values: dict[int, float], steps: int = 100) -> int | None:
    """Step after which a trial is ended, as its metric is no number; None: it is not."""
    for step in values:
        seen = {at: value for at, value in values.items() if at <= step}
        # As a run tells them: of values that are not finite the last alone.
        told = {at: value for at, value in seen.items() if math.isfinite(value) or at == step}
        if has_diverged(np.array([*map(float, told)]), np.array([*told.values()]), steps):
            return step
    return None


def test_no_failed_evaluation_and_no_uneven_ones_end_a_trial() -> None:
    tenths = dict.fromkeys(range(10, 101, 10), 1.0)
    nan = math.nan
    assert first_ended(tenths | {30: nan}) is None
    assert first_ended(tenths | {30: nan, 40: nan}) is None
    assert first_ended(tenths | dict.fromkeys(range(50, 101, 10), nan)) == 70
    # Evaluations at step 1 and every 20th, at powers of two, and at step 0 alone.
    assert first_ended({at: 1.0 if at == 1 or at % 20 == 0 else nan for at in range(1, 101)}) is None
    assert first_ended({at: 1.0 if at & (at - 1) == 0 else nan for at in range(1, 65)}) is None
    assert first_ended({at: 1.0 if at == 0 else nan for at in range(101)}) == 20
    # From step 5 on it diverges for good.
    assert first_ended({at: 1.0 if at < 5 else nan for at in range(1, 101)}) == 7
    assert first_ended(dict.fromkeys(range(1, 101), nan)) is None


def test_higher_can_be_better() -> None:
    stopper, view = SuccessiveHalving(maximise=True), _View(2)
    assert reached(stopper, view, 0, 90, 0.5)
    assert not reached(stopper, view, 1, 90, 0.4)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(1.1, 5.0))
def test_whoever_is_best_so_far_goes_on(metrics: list[float], reduction: float) -> None:
    stopper, view = SuccessiveHalving(reduction), _View(len(metrics))
    best, gone_on = math.inf, 0
    for trial, metric in enumerate(metrics):
        goes_on = reached(stopper, view, trial, 90, metric)
        assert goes_on or metric > best
        best, gone_on = min(best, metric), gone_on + goes_on
    assert gone_on >= 1


@pytest.mark.parametrize("changed", [{"reduction": 1.0}, {"reduction": 0.5}, {"grace": -0.1}, {"grace": 1.5}])
def test_what_is_no_halving_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(InputError):
        SuccessiveHalving(**changed)
    with pytest.raises(InputError):
        Ebbtide(**changed)


def test_a_sweep_is_halved_in_a_replay() -> None:
    steps = np.arange(100.0, 9001.0, 100.0)
    curves = [Curve("w", str(place), steps, 0.1 * place + 20.0 / steps, 9000.0) for place in range(9)]
    jobs = [job(9000).model_copy(update={"name": f"w-{place}"}) for place in range(9)]
    policy = eb.policy("ebbtide", None, {"stopper": "asha", "selects": True})
    assert isinstance(policy, Ebbtide)
    assert policy.stopper is StopperName.ASHA
    result = eb.backtest(jobs, [policy], PRICES, billing="gcp-spot", starts=1, seed=1, curves=curves)
    (plain,) = result.outcomes["ebbtide"]
    outcome = result.replay("ebbtide")
    assert outcome.cost_usd == plain.cost_usd
    assert not outcome.jobs[0].stopped
    stopped = [each for each in outcome.jobs if each.stopped]
    assert len(stopped) >= 5
    # Each at a rung.
    assert {round(each.steps_done, -2) for each in stopped} <= {900.0, 2700.0, 8100.0}
    why = [made.why for made in outcome.made if made.action == STOPPED]
    assert len(why) == len(stopped)
    assert all("it is not among the best" in one for one in why)
    # As a run without a stopper, but for those.
    (free,) = eb.backtest(jobs, [Ebbtide()], PRICES, billing="gcp-spot", starts=1, seed=1, curves=curves).outcomes[
        "ebbtide"
    ]
    assert outcome.cost_usd < free.cost_usd
