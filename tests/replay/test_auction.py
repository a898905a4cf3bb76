"""Replays of an auction by rounds: worked out by hand, compiled against the engine, and policies that bid in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.market.test_billing import recount
from tests.markets import C3, R3, START_S, history, job
from tests.papers.deepspotcloud.test_migration_replays import MARKETS, POINTS, POLICIES, check

import ebbtide as eb
from ebbtide.backtesting.comparison import compare
from ebbtide.base.utc import DAY_S
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Checkpointing
from ebbtide.market.billing import LeaseEnding
from ebbtide.market.leases import LeaseState
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud
from ebbtide.policies.registry import policies
from ebbtide.replay.replayed_market import cleared_prices
from ebbtide.replay.scenario import Scenario
from ebbtide.testing import Scripted, replay

AUCTION = eb.billing_preset("mithril-auction")
BIDDING = "reactive,fixed,dba,skyline,cookbook,cookbook-dynamic,spottune-bid"


def rents(max_price: float) -> Scripted:
    """One machine at the start, at most at a price."""
    return Scripted({eb.policies.Wake.START: lambda _view, _event: [eb.policies.Request(C3, max_price, job=0)]})


def test_a_lease_by_hand() -> None:
    # Asked for at 0 and given after 20 s, so from the round of 120 on, cleared at 0.20 since second 100. The peak
    # within the round of 240 is never cleared at; the price of 500 counts from 600 on and outbids 0.50.
    prices = history({C3: [(0, 0.10), (100, 0.20), (250, 0.90), (255, 0.20), (500, 0.80), (700, 0.40)]})
    policy = rents(0.50)
    outcome = replay(policy, [job(36_000)], prices, "mithril-auction")
    (lease,) = outcome.leases
    assert (lease.started_s - START_S, lease.state) == (120.0, LeaseState.REVOKED)
    assert policy.times(eb.policies.Wake.NOTICE) == [600.0]
    # Five minutes after the notice, though by the round of 720 the price is below the bid again.
    assert lease.ended_s - START_S == 900.0
    # 480 s at 0.20, 120 s at 0.80, 180 s at 0.40 USD per hour; nothing is refunded.
    assert outcome.cost_usd == pytest.approx((480 * 0.20 + 120 * 0.80 + 180 * 0.40) / 3600)
    assert outcome.refund_usd == 0.0
    assert [(line.start_s - START_S, line.end_s - START_S) for line in outcome.ledger.lines] == [
        (120, 600),
        (600, 720),
        (720, 900),
    ]


def test_a_bid_at_the_clearing_price_wins_and_one_below_it_is_refused() -> None:
    prices = history({C3: [(0, 0.10), (100, 0.20)]})
    won = replay(rents(0.20), [job(600)], prices, "mithril-auction")
    assert won.finished
    assert won.revocations == 0
    (lost,) = replay(rents(0.19), [job(600)], prices, "mithril-auction").leases
    assert lost.state is LeaseState.FAILED


def test_a_machine_on_demand_waits_for_no_round() -> None:
    policy = Scripted(
        {eb.policies.Wake.START: lambda _view, _event: [eb.policies.Request(C3, on_demand=True, job=0)]}
    )
    (lease,) = replay(policy, [job(600)], history({C3: [(0, 0.10)]}), "mithril-auction").leases
    assert lease.started_s - START_S == 20.0


def test_quotes_do_not_tell_of_the_round_under_way() -> None:
    seen = []

    def look(view: eb.policies.View, _event: eb.policies.Event) -> list[eb.policies.Action]:
        seen.append((view.now_s - START_S, view.price(C3)))
        return [eb.policies.WakeAt(view.now_s + 50)] if view.now_s < START_S + 200 else []

    replay(
        Scripted({eb.policies.Wake.START: look, eb.policies.Wake.TIMER: look}),
        [job(60)],
        history({C3: [(0, 0.10), (40, 0.90), (130, 0.20)]}, hours=0.1),
        "mithril-auction",
    )
    assert seen == [(0.0, 0.10), (50.0, 0.10), (100.0, 0.10), (150.0, 0.90), (200.0, 0.90)]


@settings(max_examples=100, deadline=None)
@given(
    points=st.tuples(POINTS, POINTS, POINTS),
    policy=st.sampled_from(POLICIES),
    save_s=st.sampled_from([0.0, 25.0, 290.0, 310.0]),
    minutes=st.integers(1, 600),
    start_s=st.integers(0, 8 * 3600),
)
def test_compiled_replays_and_the_engine_agree(
    points: tuple[list[tuple[int, float]], ...], policy: DeepSpotCloud, save_s: float, minutes: int, start_s: int
) -> None:
    prices = history({market: sorted(own) for market, own in zip(MARKETS, points, strict=True)}, hours=40.0)
    work = eb.Job(
        name="g",
        steps=minutes * 60,
        steps_per_hour={"g2.2xlarge": 3600.0, "NC6": 5000.0},
        checkpoint=Checkpointing(save_s=save_s, restore_s=12.0, size_bytes=10**9),
    )
    check(Scenario((work,), prices, AUCTION), policy, [START_S + start_s, START_S + 3 * 3600])


def check_ledger(outcome: Outcome, prices: eb.PriceHistory) -> None:
    """Each spot lease costs a recount second by second of the record's prices at the rounds' starts."""
    for lease in outcome.leases:
        if lease.on_demand or not lease.is_charged:
            continue
        assert lease.started_s % 120.0 == 0.0
        assert cleared_prices(prices, AUCTION)[lease.market].at(lease.started_s) <= lease.max_price_usd_per_hour
        ending = LeaseEnding.REVOKED if lease.state is LeaseState.REVOKED else LeaseEnding.RELEASED
        used_s = math.ceil(round(lease.ended_s - lease.started_s, 6))
        cost, refund = recount(
            "mithril-auction", prices[lease.market], int(lease.started_s), int(lease.started_s) + used_s, ending
        )
        assert refund == 0.0
        assert outcome.ledger.usd_of(lease.lease_id) == pytest.approx(cost, abs=1e-9)
        if ending is LeaseEnding.REVOKED:
            noticed_s = lease.ended_s - 300.0
            # Outbid for the first time at the start of the round of its notice.
            assert noticed_s % 120.0 == 0.0
            rounds = np.arange(lease.started_s, noticed_s + 1.0, 120.0)
            above = prices[lease.market].at_each(rounds) > lease.max_price_usd_per_hour
            assert above.tolist() == [False] * (len(rounds) - 1) + [True]


def test_policies_that_bid_run_to_their_end_and_their_ledgers_are_recounted() -> None:
    prices = eb.generate_prices([C3, R3], days=45, seed=4, kind="auction")
    work = job(6 * 3600, interval_s=900.0)
    found = compare(work, policies(BIDDING), prices, billing="mithril-auction", starts=3, seed=2, deadline_h=None)
    assert not [row.policy for row in found.rows if row.why_not]
    assert set(found.result.outcomes) == set(BIDDING.split(","))
    revocations = 0
    for outcomes in found.result.outcomes.values():
        for outcome in outcomes:
            assert outcome.finished
            check_ledger(outcome, prices)
            revocations += outcome.revocations
    assert revocations > 0
    assert all(row.over_floor >= 1.0 for row in found.rows)
    assert found.result.starts_s[0] > prices.start_s + DAY_S / 24
