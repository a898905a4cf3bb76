"""Divergence: values that are not finite at the end of a training, apart from those that programs print between."""

from __future__ import annotations

import math

from ebbtide.controller.kinds.divergence import NEVER, Divergence


def diverged_at(values: dict[int, float]) -> list[int]:
    """Step at which a training has diverged, after each value of its metric by step; 0: it has not."""
    found, state = [], Divergence()
    for step, value in values.items():
        state = state.after(step, value)
        found.append(state.at)
    return found


def every(steps: int, until: int, *, finite_until: int | None = None) -> dict[int, float]:
    """Values of a program that reports at each step, evaluates every so many, and from some step on gives NaN."""
    last = until if finite_until is None else finite_until
    return {at: 1.0 / at if at % steps == 0 and at <= last else math.inf for at in range(1, until + 1)}


def test_values_that_a_program_prints_between_two_evaluations_mean_nothing() -> None:
    assert not any(diverged_at(every(10, 49)))


def test_a_last_evaluation_that_is_not_finite_counts() -> None:
    assert diverged_at(every(10, 50, finite_until=40))[-2:] == [0, 50]
    assert diverged_at(every(50, 100, finite_until=50))[-2:] == [0, 100]
    # With a single evaluation it is not known when the next is due, before so many steps have passed again.
    assert not any(diverged_at(every(50, 60)))


def test_a_training_that_diverges_after_its_value_at_step_0_has_diverged() -> None:
    """Before, step 0 stood for no value at all, and the untrained model's loss was told as the result."""
    assert diverged_at({0: 0.5, 1: math.inf, 2: math.inf}) == [0, 1, 2]


def test_a_metric_that_was_never_finite_has_not_diverged() -> None:
    assert not any(diverged_at(dict.fromkeys((0, 10, 20, 30), math.inf)))


def test_a_spike_that_passes_hides_no_divergence() -> None:
    spike = {10: 0.5, 20: math.inf, 30: 0.4}
    assert diverged_at(spike) == [0, 20, 0]
    assert diverged_at(spike | dict.fromkeys((40, 50, 60), math.inf))[3:] == [0, 50, 60]


def test_values_that_come_late_change_nothing() -> None:
    state = Divergence().after(10, 0.5).after(30, math.inf)
    assert state.after(20, 0.4) == state
    assert state.after(5, math.inf) == state
    assert state.after(40, math.nan) == state


def test_what_is_trained_again_may_go_better() -> None:
    state = Divergence().after(10, 0.5).after(20, math.inf)
    assert state.resumed(15) == Divergence(10, NEVER, 0)
    assert state.resumed(20) == state
    assert Divergence().resumed(0) == Divergence()
    assert state.resumed(5).after(8, math.inf).at == 8
