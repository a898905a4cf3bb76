"""The default policy: the cheapest way to do what is left, in time, whatever prices and capacity do."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.generator import MarketProfile, generate_auction_prices
from ebbtide.market.leases import LeaseState
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.baselines import OnDemand, Reactive
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.ebbtide.options import Refunds
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide.testing.scripted import replay

# On demand c3.xlarge costs 0.21 and r3.large 0.175 USD an hour; the first does two steps where the other does one.
HOURS = 200.0
SIMPLE = (Reactive(), OnDemand(), eb.policy("next-cheapest"), eb.policy("greedy-spot"))
# Of the best in markets harsher than any record: `reactive` waits for ten times the work, this policy for four.
MOST_OF_BEST = 1.6
CALM = history({C3: [(0, 0.04)], R3: [(0, 0.03)]}, hours=HOURS)


def capacity(*points: tuple[float, int]) -> CapacitySeries:
    """From (hours after START_S, machines) pairs."""
    times, nodes = zip(*points, strict=True)
    return CapacitySeries(START_S + HOUR_S * np.array(times, float), np.array(nodes), START_S + HOURS * HOUR_S)


def rented(outcome: Outcome) -> list[tuple[str, bool]]:
    """Type, and whether on demand, of the machines that were charged for."""
    return [(lease.market.instance_type, lease.on_demand) for lease in outcome.leases if lease.is_charged]


def test_it_is_the_default_and_has_a_name() -> None:
    assert eb.policy("ebbtide").name == "ebbtide"


def test_the_market_whose_steps_are_cheapest() -> None:
    assert rented(replay(Ebbtide(), [job()], CALM)) == [("c3.xlarge", False)]
    cheap = history({C3: [(0, 0.04)], R3: [(0, 0.015)]}, hours=HOURS)
    assert rented(replay(Ebbtide(), [job()], cheap, billing="gcp-spot")) == [("r3.large", False)]


def test_an_hour_that_is_worth_something_buys_the_faster_machine() -> None:
    cheap = history({C3: [(0, 0.04)], R3: [(0, 0.015)]}, hours=HOURS)
    outcome = replay(Ebbtide(hour_usd=0.05), [job()], cheap, billing="gcp-spot")
    assert rented(outcome) == [("c3.xlarge", False)]


def test_above_the_list_price_nobody_rents_spot() -> None:
    """The usual price is as high: there is nothing to wait for."""
    dear = history({C3: [(0, 0.5)], R3: [(0, 0.4)]}, hours=HOURS)
    assert rented(replay(Ebbtide(), [job()], dear, billing="gcp-spot")) == [("c3.xlarge", True)]


def test_where_prices_are_above_the_list_price_most_of_the_time_it_waits_for_the_others() -> None:
    """Six hours of each day cost 0.04, the others 0.5: their mean is above the list price of 0.21."""
    points = [(day * DAY_S + at_h * HOUR_S, usd) for day in range(8) for at_h, usd in ((0, 0.04), (6, 0.5))]
    dear = history({C3: points}, hours=HOURS)
    work = (job(5 * 3600),)
    outcome = Scenario(work, dear, eb.billing_preset("gcp-spot")).run(Ebbtide(), START_S + 3 * DAY_S + 10 * HOUR_S)
    assert set(rented(outcome)) == {("c3.xlarge", False)}
    assert outcome.cost_usd < 0.3
    # With little patience it pays the list price for what the cheap hours left.
    hasty = Scenario(work, dear, eb.billing_preset("gcp-spot")).run(
        Ebbtide(patience=0.1), START_S + 3 * DAY_S + 10 * HOUR_S
    )
    assert ("c3.xlarge", True) in rented(hasty)


@pytest.mark.long
@pytest.mark.parametrize("billing", ["ec2-hourly", "ec2-second"])
@pytest.mark.parametrize("profile", [
    MarketProfile(ratio=0.3, spikes_per_day=6, spike_length_min=40, spike_height=3, share_stuck=0.3),
    MarketProfile(ratio=0.2, share_stuck=0.5),
    MarketProfile(ratio=0.4, spikes_per_day=15, spike_length_min=15, spike_height=5, share_stuck=0.05),
    MarketProfile(ratio=0.8, spikes_per_day=3, spike_length_min=60, spike_height=2, share_stuck=0.2),
], ids=["often above the list price", "stuck", "spiky", "dear"])  # fmt: skip
def test_in_harsh_auctions_it_costs_about_what_the_best_simple_policy_does(
    profile: MarketProfile, billing: str
) -> None:
    zones = [eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "ab"]
    work = eb.Job(
        name="j",
        steps=24_000,
        steps_per_hour={"c3.xlarge": 1000},
        checkpoint={"size_bytes": 400_000_000, "save_s": 20, "restore_s": 45},  # type: ignore[arg-type]
    )
    costs: dict[str, list[float]] = {}
    for seed in range(2):
        prices = generate_auction_prices(zones, days=30, seed=seed, profile=profile)
        result = eb.backtest(work, [Ebbtide(), *SIMPLE], prices, billing=billing, starts=4, seed=seed)
        for name, outcomes in result.outcomes.items():
            costs.setdefault(name, []).append(float(np.mean([one.cost_usd for one in outcomes])))
    ours = np.mean(costs.pop("ebbtide"))
    best = min(np.mean(each) for each in costs.values())
    assert ours < MOST_OF_BEST * best, (ours, {name: np.mean(each) for name, each in costs.items()})


def test_who_is_refused_asks_the_next_best_at_once() -> None:
    none = Availability({C3: capacity((0.0, 0))})
    even = history({C3: [(0, 0.04)], R3: [(0, 0.0222)]}, hours=HOURS)
    outcome = replay(Ebbtide(), [job(600)], even, billing="gcp-spot", availability=none)
    assert [(lease.market.instance_type, lease.requested_s - START_S) for lease in outcome.leases] == [
        ("c3.xlarge", 0.0),
        ("r3.large", 20.0),
    ]


def test_without_a_deadline_it_waits_for_spot_machines_but_not_for_ever() -> None:
    later = Availability({C3: capacity((0.0, 0), (2.0, 9)), R3: capacity((0.0, 0))})
    patient = replay(Ebbtide(), [job(3600)], CALM, billing="gcp-spot", availability=later)
    assert rented(patient) == [("c3.xlarge", False)]
    assert 2.0 < patient.makespan_s / HOUR_S < 3.6
    never = Availability({C3: capacity((0.0, 0)), R3: capacity((0.0, 0))})
    at_last = replay(Ebbtide(patience=1.5), [job(3600)], CALM, billing="gcp-spot", availability=never)
    assert rented(at_last) == [("c3.xlarge", True)]
    assert 2.4 < at_last.makespan_s / HOUR_S < 3.2


def test_the_wait_is_counted_by_the_faster_machine_that_could_be_had_instead() -> None:
    """r3 is cheap and never there; c3 costs more than usual, and does the two hours of work in half the time."""
    dear = history({C3: [(0, 0.09)], R3: [(0, 0.02)]}, hours=HOURS)
    never = Availability({R3: capacity((0.0, 0))})
    outcome = replay(Ebbtide(patience=1.0), [job(2 * 3600)], dear, billing="gcp-spot", availability=never)
    assert rented(outcome) == [("c3.xlarge", False)]
    assert 3.9 < outcome.makespan_s / HOUR_S < 4.6


def test_a_machine_is_left_for_a_cheaper_one_and_the_new_one_comes_first() -> None:
    falls = history({C3: [(0, 0.06)], R3: [(0, 0.04), (3 * HOUR_S, 0.02)]}, hours=HOURS)
    outcome = replay(Ebbtide(), [job(20 * 3600)], falls, billing="gcp-spot")
    assert rented(outcome) == [("c3.xlarge", False), ("r3.large", False)]
    old, new = outcome.leases
    assert old.ended_s > new.running_s
    assert outcome.steps_lost == pytest.approx(0.0, abs=1.0)
    stays = replay(Ebbtide(), [job(3 * 3600 + 60)], falls, billing="gcp-spot")
    assert rented(stays) == [("c3.xlarge", False)]


def test_where_revoked_hours_are_free_it_bids_low_and_pays_less_than_who_does_not() -> None:
    """A price that rises a little every forty minutes, and falls again."""
    points = [(n * 2400.0, 0.040 + 0.002 * (n % 3)) for n in range(290)]
    prices = history({C3: points, R3: [(0, 0.05)]}, hours=HOURS)
    runs = eb.backtest(job(12 * 3600), [Ebbtide(), Reactive()], prices, billing="ec2-second", starts=4)
    usd = {name: np.mean([one.cost_usd for one in ones]) for name, ones in runs.outcomes.items()}
    assert all(one.finished for one in runs.outcomes["ebbtide"])
    assert usd["ebbtide"] < 0.8 * usd["reactive"]


def test_machines_that_work_as_one_are_bid_for_as_one() -> None:
    """A price takes all or none of them: four do four times the work at four times the cost, by the same leases."""
    points = [(n * 2400.0, 0.040 + 0.002 * (n % 3)) for n in range(290)]
    prices = history({C3: points, R3: [(0, 0.05)]}, hours=HOURS)
    alone = replay(Ebbtide(), [job(12 * 3600)], prices)
    gang = replay(Ebbtide(), [job(4 * 12 * 3600, machines=4)], prices)
    assert gang.finished
    assert gang.cost_usd == pytest.approx(4 * alone.cost_usd, rel=0.05)
    # They are given back before others are asked for, where one machine is exchanged for the next.
    assert alone.makespan_s <= gang.makespan_s <= 1.2 * alone.makespan_s
    plain = replay(Reactive(), [job(4 * 12 * 3600, machines=4)], prices)
    assert gang.cost_usd < 0.8 * plain.cost_usd


def test_what_a_zone_refunds_counts_as_cheaper() -> None:
    class Held:
        """Enough of a view."""

        def __init__(self) -> None:
            self.memory = {"paid_h": {str(C3): [9.0, 3.0]}}

    refunds = Refunds(Held())  # type: ignore[arg-type]
    assert refunds.paid_share(C3) == pytest.approx((3.0 + 3.0) / (9.0 + 3.0))
    assert refunds.paid_share(R3) == 1.0


def test_a_gang_that_cannot_be_complete_does_not_pay_for_the_half() -> None:
    """Two of four machines are available for two hours; then all."""
    few = Availability({C3: capacity((0.0, 2), (2.0, 9)), R3: capacity((0.0, 0))})
    outcome = replay(Ebbtide(), [job(4 * 3600, machines=4)], CALM, billing="gcp-spot", availability=few)
    assert outcome.finished
    alone_usd = 4 * 0.04 * (1.0 + 160 / 3600)
    assert outcome.cost_usd < 1.25 * alone_usd
    assert outcome.makespan_s < 3.8 * HOUR_S


@pytest.mark.parametrize(("billing", "leases"), [("ec2-second", 4), ("gcp-spot", 6)])
def test_half_a_gang_is_kept_longer_where_its_first_hour_may_still_be_refunded(billing: str, leases: int) -> None:
    """Two of four machines are available for twenty minutes; then all."""
    few = Availability({C3: capacity((0.0, 2), (20 / 60, 9)), R3: capacity((0.0, 0))})
    outcome = replay(Ebbtide(), [job(4 * 3600, machines=4)], CALM, billing, availability=few)
    assert outcome.finished
    assert len([lease for lease in outcome.leases if lease.is_charged]) == leases


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=40, max_size=40),
    st.lists(st.floats(0.01, 0.6), min_size=12, max_size=12),
    st.sampled_from([9.0, 11.0, 16.0]),
    st.sampled_from(["ec2-second", "ec2-hourly", "gcp-spot", "azure-spot"]),
)
def test_no_deadline_and_no_budget_is_missed_whatever_comes(
    nodes: list[int], prices: list[float], deadline_h: float, billing: str
) -> None:
    """Capacity changes hourly, prices every two hours; on-demand machines are always available."""
    available = Availability(
        {
            market: capacity(*((float(n), count) for n, count in enumerate(nodes[k::2])))
            for k, market in enumerate((C3, R3))
        }
    )
    recorded = history(
        {
            C3: [(n * 7200.0, usd) for n, usd in enumerate(prices)],
            R3: [(n * 7200.0, usd / 2) for n, usd in enumerate(prices)],
        },
        hours=HOURS,
    )
    policy = WithinBudget(Ebbtide(deadline_s=deadline_h * HOUR_S), 4.0)
    outcome = replay(policy, [job(6 * 3600)], recorded, billing=billing, availability=available)
    assert outcome.finished
    assert outcome.makespan_s <= deadline_h * HOUR_S
    assert outcome.cost_usd <= 4.0
    assert outcome.cost_usd == pytest.approx(outcome.ledger.total_usd)


def test_a_deadline_that_cannot_be_kept_is_refused_before_anything_is_rented() -> None:
    with pytest.raises(InputError, match="cannot be done in 1.0 h: on the fastest machine it takes 6.0 h"):
        replay(Ebbtide(deadline_s=HOUR_S), [job(6 * 3600)], CALM)


def spike(from_h: float, until_h: float, usd: float = 0.5) -> PriceHistory:
    """Prices of c3.xlarge: 0.04, for some hours more, and 0.04 again; the list price is 0.21."""
    return history({C3: [(0, 0.04), (from_h * HOUR_S, usd), (until_h * HOUR_S, 0.04)]}, hours=HOURS)


def in_spike(prices: PriceHistory, deadline_h: float, billing: str) -> Outcome:
    """Replay a job of five hours, begun after a day and an hour: an hour into the spike."""
    policy = Ebbtide(deadline_s=deadline_h * HOUR_S)
    return Scenario((job(5 * 3600),), prices, eb.billing_preset(billing)).run(policy, START_S + 25 * HOUR_S)


@pytest.mark.parametrize("billing", ["ec2-hourly", "ec2-second"])
def test_under_a_deadline_a_spike_is_waited_out_while_there_is_time(billing: str) -> None:
    """Three hours more of the spike, and six to spare: no machine costs the list price."""
    outcome = in_spike(spike(24, 28), 11.0, billing)
    assert rented(outcome) == [("c3.xlarge", False)]
    assert 8.0 < outcome.makespan_s / HOUR_S < 8.3


@pytest.mark.parametrize("billing", ["ec2-hourly", "ec2-second"])
@pytest.mark.parametrize("until_h", [80, 31, 29])
def test_a_spike_that_outlasts_the_time_to_spare_costs_the_list_price_only_while_it_lasts(
    billing: str, until_h: float
) -> None:
    """Four hours to spare, less those kept for a spot machine after one on demand."""
    outcome = in_spike(spike(24, until_h), 9.0, billing)
    assert outcome.makespan_s <= 9.0 * HOUR_S
    on_demand = [lease for lease in outcome.leases if lease.on_demand]
    assert on_demand[0].requested_s - outcome.start_s > 2.0 * HOUR_S
    assert rented(outcome)[1:] == ([("c3.xlarge", False)] if until_h < 33 else [])


def test_time_to_spare_is_kept_for_the_list_price_where_prices_are_only_somewhat_above_the_usual() -> None:
    """At twice the usual price four tenths of the time to spare are used, not all: log 2 of log 5.25."""
    outcome = in_spike(spike(24, 80, usd=0.08), 11.0, "ec2-hourly")
    first = outcome.leases[0]
    assert not first.on_demand
    spare_h = 11.0 - 5.0 - (4 * 600.0 + 3 * 345.0) / HOUR_S
    assert (first.requested_s - outcome.start_s) / HOUR_S == pytest.approx(
        spare_h * math.log(2.0) / math.log(5.25), abs=0.4
    )


def test_an_hour_that_is_worth_more_than_a_spike_costs_is_not_waited() -> None:
    policy = Ebbtide(deadline_s=11 * HOUR_S, hour_usd=0.2)
    outcome = Scenario((job(5 * 3600),), spike(24, 28), eb.billing_preset("ec2-second")).run(
        policy, START_S + 25 * HOUR_S
    )
    assert rented(outcome)[0] == ("c3.xlarge", True)


def test_what_cannot_be_saved_goes_on_demand_where_there_is_a_deadline() -> None:
    outcome = replay(Ebbtide(deadline_s=9 * HOUR_S), [job(6 * 3600, checkpoint=None)], CALM)
    assert rented(outcome) == [("c3.xlarge", True)]


def test_a_slow_type_is_taken_instead_of_an_on_demand_machine() -> None:
    """The table knows one type; where that is gone, another costs more than usual and less than on demand."""
    gone = Availability({C3: capacity((0.0, 0)), R3: capacity((0.0, 9))})
    outcome = replay(Ebbtide(deadline_s=16 * HOUR_S), [job(6 * 3600)], CALM, "gcp-spot", availability=gone)
    assert outcome.finished
    assert outcome.makespan_s <= 16 * HOUR_S
    assert ("r3.large", False) in rented(outcome)
    assert outcome.cost_usd < 6 * 0.21


def test_zones_that_all_refuse_are_left_to_the_table() -> None:
    """Two zones of one type come and go in turn, with gaps: no zone is asked but as the table has it."""
    left: list[object] = []

    class Watched(Ebbtide):
        def decide(self, view):  # type: ignore[no-untyped-def]
            yield from super().decide(view)
            left.extend(view.memory.get("off_table", ()))

    other = replace(C3, zone="us-east-1e")
    first = [(4.0 * n + hour, nodes) for n in range(12) for hour, nodes in ((0.0, 1), (1.5, 0))]
    second = [(0.0, 0), *((hour + 2.0, nodes) for hour, nodes in first)]
    gaps = Availability({C3: capacity(*first), other: capacity(*second)})
    prices = history({C3: [(0, 0.04)], other: [(0, 0.04)]}, hours=HOURS)
    outcome = replay(
        Watched(deadline_s=14.5 * HOUR_S), [job(10 * 3600)], prices, billing="gcp-spot", availability=gaps
    )
    assert outcome.finished
    assert not left


def test_a_job_goes_over_to_the_table_without_a_machine_of_another_type() -> None:
    """A move to a cheaper type is refused: capacity decides from now on, and the machine stays."""
    prices = history({C3: [(0, 0.03), (HOUR_S, 0.09)], R3: [(0, 0.06), (HOUR_S, 0.02)]}, hours=HOURS)
    gone = Availability({R3: capacity((0.0, 9), (0.5, 0))})
    for billing in ("ec2-hourly", "ec2-second"):
        outcome = replay(Ebbtide(deadline_s=30 * HOUR_S), [job(6 * 3600)], prices, billing, availability=gone)
        assert outcome.finished


@pytest.mark.parametrize("machines", [1, 4])
@pytest.mark.parametrize("billing", ["ec2-second", "gcp-spot"])
@pytest.mark.parametrize("due_h", [7.5, 9.0])
def test_a_deadline_is_kept_where_a_save_takes_longer_than_the_notice(
    machines: int, billing: str, due_h: float
) -> None:
    """What is not saved when the machine goes after three hours is to be done again."""
    rises = history({C3: [(0, 0.04), (3 * HOUR_S, 0.30)], R3: [(0, 0.5)]}, hours=HOURS)
    gone = Availability({C3: capacity((0.0, 9), (3.0, 0)), R3: capacity((0.0, 0))})
    work = job(6 * 3600 * machines, save_s=200.0, machines=machines)
    outcome = replay(Ebbtide(deadline_s=due_h * HOUR_S), [work], rises, billing, availability=gone)
    assert outcome.finished
    assert outcome.makespan_s <= due_h * HOUR_S


def test_the_best_trials_of_a_sweep_train_on() -> None:
    trials = [job(7200).model_copy(update={"name": f"t{n}"}) for n in range(5)]
    at = np.linspace(0.01, 1.0, 50)
    curves = tuple(
        Curve("s", one.name, at * one.steps, 1 / (1 + 9 * at) + 0.1 * n, float(one.steps))
        for n, one in enumerate(trials)
    )
    scenario = Scenario(tuple(trials), CALM, eb.billing_preset("ec2-second"), curves=curves)
    outcome = scenario.run(Ebbtide(selects=True, theta=0.5, mcnt=2), START_S)
    done = [one.steps_done / one.job.steps for one in outcome.jobs]
    assert done[:2] == pytest.approx([1.0, 1.0])
    assert all(0.49 < share < 0.6 for share in done[2:])
    alone = scenario.run(Ebbtide(theta=0.5, mcnt=2), START_S)
    assert all(one.steps_done == one.job.steps for one in alone.jobs)


def test_where_nothing_is_known_of_the_past_prices_of_the_moment_decide() -> None:
    young = PriceHistory(dict(CALM), start_s=START_S, end_s=START_S + HOURS * HOUR_S)
    outcome = Scenario((job(),), young, eb.billing_preset("ec2-second")).run(Ebbtide(), START_S)
    assert outcome.finished


def test_its_memory_is_plain() -> None:
    kept: dict[str, object] = {}

    class Watched(Ebbtide):
        def decide(self, view):  # type: ignore[no-untyped-def]
            yield from super().decide(view)
            json.dumps(view.memory)
            kept.update(view.memory)

    gone = Availability({C3: capacity((0.0, 1), (1.0, 0), (2.0, 1)), R3: capacity((0.0, 0))})
    replay(Watched(deadline_s=16 * HOUR_S), [job(6 * 3600)], CALM, "ec2-second", availability=gone)
    # Prices revoke, until a machine goes for another reason: capacity decides, and the table leads.
    assert kept["by_table"] == {"0": True}


def test_ranges_of_its_fields() -> None:
    for field, value in (("theta", 1.5), ("patience", -1.0), ("hour_usd", math.nan), ("look_every_s", 0.0)):
        with pytest.raises(InputError, match=field):
            Ebbtide(**{field: value})


def test_jobs_that_are_alike_are_served_alike() -> None:
    """Ten jobs in one decision: the ways are made once, and each gets the same machine."""
    outcome = replay(Ebbtide(), [job(600).model_copy(update={"name": f"j{n}"}) for n in range(10)], CALM)
    assert rented(outcome) == [("c3.xlarge", False)] * 10
    assert isinstance(outcome.jobs[0].job, Job)


def test_a_gang_that_loses_machines_keeps_the_others_for_a_while() -> None:
    """One of four goes for some minutes: the three stay, and it comes back to them."""
    dips = Availability({C3: capacity((0.0, 4), (1.0, 3), (1.05, 4)), R3: capacity((0.0, 0))})
    outcome = replay(Ebbtide(), [job(8 * 3600, machines=4)], CALM, billing="gcp-spot", availability=dips)
    assert outcome.finished
    assert len([lease for lease in outcome.leases if lease.is_charged]) == 5


def test_a_gang_whose_machines_are_often_taken_in_their_first_hour_is_exchanged_after_it() -> None:
    """Ten openings of half an hour, then some of an hour and a half: of these the last half hour is free again."""
    points, hour = [(0.0, 4)], 0.0
    for length in [0.5] * 10 + [1.5] * 8:
        points += [(hour + length, 0), (hour + length + 0.2, 4)]
        hour += length + 0.2
    flaky = Availability({C3: capacity(*points), R3: capacity((0.0, 0))})
    outcome = replay(Ebbtide(), [job(24 * 3600, machines=4)], CALM, billing="ec2-second", availability=flaky)
    assert outcome.finished
    exchanged = [one for one in outcome.leases if one.is_charged and one.state is LeaseState.RELEASED]
    assert len(exchanged) >= 8
    assert all(HOUR_S <= one.ended_s - one.started_s <= HOUR_S + 60.0 for one in exchanged[:4])
    calm = replay(Ebbtide(), [job(24 * 3600, machines=4)], CALM, billing="ec2-second")
    assert all(one.ended_s - one.started_s > 2 * HOUR_S for one in calm.leases)


def test_a_machine_that_is_being_refunded_is_left_to_its_provider() -> None:
    """The next machine runs before the old one is taken: to give that back would cost its half hour."""
    rises = history({C3: [(0, 0.04), (1800, 0.30)], R3: [(0, 0.03)]}, hours=HOURS)
    quick = StartDelay(request_s=5.0, boot_s=20.0)
    outcome = replay(Ebbtide(patience=0.0), [job(4 * 3600)], rises, billing="ec2-second", delay=quick)
    first, second = (one for one in outcome.leases if one.is_charged)
    assert second.running_s < first.ended_s
    assert first.state is LeaseState.REVOKED
    assert outcome.refund_usd > 0.0
    assert outcome.steps_lost == pytest.approx(0.0, abs=1.0)


def test_an_on_demand_machine_is_left_once_spot_is_there_again() -> None:
    later = Availability({C3: capacity((0.0, 0), (1.0, 9)), R3: capacity((0.0, 0))})
    for billing in ("ec2-second", "gcp-spot"):
        outcome = replay(Ebbtide(patience=0.0), [job(8 * 3600)], CALM, billing, availability=later)
        assert rented(outcome) == [("c3.xlarge", True), ("c3.xlarge", False)]
        assert outcome.cost_usd < 1.3 * 0.21 + 7 * 0.04 * 1.1


@pytest.mark.parametrize(("share", "is_taken"), [(0.94, True), (0.96, False), (0.99, False)])
def test_a_machine_of_another_type_has_to_cost_a_twentieth_less_than_waiting(
    share: float, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's type is gone for half an hour. On the other, six hours of work take twelve, after two minutes."""
    other_usd = 0.03 * (12.0 + 120.0 / HOUR_S)
    monkeypatch.setattr(Deadline, "expected_usd", lambda *_: other_usd / share)
    gone = Availability({C3: capacity((0.0, 0), (0.5, 9)), R3: capacity((0.0, 9))})
    outcome = replay(Ebbtide(deadline_s=16 * HOUR_S), [job(6 * 3600)], CALM, "gcp-spot", availability=gone)
    assert (("r3.large", False) in rented(outcome)) is is_taken
