"""The billing rules, against the table in docs and against a recount second by second."""

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.markets import START_S, series

from ebbtide.errors import InputError
from ebbtide.market.billing import (
    ON_DEMAND,
    ON_DEMAND_HOURLY,
    PRESETS,
    Billing,
    Charged,
    LeaseEnding,
    OpenBill,
    Refund,
    billing_preset,
)
from ebbtide.market.price_series import PriceSeries

REVOKED, RELEASED = LeaseEnding.REVOKED, LeaseEnding.RELEASED


@pytest.mark.parametrize(
    ("preset", "minutes", "ending", "usd", "refund"),
    [
        # 0.60 USD/h for the first half hour, 1.20 for the next hour, 0.30 after that.
        ("ec2-hourly", 20, RELEASED, 0.60, 0.0),
        ("ec2-hourly", 60, RELEASED, 0.60, 0.0),
        ("ec2-hourly", 61, RELEASED, 0.60 + 1.20, 0.0),
        ("ec2-hourly", 20, REVOKED, 0.0, 0.60),
        ("ec2-hourly", 60, REVOKED, 0.60, 0.0),
        ("ec2-hourly", 100, REVOKED, 0.60, 1.20),
        ("ec2-second", 20, RELEASED, 0.20, 0.0),
        ("ec2-second", 0.5, RELEASED, 0.01, 0.0),
        ("ec2-second", 59, REVOKED, 0.0, 0.30 + 29 / 60 * 1.20),
        ("ec2-second", 60, REVOKED, 0.30 + 0.60, 0.0),
        ("gcp-preemptible", 90, REVOKED, 0.90, 0.0),
        ("gcp-preemptible", 0.5, RELEASED, 0.01, 0.0),
        ("gcp-spot", 90, REVOKED, 0.30 + 1.20, 0.0),
        ("azure-spot", 0.5, RELEASED, 0.005, 0.0),
        ("mithril-auction", 20, REVOKED, 0.20, 0.0),
        ("mithril-auction", 0.5, RELEASED, 0.005, 0.0),
        ("per-second", 120, RELEASED, 0.30 + 1.20 + 0.15, 0.0),
        ("on-demand", 90, RELEASED, 0.90, 0.0),
    ],
)
def test_presets_by_hand(preset: str, minutes: float, ending: LeaseEnding, usd: float, refund: float) -> None:
    prices = series((0, 0.60), (1800, 1.20), (5400, 0.30))
    bill = billing_preset(preset).bill(prices, START_S, START_S + 60 * minutes, ending)
    assert bill.usd == pytest.approx(usd)
    assert bill.refund_usd == pytest.approx(refund)


def test_a_full_refund_leaves_exactly_nothing() -> None:
    prices = series(*((7 * n, 0.1 + n / 3) for n in range(100)))
    assert billing_preset("ec2-second").bill(prices, START_S, START_S + 700, REVOKED).usd == 0.0


def test_presets_revoke_and_warn_as_their_clouds_do() -> None:
    notices = {name: preset.notice_s for name, preset in PRESETS.items()}
    assert notices["ec2-hourly"] == notices["ec2-second"] == 120
    assert notices["mithril-auction"] == 300
    assert notices["gcp-preemptible"] == notices["gcp-spot"] == notices["azure-spot"] == 30
    assert not any(
        PRESETS[name].price_revokes for name in ("gcp-preemptible", "gcp-spot", "per-second", "on-demand")
    )
    assert PRESETS["gcp-preemptible"].max_lifetime_s == 24 * 3600
    assert math.isinf(PRESETS["ec2-second"].max_lifetime_s)


def test_an_unknown_preset_is_told_with_those_there_are() -> None:
    with pytest.raises(
        InputError, match=r"unknown billing preset 'ec2'.*; known: azure-spot, by-cloud, ec2-hourly"
    ):
        billing_preset("ec2")


def test_a_lease_without_a_known_price_cannot_be_charged() -> None:
    with pytest.raises(InputError, match="no price is known at"):
        billing_preset("ec2-second").bill(series((100, 0.1)), START_S, START_S + 200, RELEASED)
    with pytest.raises(InputError, match="before it starts"):
        billing_preset("ec2-second").bill(series((0, 0.1)), START_S + 9, START_S, RELEASED)


