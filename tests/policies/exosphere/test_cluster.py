"""Holding a portfolio on the engine: one market is lost, by hand."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.execution.start_delay import StartDelay
from ebbtide.experiments.scenario import Scenario
from ebbtide.market.billing import billing_preset
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.exosphere.cluster import HoldPortfolio
from ebbtide.utc import HOUR_S, to_epoch_s

START_S = to_epoch_s("2015-06-01T00:00:00Z")
A, B = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "ab")
LOW, SPIKE = 0.05, 1.0


def run(policy: HoldPortfolio, steps: int, *, lost_h: float | None = None, **job: object) -> eb.Outcome:
    """Jobs of one step an hour and machine; market A is above the bid from an hour on, for three hours."""
    points = [(0.0, LOW)] if lost_h is None else [(0.0, LOW), (lost_h, SPIKE), (lost_h + 3, LOW)]
    series = {
        A: PriceSeries(START_S + np.array([h for h, _ in points]) * HOUR_S, np.array([usd for _, usd in points])),
        B: PriceSeries(np.array([START_S]), np.array([LOW])),
    }
    prices = eb.PriceHistory(series, start_s=START_S, end_s=START_S + 100 * HOUR_S)
    content = {"name": "spark", "steps": steps, "steps_per_hour": {"c3.xlarge": 1}, "coupling": "independent", **job}
    scenario = Scenario((eb.Job.parse(content),), prices, billing_preset("ec2-hourly"), delay=StartDelay(0.0, 0.0))
    return scenario.run(policy, START_S)


SAVED = {"checkpoint": {"save_s": 0, "restore_s": 0}}


def test_the_cluster_is_as_large_as_the_portfolio_says() -> None:
    outcome = run(HoldPortfolio({A: 2, B: 2}), 40, **SAVED)
    assert outcome.finished
    assert outcome.makespan_s == pytest.approx(10 * HOUR_S)
    assert sorted(str(lease.market) for lease in outcome.leases) == [str(A)] * 2 + [str(B)] * 2
    assert {lease.max_price_usd_per_hour for lease in outcome.leases} == {0.21}


def test_what_is_taken_is_rented_elsewhere_at_once() -> None:
    outcome = run(HoldPortfolio({A: 2, B: 2}), 40, lost_h=4.0, **SAVED)
    assert outcome.revocations == 2
    assert [lease.market for lease in outcome.leases[4:]] == [B, B]
    # All of it saved on notice: nothing is lost but the time of the notice.
    assert outcome.makespan_s == pytest.approx(10 * HOUR_S, abs=300)


def test_without_replenishment_it_goes_on_with_what_is_left() -> None:
    outcome = run(HoldPortfolio({A: 2, B: 2}, replenish=False), 40, lost_h=4.0, **SAVED)
    assert len(outcome.leases) == 4
    # Sixteen steps by four machines, the other twenty-four by two.
    assert outcome.makespan_s == pytest.approx((4 + 12) * HOUR_S, abs=600)
    late = run(HoldPortfolio({A: 2, B: 2}, until_share=0.3), 40, lost_h=4.0, **SAVED)
    assert late.makespan_s == pytest.approx(outcome.makespan_s)


def test_without_checkpoints_the_lost_market_s_work_is_done_again() -> None:
    outcome = run(HoldPortfolio({A: 2, B: 2}), 40, lost_h=4.0, checkpoint=None)
    # Eight steps of two machines are lost: two hours more of four.
    assert outcome.steps_lost == pytest.approx(8, abs=0.2)
    assert outcome.makespan_s == pytest.approx(12 * HOUR_S, abs=300)


def test_when_all_is_lost_it_waits() -> None:
    outcome = run(HoldPortfolio({A: 4}, replenish=False), 40, lost_h=4.0, **SAVED)
    assert outcome.revocations == 4
    assert outcome.finished
    assert outcome.makespan_s == pytest.approx((10 + 3) * HOUR_S, abs=600)


def test_no_machine_is_no_portfolio() -> None:
    with pytest.raises(InputError, match="no machine cannot be held"):
        HoldPortfolio({A: 0})
