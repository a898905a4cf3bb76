"""One run in two clouds: each cloud's leases are revoked and charged by its own rule."""

from __future__ import annotations

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.engine.outcome import Outcome
from ebbtide.market.price_series import PriceSeries
from ebbtide.testing import Scripted, replay

AWS = eb.Market("aws", "us-east-1", "us-east-1a", "c3.xlarge")
GCP = eb.Market("gcp", "us-central1", "us-central1-a", "n1-standard-4")
RISE_S = 1_800.0


def on(market: eb.Market) -> Outcome:
    """A job of an hour on one machine, whose price rises above its max price after half an hour."""
    rises = PriceSeries(np.array([0.0, RISE_S]), np.array([0.1, 1.0]))
    prices = eb.PriceHistory({AWS: rises, GCP: rises}, end_s=20_000.0)
    job = eb.Job(name="job", steps=3_600, steps_per_hour={"c3.xlarge": 3_600, "n1-standard-4": 3_600})
    script = Scripted({eb.policies.Wake.START: lambda _view, _event: [eb.policies.Request(market, 0.2, job=0)]})
    return replay(script, [job], prices, "by-cloud")


def test_a_price_above_the_max_price_revokes_on_ec2_and_is_refunded() -> None:
    outcome = on(AWS)
    assert outcome.revocations == 1
    assert outcome.cost_usd == 0.0
    assert outcome.refund_usd > 0.0


def test_on_gcp_it_is_charged() -> None:
    outcome = on(GCP)
    assert outcome.finished
    assert outcome.revocations == 0
    (lease,) = outcome.leases
    dear_h = (lease.ended_s - RISE_S) / 3_600.0
    cheap_h = (RISE_S - lease.started_s) / 3_600.0
    assert outcome.cost_usd == pytest.approx(0.1 * cheap_h + 1.0 * dear_h, rel=1e-3)
