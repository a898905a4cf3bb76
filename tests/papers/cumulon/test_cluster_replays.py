"""Clusters by the hour, with delays and bids: worked out by hand, and what must hold of all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.base.utc import to_epoch_s
from ebbtide.errors import InputError
from ebbtide.jobs.job import Amdahl
from ebbtide.jobs.workflow import Workflow, WorkflowJob
from ebbtide.policies.cookbook.bids import Bids
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem
from ebbtide_papers.cumulon.cluster_replays import Rules, play_cluster
from ebbtide_papers.cumulon.market import described_chain, rsvd_workflow
from ebbtide_papers.cumulon.oracle import cheapest_charge, least_costs
from ebbtide_papers.cumulon.study import best_on_demand_size, by_the_hour, dba_bids, on_demand_only_usd

MONDAY_S = to_epoch_s("2014-01-06T00:00:00Z")
PRICES = np.array([0.1, 0.5])
LOW, HIGH = 0, 1
STEPS = 6


def scripted(work_h: float, sizes: list[int]) -> Cookbook:
    """A cookbook that says a size for each step, whatever the state."""
    market = ChargeModel.at_step_start(PRICES, np.full((STEPS, 2, 2), 0.5), 1.0)
    work = Workflow(name="w", jobs=(WorkflowJob(name="a", work_h=work_h, speedup=Amdahl(parallel=1.0)),))
    problem = CookbookProblem(work, market, most=10)
    shape = (STEPS, len(problem.levels_h), 11, 2)
    actions = np.broadcast_to(np.array(sizes, dtype=np.uint8)[:, None, None, None], shape).copy()
    return Cookbook(problem, actions, np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def hours(*places: int) -> np.ndarray:
    """A trace with the same price through each hour."""
    return np.repeat(np.array([places], dtype=np.uint16), 12, axis=1)


def play(book: Cookbook, trace: np.ndarray, bid: float = np.inf, **rules: float) -> tuple[float, float]:
    found = play_cluster(book, trace, Bids.fixed(book, bid), Rules(**{"delay_ticks": 0, **rules}))  # type: ignore[arg-type]
    return float(found.cost_usd[0]), float(found.hours[0])


def test_whole_hours_are_charged_at_the_price_at_their_beginning() -> None:
    # Five hours' work on two machines: three hours begun by each, the last at the high price.
    usd, ended_h = play(scripted(5.0, [0] * 6), hours(LOW, LOW, HIGH, LOW, LOW, LOW), fixed_size=2)
    assert usd == pytest.approx(2 * (0.1 + 0.1 + 0.5))
    assert ended_h == pytest.approx(2.5)


def test_a_delay_is_waited_for_and_not_charged() -> None:
    usd, ended_h = play(scripted(2.0, [0] * 6), hours(*[LOW] * 6), fixed_size=2, delay_ticks=2)
    assert (usd, ended_h) == pytest.approx((0.2, 1.0 + 1 / 6))


def test_what_a_price_above_the_bid_takes_costs_nothing_for_its_last_part() -> None:
    # Taken after an hour and a half; back when the price is low again, half an hour later.
    trace = np.array([[LOW] * 18 + [HIGH] * 6 + [LOW] * 48], dtype=np.uint16)
    usd, ended_h = play(scripted(2.5, [0] * 6), trace, bid=0.2, fixed_size=1)
    # The first hour, nothing for half of the second, a whole one at the end: 1.5 hours' work and one more.
    assert usd == pytest.approx(0.1 + 0.1)
    assert ended_h == pytest.approx(3.0)
    # With no bid to exceed it stays, and its second and third hour cost what they cost.
    assert play(scripted(2.5, [0] * 6), trace, fixed_size=1) == pytest.approx((0.3, 2.5))


def test_machines_are_kept_to_the_end_of_an_hour_that_is_paid() -> None:
    # Four machines in the first hour, none after: at half past two would do, but all four are paid for.
    usd, ended_h = play(scripted(3.9, [4, 0, 0, 0, 0, 0]), hours(*[LOW] * 6))
    assert (usd, ended_h) == pytest.approx((0.4, 0.975))
    # Half a step before two are wanted one is asked for; it has begun another hour when the work is done.
    usd, ended_h = play(scripted(6.0, [4, 0, 0, 0, 2, 2]), hours(*[LOW] * 6))
    assert (usd, ended_h) == pytest.approx((4 * 0.1 + 3 * 0.1, 4.75))


def test_on_demand_takes_over_while_spot_is_dearer() -> None:
    usd, ended_h = play(
        scripted(4.0, [0] * 6), hours(LOW, HIGH, HIGH, LOW, LOW, LOW), fixed_size=1, on_demand_usd=0.3
    )
    assert usd == pytest.approx(0.1 + 0.3 + 0.3 + 0.1)
    assert ended_h == pytest.approx(4.0)


def test_a_trace_that_is_too_short_is_refused() -> None:
    with pytest.raises(InputError, match="traces of 12 ticks are too short"):
        play(scripted(1.0, [1] * 6), hours(LOW))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 4]), st.sampled_from([0.02, 0.2, 1.0]))
def test_no_deadline_is_missed_at_any_price_and_nobody_beats_the_oracle(
    seed: int, delay: int, price: float
) -> None:
    chain, workflow = described_chain(), rsvd_workflow()
    book = by_the_hour(chain, workflow, delay)
    traces = chain.simulate(MONDAY_S, price, 15 * 12, 200, seed)
    found = play_cluster(book, traces, Bids.infinite(book), Rules(delay_ticks=delay))
    assert found.missed == 0
    least = least_costs(workflow, chain.prices, cheapest_charge(traces, 12), 300.0, 100)
    assert (least <= found.cost_usd + 1e-9).all()


def test_a_tick_costs_no_less_than_the_cheapest_hour_that_it_can_be_in() -> None:
    trace = np.array([[3, 1, 2, 2, 5, 4]])
    assert cheapest_charge(trace, 3).tolist() == [[3, 1, 1, 1, 2, 2]]


def test_the_rivals_by_hand() -> None:
    workflow = rsvd_workflow()
    size = best_on_demand_size(workflow, 15.0)
    cost = on_demand_only_usd(workflow, 0.145, 15.0)
    assert cost == pytest.approx(min(n * np.ceil(workflow.finish_h(33.0, n, n)) * 0.145 for n in range(3, 100)))
    assert workflow.finish_h(33.0, size, size) <= 15.0
    chain = described_chain()
    bids = dba_bids(by_the_hour(chain, workflow, 2), chain).table[:, 0]
    assert np.isinf(bids[-1])
    assert (np.diff(bids[:-1]) >= 0).all()
