"""Rounds: shares of time tend to the allocation, and no quota is ever passed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.policies.dynamic_pricing.objectives import max_total_throughput, min_makespan
from ebbtide.policies.dynamic_pricing.policy import Received, next_round
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 5), st.booleans())
def test_shares_of_time_tend_to_the_allocation(seed: int, jobs: int, types: int, limited: bool) -> None:
    random = np.random.default_rng(seed)
    quotas = random.integers(1, 4, types).astype(float) if limited else np.full(types, np.inf)
    problem = AllocationProblem.of(
        random.uniform(1, 10, (jobs, types)),
        random.uniform(0.5, 3, types),
        quotas=quotas,
        steps=random.uniform(10, 100, jobs),
    )
    shares = min_makespan(problem)[0] if seed % 2 else max_total_throughput(problem)
    received = Received.nothing(shares.shape)
    for _ in range(600):
        chosen = next_round(shares, quotas, received, 0.5)
        running = chosen[chosen >= 0]
        assert (np.bincount(running, minlength=types) <= quotas).all()
        received = received.after(chosen, 0.5)
    # Every pair is within some rounds of its due.
    assert np.abs(received.hours / received.elapsed_h - shares).max() < 0.05


def test_by_hand_two_jobs_take_turns_on_one_machine() -> None:
    shares = np.array([[0.5], [0.5]])
    received = Received.nothing((2, 1))
    turns = []
    for _ in range(6):
        chosen = next_round(shares, np.array([1.0]), received, 1.0)
        turns.append(int(np.flatnonzero(chosen >= 0)[0]))
        received = received.after(chosen, 1.0)
    assert sorted(turns[:2]) == sorted(turns[2:4]) == sorted(turns[4:]) == [0, 1]
