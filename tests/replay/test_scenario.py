"""What a policy would see at the end of the prices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.markets import C3, R3, START_S, history, job

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.market.billing import billing_preset
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing
from ebbtide.policies.exosphere.allocation import CoresAndMemory
from ebbtide.policies.exosphere.applications import PortfolioRequest
from ebbtide.policies.exosphere.portfolio import assessed, construct
from ebbtide.policies.registry import policy
from ebbtide.replay.scenario import Scenario

# The last price is set at the very end.
PRICES = history({C3: [(0, 0.04), (7200, 0.06)], R3: [(0, 0.03), (5 * 3600, 0.02)]}, hours=5.0)
SCENARIO = Scenario((job(),), PRICES, billing_preset("ec2-second"))


def test_it_sees_the_last_prices_and_has_nothing_yet() -> None:
    view = SCENARIO.at_end(policy("reactive"))
    assert view.now_s == START_S + 5 * HOUR_S
    assert (view.price(C3), view.price(R3)) == (0.06, 0.02)
    assert view.mean_price(R3, HOUR_S) == pytest.approx(0.03)
    assert view.leases == ()
    assert view.jobs[0].steps_done == 0


def test_an_allocation_there_is_what_the_policy_would_rent() -> None:
    view = SCENARIO.at_end(DynamicPricing())
    found, markets = DynamicPricing().allocation(view)
    assert markets == {C3.instance_type: C3, R3.instance_type: R3}
    # R3 has half the speed for a third of the price.
    assert found.shares.tolist() == [[0.0, 1.0]]
    assert found.duration_h.tolist() == [2.0]
    assert found.machine_hours.tolist() == [[0.0, 2.0]]
    assert found.expected_usd == pytest.approx(0.04)
    dear = history({C3: [(0, 9.0)], R3: [(0, 9.0)]}, hours=5.0)
    with pytest.raises(InputError, match="no more than its list price"):
        DynamicPricing().allocation(replace(SCENARIO, prices=dear).at_end(DynamicPricing()))


@pytest.mark.parametrize("alpha", [0.0, 1.0, 50.0])
def test_a_portfolio_there_is_what_exosphere_would_construct(alpha: float) -> None:
    view = SCENARIO.at_end(policy("exosphere"))
    request = PortfolioRequest(CoresAndMemory(8.0, 0.0), alpha)
    told = {"history_s": 5 * HOUR_S, "covariance": "hybrid"}
    holdings = construct(view, job(), request, **told)
    found = assessed(view, job(), request, **told)
    assert found.portfolio.shares == {holding.market: holding.share for holding in holdings}
    assert found.prices.shape == (2, 2)