def recount(
    preset: str, prices: PriceSeries, start_s: int, end_s: int, ending: LeaseEnding
) -> tuple[float, float]:
    """What a lease costs and what is refunded, second by second, written from the table alone."""
    rule = PRESETS[preset]
    used = end_s - start_s
    paid_for = max(
        used,
        {"ec2-second": 60, "gcp-preemptible": 60, "gcp-spot": 60, "on-demand": 60, "by-cloud": 60}.get(preset, 0),
    )
    period = 3600 if preset == "ec2-hourly" else 1
    while paid_for % period:
        paid_for += 1
    cost = refund = 0.0
    last_period = 0.0
    price = 0.0
    for second in range(paid_for):
        if second % period == 0:
            fixed = rule.charged in (Charged.AT_LEASE_START, Charged.ON_DEMAND)
            at_s = start_s if fixed else start_s + second
            # An auction's round costs what its start does; there are thirty in an hour.
            price = prices.at(at_s // 120 * 120 if preset == "mithril-auction" else at_s)
            last_period = 0.0
        cost += price / 3600
        last_period += price / 3600
    if ending is REVOKED and rule.refund is Refund.WITHIN_FIRST_HOUR and used < 3600:
        refund = cost
    if ending is REVOKED and rule.refund is Refund.LAST_PARTIAL_PERIOD and used % period:
        refund = last_period
    return cost - refund, refund


@given(
    preset=st.sampled_from(sorted(PRESETS)),
    gaps=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    cents=st.lists(st.integers(1, 300), min_size=30, max_size=30),
    offset=st.integers(0, 4000),
    duration=st.one_of(st.integers(0, 12_000), st.sampled_from([59, 60, 61, 3599, 3600, 3601, 7200])),
    ending=st.sampled_from(list(LeaseEnding)),
)
def test_every_bill_equals_a_recount_second_by_second(
    preset: str, gaps: list[int], cents: list[int], offset: int, duration: int, ending: LeaseEnding
) -> None:
    times = START_S + np.concatenate([[0], np.cumsum(gaps)]).astype(float)[: len(gaps)]
    prices = PriceSeries(times, np.array(cents[: len(gaps)]) / 100)
    start_s = int(START_S) + offset
    bill = PRESETS[preset].bill(prices, start_s, start_s + duration, ending)
    cost, refund = recount(preset, prices, start_s, start_s + duration, ending)
    assert bill.usd == pytest.approx(cost, abs=1e-9)
    assert bill.refund_usd == pytest.approx(refund, abs=1e-9)
    assert bill.charged_usd == pytest.approx(cost + refund, abs=1e-9)


@given(
    preset=st.sampled_from(sorted(PRESETS)),
    duration=st.floats(0, 200_000, allow_nan=False),
    offset=st.floats(0, 5000, allow_nan=False),
    ending=st.sampled_from(list(LeaseEnding)),
)
def test_charges_follow_each_other_without_gap_and_cover_the_lease(
    preset: str, duration: float, offset: float, ending: LeaseEnding
) -> None:
    prices = series(*((1700.5 * n, 0.1 + n % 7) for n in range(150)))
    rule = PRESETS[preset]
    bill = rule.bill(prices, START_S + offset, START_S + offset + duration, ending)
    ends = [charge.end_s for charge in bill.charges]
    assert [charge.start_s for charge in bill.charges][1:] == ends[:-1]
    if bill.charges:
        paid = bill.charges[-1].end_s - bill.charges[0].start_s
        assert duration - 1e-5 <= paid < max(duration, rule.minimum_s) + rule.period_s + 1e-5
    assert 0.0 <= bill.refund_usd <= bill.charged_usd + 1e-12


def test_an_auction_is_charged_by_the_round_at_its_clearing_price_to_the_second() -> None:
    # Cleared at 3.60 USD/h; at second 100 a price that the round of second 120 is cleared at; 3-second peak unseen.
    prices = series((0, 3.60), (100, 7.20), (150, 36.0), (153, 7.20), (300, 1.80))
    bill = billing_preset("mithril-auction").bill(prices, START_S + 60, START_S + 370, REVOKED)
    # 60 s at 0.1 cent a second, 240 s at 0.2 cents, 10 s at 0.05 cents: the change at second 300 counts from 360 on.
    assert [(c.start_s - START_S, c.end_s - START_S, c.price_usd_per_hour) for c in bill.charges] == [
        (60, 120, 3.60),
        (120, 360, 7.20),
        (360, 370, 1.80),
    ]
    assert bill.usd == pytest.approx(0.06 + 0.48 + 0.005)
    assert bill.refund_usd == 0.0


def test_the_first_price_of_an_auction_holds_until_its_first_round() -> None:
    prices = series((50, 3.60), (60, 7.20), (130, 1.80))
    bill = billing_preset("mithril-auction").bill(prices, START_S + 55, START_S + 250, RELEASED)
    assert bill.usd == pytest.approx(65 * 0.001 + 120 * 0.002 + 10 * 0.0005)


def test_each_cloud_s_leases_have_the_rule_of_their_cloud() -> None:
    rule = billing_preset("by-cloud")
    assert rule.of("aws") == billing_preset("ec2-second")
    assert rule.of("gcp") == billing_preset("gcp-spot")
    assert rule.of("elsewhere") is rule
    # Policies count on the least that the clouds give.
    assert rule.notice_s == min(rule.of(cloud).notice_s for cloud in ("aws", "gcp", "azure"))
    longer = rule.with_least_notice(60.0)
    assert [longer.of(cloud).notice_s for cloud in ("aws", "gcp", "elsewhere")] == [120.0, 60.0, 60.0]
    assert billing_preset("gcp-spot").of("aws") == billing_preset("gcp-spot")


@pytest.mark.parametrize(
    ("name", "period_s", "minimum_s", "charged", "refund", "notice_s", "price_revokes", "lifetime_s", "round_s"),
    [
        ("ec2-hourly", 3600, 0, Charged.AT_PERIOD_START, Refund.LAST_PARTIAL_PERIOD, 120, True, math.inf, 0),
        ("ec2-second", 1, 60, Charged.AT_PERIOD_START, Refund.WITHIN_FIRST_HOUR, 120, True, math.inf, 0),
        ("gcp-preemptible", 1, 60, Charged.AT_LEASE_START, Refund.NOTHING, 30, False, 86_400, 0),
        ("gcp-spot", 1, 60, Charged.AT_PERIOD_START, Refund.NOTHING, 30, False, math.inf, 0),
        ("azure-spot", 1, 0, Charged.AT_PERIOD_START, Refund.NOTHING, 30, True, math.inf, 0),
        ("mithril-auction", 1, 0, Charged.AT_PERIOD_START, Refund.NOTHING, 300, True, math.inf, 120),
        ("per-second", 1, 0, Charged.AT_PERIOD_START, Refund.NOTHING, 0, False, math.inf, 0),
        ("on-demand", 1, 60, Charged.ON_DEMAND, Refund.NOTHING, 0, False, math.inf, 0),
        ("by-cloud", 1, 60, Charged.AT_PERIOD_START, Refund.NOTHING, 30, False, math.inf, 0),
    ],
)
def test_each_preset_is_the_rule_of_its_cloud(
    name: str,
    period_s: float,
    minimum_s: float,
    charged: Charged,
    refund: Refund,
    notice_s: float,
    price_revokes: bool,
    lifetime_s: float,
    round_s: float,
) -> None:
    rule = billing_preset(name)
    assert (rule.period_s, rule.minimum_s, rule.charged, rule.refund) == (period_s, minimum_s, charged, refund)
    assert (rule.notice_s, rule.price_revokes, rule.max_lifetime_s) == (notice_s, price_revokes, lifetime_s)
    assert rule.round_s == round_s
    assert rule.has_rounds is (round_s > 0)


def test_on_demand_machines_were_charged_by_the_hour_without_a_minimum_until_2017() -> None:
    assert (ON_DEMAND_HOURLY.period_s, ON_DEMAND_HOURLY.minimum_s, ON_DEMAND_HOURLY.notice_s) == (3600.0, 0.0, 0.0)
    assert ON_DEMAND_HOURLY.charged is Charged.ON_DEMAND
    assert ON_DEMAND is PRESETS["on-demand"]


def test_what_a_rule_does_not_say_is_that_prices_hold_from_their_change_and_revoke_nothing() -> None:
    rule = Billing("plain", 1.0)
    assert (rule.minimum_s, rule.charged, rule.refund) == (0.0, Charged.AT_PERIOD_START, Refund.NOTHING)
    assert (rule.notice_s, rule.price_revokes, rule.max_lifetime_s, rule.round_s) == (120.0, False, math.inf, 0.0)
    assert not rule.has_rounds


def test_a_rule_has_rounds_where_one_of_its_clouds_has() -> None:
    auction = billing_preset("mithril-auction")
    assert replace(billing_preset("gcp-spot"), clouds=(("mithril", auction),)).has_rounds
    assert replace(auction, clouds=(("gcp", billing_preset("gcp-spot")),)).has_rounds


def test_rules_and_bills_cannot_be_changed() -> None:
    rule = billing_preset("ec2-second")
    bill = rule.bill(series((0, 0.6)), START_S, START_S + 61, RELEASED)
    for kept, name in ((rule, "period_s"), (bill, "refund_usd"), (bill.charges[0], "usd")):
        with pytest.raises(FrozenInstanceError):
            setattr(kept, name, 2.0)
    assert bill.usd == pytest.approx(61 * 0.6 / 3600)


def test_a_machine_is_given_at_once_or_at_the_next_round_of_an_auction() -> None:
    assert billing_preset("ec2-second").given_s(START_S + 61.5) == START_S + 61.5
    auction = billing_preset("mithril-auction")
    assert [auction.given_s(START_S + asked_s) - START_S for asked_s in (0.0, 1.0, 119.5, 120.0)] == [
        0,
        120,
        120,
        120,
    ]


@given(
    gaps=st.lists(st.integers(1, 9000), min_size=1, max_size=40),
    cents=st.lists(st.integers(1, 99), min_size=41, max_size=41),
    offset_s=st.floats(0.0, 3000.0),
    waits=st.lists(st.floats(0.0, 7200.0), min_size=1, max_size=20),
    preset=st.sampled_from([preset for preset in PRESETS.values() if preset.charged is Charged.AT_PERIOD_START]),
)
def test_an_open_lease_costs_at_each_time_what_its_bill_would_be(
    gaps: list[int], cents: list[int], offset_s: float, waits: list[float], preset: Billing
) -> None:
    times_s = START_S + np.concatenate([[0.0], np.cumsum(gaps)])
    prices = PriceSeries(times_s, np.array(cents[: len(times_s)]) / 7.0)
    start_s = preset.given_s(START_S + offset_s)
    found = OpenBill(preset, prices, start_s)
    for end_s in [*(start_s + np.cumsum(waits)).tolist(), start_s + waits[0]]:
        assert found.usd(end_s) == preset.bill(prices, start_s, end_s, RELEASED).usd


def test_each_change_of_the_price_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each look at a budget billed open leases from their start: cost grew with the square of changes."""
    changes = 1_000
    prices = PriceSeries(START_S + 300.0 * np.arange(changes), 1.0 + np.arange(changes) % 7)
    looked_at, between = [], PriceSeries.between

    def counted(self: PriceSeries, start_s: float, end_s: float) -> tuple[np.ndarray, np.ndarray]:
        found = between(self, start_s, end_s)
        looked_at.append(len(found[0]))
        return found

    monkeypatch.setattr(PriceSeries, "between", counted)
    found = OpenBill(billing_preset("ec2-second"), prices, START_S)
    for number in range(changes):
        found.usd(START_S + 300.0 * number + 1.0)
    assert sum(looked_at) < 3 * changes


def test_an_open_lease_whose_price_is_unknown_is_an_error() -> None:
    prices = PriceSeries(np.array([START_S + 60.0]), np.array([1.0]))
    with pytest.raises(InputError, match="no price is known"):
        OpenBill(billing_preset("ec2-second"), prices, START_S).usd(START_S + 120.0)
