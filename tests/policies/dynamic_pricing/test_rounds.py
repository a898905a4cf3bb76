"""Rounds: shares of time tend to the allocation, and no quota is ever passed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.policies.dynamic_pricing.objectives import max_total_throughput, min_makespan
from ebbtide.policies.dynamic_pricing.problem import AllocationProblem
from ebbtide.policies.dynamic_pricing.rounds import HandOver, Held, Received, hand_over, next_round


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


def test_by_hand_which_machines_change_hands() -> None:
    held = [Held(0, "fast", 0), Held(1, "slow", 1), Held(2, "fast", 2), Held(3, "slow", None)]
    # Who has its type keeps its machine; an idle one goes to who needs it, and what nobody needs is left.
    assert hand_over(held, {0: "fast", 1: "slow", 2: "fast"}, {}, set()) == HandOver({}, (), (3,))
    # Job 2 waits now, and job 3 gets its machine; job 4 the idle one.
    assert hand_over(held, {0: "fast", 1: "slow", 3: "fast", 4: "slow"}, {}, set()) == HandOver(
        {3: 2, 4: 3}, (2,), ()
    )
    # Two that change places do so where no more may be rented, and else each rents a machine first.
    swap = {0: "slow", 1: "fast", 2: "fast"}
    assert hand_over(held[:3], swap, {}, {"fast", "slow"}) == HandOver({0: 1, 1: 0}, (), ())
    assert hand_over(held[:3], swap, {}, set()) == HandOver({}, (), ())
    # One whose machine is taken away stands still until its own comes.
    assert hand_over(held[:1], {0: "slow", 5: "fast"}, {0: ["slow"]}, {"fast"}) == HandOver({5: 0}, (0,), ())
    # A machine that is on its way is waited for.
    assert hand_over(held[3:], {5: "slow"}, {5: ["slow"]}, {"slow"}) == HandOver({}, (), (3,))


@given(
    held=st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 5))), max_size=8),
    kinds=st.dictionaries(st.integers(0, 5), st.sampled_from("abc"), max_size=6),
    full=st.sets(st.sampled_from("abc")),
)
def test_no_machine_is_given_twice_or_lost(held: list, kinds: dict, full: set) -> None:
    owners: set[int] = set()
    machines = []
    for number, (kind, job) in enumerate(held):
        machines.append(Held(number, kind, None if job in owners else job))
        owners |= {job} - {None}
    found = hand_over(machines, kinds, {}, full)
    of_lease = {each.lease_id: each for each in machines}
    assert len(set(found.given.values())) == len(found.given)
    assert all(of_lease[lease_id].kind == kinds[job] for job, lease_id in found.given.items())
    assert not set(found.left) & set(found.given.values())
    for each in machines:
        keeps = each.job in kinds and each.lease_id not in found.given.values()
        assert keeps or each.lease_id in found.left or each.lease_id in found.given.values()
        # Nobody loses a machine of its own type.
        if each.job is not None and kinds.get(each.job) == each.kind:
            assert keeps
            assert each.job not in found.paused
