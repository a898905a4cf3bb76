"""`spottune-bid`: what a lease is worth by when it is taken, worked out by hand; and what follows from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.markets import C3, R3, history, job
from tests.policies.spottune.test_policy import run

import ebbtide as eb
from ebbtide.forecasts.revocation.passage import CELLS, ForeseenPassages
from ebbtide.market.billing import billing_preset
from ebbtide.policies.spottune.offers import BestBid, StepCost, _cycle
from ebbtide.policies.spottune.policy import SpotTune


def test_a_lease_that_dies_while_it_boots_does_nothing_and_costs_nothing() -> None:
    """Two minutes to start, twenty seconds to restore, ten to save; notice after 2.5, 7.5... minutes, or never."""
    cycle = _cycle(billing_preset("ec2-second"), 0.6, math.inf, 140.0, 10.0)
    # Taken 4.5 min after asking: 270 - 140 - 10 s of training, free.
    assert cycle.useful_s[0] == pytest.approx(120.0)
    assert cycle.usd[0] == 0.0
    assert cycle.lasts_s[0] == pytest.approx(270.0)
    # In the last cell it may come too late to be free.
    assert cycle.usd[CELLS - 1] > 0.5
    # Never: a whole hour of training, paid from the start of charges on.
    assert cycle.useful_s[-1] == pytest.approx(3600.0)
    assert cycle.usd[-1] == pytest.approx(0.6 * 3720 / 3600)
    slow = _cycle(billing_preset("ec2-second"), 0.6, math.inf, 600.0, 10.0)
    assert slow.useful_s[0] == 0.0


def test_a_short_trial_ends_before_it_can_be_taken() -> None:
    cycle = _cycle(billing_preset("ec2-second"), 0.6, 300.0, 140.0, 10.0)
    assert (cycle.useful_s[2:] == 300.0).all()
    assert cycle.usd[5] == pytest.approx(0.6 * (440 - 20) / 3600)


def test_by_the_hour_a_part_of_one_is_free_if_it_is_taken() -> None:
    cycle = _cycle(billing_preset("ec2-hourly"), 0.6, math.inf, 140.0, 10.0)
    assert cycle.usd[5] == 0.0
    assert cycle.usd[-1] == pytest.approx(1.2)


def test_what_cannot_be_saved_asks_for_the_highest_max_price() -> None:
    prices = history({C3: [(0, 0.36)], R3: [(0, 0.10)]})
    outcome = run(SpotTune(provisioner=BestBid()), [job(7200, checkpoint=None)], prices)
    assert outcome.leases[0].max_price_usd_per_hour == pytest.approx(1.0)
    assert outcome.finished


def test_who_foresees_passages_trains_nearly_for_nothing_and_never_on_machines_that_die_at_once() -> None:
    """One market lives for three minutes at a time and costs next to nothing; another for fifty, free."""
    dying = [point for n in range(2000) for point in ((n * 180.0, 0.001), (n * 180.0 + 120.0, 2.0))]
    free = [point for n in range(120) for point in ((n * 3000.0, 0.05), (n * 3000.0 + 2940.0, 0.5))]
    prices = history({C3: free, R3: dying})
    bound = run(SpotTune(provisioner=BestBid(ForeseenPassages(prices), doubt=0.0)), [job(18_000)], prices)
    blind = run(SpotTune(provisioner=StepCost(delta=(10.0, 10.0))), [job(18_000)], prices)
    assert bound.finished
    assert bound.cost_usd < 0.6 * blind.cost_usd
    assert bound.makespan_s < 1.3 * 18_000
    on_dying = [lease for lease in bound.leases if lease.market == R3]
    assert len(on_dying) <= 4


def test_a_deadline_takes_dearer_machines_where_cheaper_ones_are_too_slow() -> None:
    """r3 does half a step a second and costs less for it; 7200 steps take it four hours."""
    prices = history({C3: [(0, 0.36)], R3: [(0, 0.10)]})
    slow = run(SpotTune(measured=True), [job(7200)], prices)
    soon = run(SpotTune(measured=True, deadline_s=3 * 3600.0), [job(7200)], prices)
    assert {lease.market for lease in slow.leases} == {R3}
    assert C3 in {lease.market for lease in soon.leases}
    assert soon.makespan_s <= 3 * 3600 < slow.makespan_s


@pytest.mark.real_traces
def test_on_real_prices_it_does_not_cost_more_than_ignoring_revocations(auction_2015: eb.PriceHistory) -> None:
    starts = [float(auction_2015.start_s + day * 86_400) for day in (60, 75, 90, 105, 120)]
    work = [eb.Job(name="w", steps=8_000, other_steps_per_hour_per_vcpu=250.0)]
    policies = [
        SpotTune(provisioner=BestBid(), name="bid"),
        SpotTune(provisioner=StepCost(doubt=1e6), name="blind"),
    ]
    found = eb.backtest(work, policies, auction_2015, starts=starts, seed=1).outcomes
    bid, blind = (np.mean([outcome.cost_usd for outcome in found[name]]) for name in ("bid", "blind"))
    assert bid <= 1.05 * blind
