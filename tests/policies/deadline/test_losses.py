"""What a job has paid, as a policy counts it from its view, agrees with the engine's ledger."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.markets import C3, START_S, series

from ebbtide.market.billing import LeaseEnding, billing_preset
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.records import LeaseView
from ebbtide.policies.deadline.losses import _paid_usd

PRICES = series((0, 0.03), (5_000, 0.2), (9_000, 0.05))


def view(now_s: float, billing: str) -> Any:
    def past_prices(_: object, duration_s: float) -> Any:
        return PRICES.between(now_s - duration_s, np.nextafter(now_s, np.inf))

    return SimpleNamespace(now_s=now_s, billing=billing_preset(billing), past_prices=past_prices)


@pytest.mark.parametrize("billing", ["ec2-second", "ec2-hourly", "gcp-spot", "mithril-auction", "by-cloud"])
def test_it_is_what_the_bill_would_be_whatever_the_digits_of_a_start_are(billing: str) -> None:
    """The difference of two times, taken from the later one, is not the earlier one exactly."""
    random = np.random.default_rng(3)
    for _ in range(3_000):
        started_s, now_s = sorted((START_S + random.uniform(700, 18_000, 2)).tolist())
        lease = Lease(0, C3, 1.0, False, started_s, LeaseState.RUNNING, started_s, started_s)
        rule = billing_preset(billing).of("aws")
        expected = rule.bill(PRICES, started_s, now_s, LeaseEnding.RELEASED).usd
        assert _paid_usd(view(now_s, billing), LeaseView(lease)) == pytest.approx(expected)
