"""Cümülön-D's policies by name: they choose a market, keep the deadline, and go on after a restart as before."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.billing import ON_DEMAND_HOURLY, billing_preset
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.backoff import BacksOff
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.cookbook.by_name import ByCookbook, CookbookRule
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.registry import policy
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay

BEGAN_S = to_epoch_s("2014-01-06T00:00:00Z")
START_S = BEGAN_S + 12 * DAY_S
A, B = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "ab")
BY_HOUR = replace(billing_preset("ec2-hourly"), on_demand=ON_DEMAND_HOURLY)
DEADLINE_H = 10.0


def job(**fields: Any) -> eb.Job:
    """Twelve machine-hours on c3.xlarge."""
    given = {"name": "work", "steps": 12_000, "steps_per_hour": {"c3.xlarge": 1000.0}, "machines": 4}
    return eb.Job.parse(
        {**given, "coupling": Coupling.INDEPENDENT, "checkpoint": {"save_s": 0, "restore_s": 0}, **fields}
    )


def alternating(low: float, high: float, every_h: float = 1.7) -> PriceSeries:
    times_s = np.arange(BEGAN_S, START_S + 3 * DAY_S, every_h * HOUR_S)
    return PriceSeries(times_s, np.where(np.arange(len(times_s)) % 2, high, low))


def history(**series: PriceSeries) -> eb.PriceHistory:
    markets = {"a": A, "b": B}
    return eb.PriceHistory(
        {markets[name]: each for name, each in series.items()}, start_s=BEGAN_S, end_s=START_S + 3 * DAY_S
    )


TWO = history(a=alternating(0.02, 0.5), b=alternating(0.18, 0.19))


def run(
    made: ByCookbook, prices: eb.PriceHistory = TWO, billing: Any = BY_HOUR, *jobs: eb.Job
) -> eb.types.Outcome:
    scenario = Scenario(jobs or (job(),), prices, billing, delay=StartDelay(made.delay_s, 0.0))
    return scenario.run(made, START_S)


def of(rule: CookbookRule, **fields: Any) -> ByCookbook:
    return replace(policy(str(rule)), deadline_s=DEADLINE_H * HOUR_S, **fields)  # type: ignore[type-var, return-value]


@pytest.mark.parametrize("rule", list(CookbookRule))
def test_each_keeps_the_deadline(rule: CookbookRule) -> None:
    outcome = run(of(rule, on_demand=True))
    assert outcome.finished
    assert outcome.makespan_s <= DEADLINE_H * HOUR_S + 1.0


def test_it_waits_for_low_prices_and_a_fixed_cluster_does_not() -> None:
    calm = history(a=alternating(0.02, 0.5))
    skyline, fixed = run(of(CookbookRule.SKYLINE), calm), run(of(CookbookRule.FIXED, size=2), calm)
    assert skyline.cost_usd < fixed.cost_usd
    # It bids no more than the price at which it would rent none, unless time is short.
    assert all(
        lease.max_price_usd_per_hour <= 0.5 or not np.isfinite(lease.max_price_usd_per_hour)
        for lease in skyline.leases
    )


def test_the_market_is_the_one_whose_cookbook_costs_least() -> None:
    """The price of A is higher in the mean, and low for half of the time: whoever can wait takes it."""
    assert TWO[A].mean(BEGAN_S, START_S) > TWO[B].mean(BEGAN_S, START_S)
    assert {lease.market for lease in run(of(CookbookRule.SKYLINE)).leases} == {A}
    hurried = replace(of(CookbookRule.SKYLINE, on_demand=False), deadline_s=4 * HOUR_S)
    assert {lease.market for lease in run(hurried).leases} == {B}
    assert {lease.market for lease in run(of(CookbookRule.SKYLINE, markets=1)).leases} == {B}


def test_charges_of_several_steps_are_reckoned_by_when_machines_were_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half-hour steps, hourly charges (kappa 2): between two charges a machine is there whatever it costs."""
    asked: list[tuple[Any, int]] = []
    plain = Cookbook.choose

    def choose(self: Cookbook, hours: float, price: float, left_h: float, charged: Any) -> int:
        asked.append((tuple(charged), found := plain(self, hours, price, left_h, charged)))
        return found

    monkeypatch.setattr(Cookbook, "choose", choose)
    outcome = run(of(CookbookRule.SKYLINE, step_s=HOUR_S / 2))
    assert outcome.finished
    assert outcome.makespan_s <= DEADLINE_H * HOUR_S + 1.0
    # Those that were charged one step ago cannot be fewer: they are paid for.
    assert all(size >= charged[1] for charged, size in asked)
    assert {len(charged) for charged, _ in asked} == {2}
    assert any(charged[0] for charged, _ in asked)
    assert any(charged[1] for charged, _ in asked)


def test_kappa_two_with_the_same_choices_costs_as_kappa_one() -> None:
    """At one constant price all plans of whole machine-hours cost the same."""
    flat = history(a=PriceSeries(np.array([BEGAN_S, START_S + 2 * DAY_S]), np.array([0.1, 0.11])))
    # Machines work to the end of the hour that is paid.
    whole: dict[str, float] = {"delay_s": 0.0, "lead_s": 0.0}
    by_hour, by_half = (run(of(CookbookRule.SKYLINE, step_s=step_s, **whole), flat) for step_s in (3600.0, 1800.0))
    assert by_hour.cost_usd == pytest.approx(1.2)
    assert by_half.cost_usd == pytest.approx(1.2)


def test_after_a_restart_it_decides_as_before() -> None:
    """What it keeps is plain values, from which a new object goes on, solving the same cookbook again."""

    class Restarted:
        name, wakes_on = "restarted", of(CookbookRule.SKYLINE).wakes_on

        def decide(self, view: Any) -> Any:
            # As a journal keeps it.
            json.dumps(view.memory)
            return of(CookbookRule.SKYLINE).decide(view)

    whole = run(of(CookbookRule.SKYLINE))
    scenario = Scenario((job(),), TWO, BY_HOUR, delay=StartDelay(600.0, 0.0))
    again = scenario.run(Restarted(), START_S)  # type: ignore[arg-type]
    assert [line.usd for line in again.ledger.lines] == [line.usd for line in whole.ledger.lines]


@pytest.mark.parametrize(
    ("fields", "jobs", "message"),
    [
        ({}, (job(name="one"), job(name="two")), "rents machines for one job, and these are 2"),
        (
            {},
            (job(coupling=Coupling.GANG),),
            "gives any number of machines, none among them, and job work waits for 4",
        ),
        ({"step_s": 2700.0}, (), "step_s: is 2700; machines are charged for 3600 s at a time"),
        ({"deadline_s": 1800.0}, (), "step_s: is 3600; the deadline is 1800 s from the start"),
        ({"deadline_s": 2 * HOUR_S}, (), "12 machine-hours cannot be done in 2 h with 4 machines"),
    ],
)
def test_what_cannot_be_is_said(fields: dict[str, Any], jobs: tuple[eb.Job, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(replace(of(CookbookRule.SKYLINE), **fields), TWO, BY_HOUR, *jobs)


def test_a_step_of_no_whole_number_of_ticks_is_refused() -> None:
    with pytest.raises(InputError, match="step_s: is 1000; a step is a whole number of 300 s"):
        of(CookbookRule.SKYLINE, step_s=1000.0)


def test_prices_of_less_than_a_day_make_no_cookbook() -> None:
    short = eb.PriceHistory(
        {A: PriceSeries(np.array([START_S - 3600.0]), np.array([0.02]))},
        start_s=START_S - 3600.0,
        end_s=START_S + 3 * DAY_S,
    )
    with pytest.raises(InputError, match="known for less than a day"):
        run(of(CookbookRule.SKYLINE), short)


def test_a_market_that_refuses_is_waited_for_where_the_run_backs_off() -> None:
    """As live on EC2: a market that has just refused is not shown for a while, the chosen one, too."""
    times_s = np.array([BEGAN_S, START_S + 2 * HOUR_S])
    series = CapacitySeries(times_s, np.array([0, 9]), START_S + 3 * DAY_S)
    capacity = Availability({A: series, B: series})
    made = of(CookbookRule.COOKBOOK)
    scenario = Scenario((job(),), TWO, BY_HOUR, capacity, delay=StartDelay(made.delay_s, 0.0))
    assert scenario.run(BacksOff(made), START_S).finished


def test_a_late_cluster_asks_for_each_machine_once_though_a_budget_limits_its_bid() -> None:
    """Bids of infinity, capped by the budget, can be outbid: that alone is no reason to exchange a machine."""
    dear = history(a=PriceSeries(np.array([BEGAN_S, START_S + 2 * HOUR_S]), np.array([0.02, 0.19])))
    made = of(CookbookRule.SKYLINE)
    scenario = Scenario(
        (job(machines=4),), dear, billing_preset("ec2-second"), delay=StartDelay(made.delay_s, 0.0)
    )
    outcome = scenario.run(WithinBudget(made, 5.0), START_S)
    assert outcome.finished
    assert len(outcome.leases) < 40


# Capacity.

EAST, WEST = (eb.Market("aws", region, f"{region}a", "p3.2xlarge") for region in ("us-east-1", "us-west-2"))
# High at the start: prices alone wait for the low one.
CALM = alternating(0.95, 1.0)
DEARER = PriceSeries(CALM.times_s, CALM.prices + 0.5)


def on_gpus(machines: dict[eb.Market, list[tuple[float, int]]], **fields: Any) -> tuple[eb.types.Outcome, Any]:
    """Run a job of six machine-hours within twelve, in markets with so many machines from some hour on."""
    work = job(steps=6000, steps_per_hour={"p3.2xlarge": 1000.0}, machines=1)
    prices = eb.PriceHistory({EAST: CALM, WEST: DEARER}, start_s=BEGAN_S, end_s=START_S + 3 * DAY_S)
    series = {
        market: CapacitySeries(
            np.array([BEGAN_S, *(START_S + hour * HOUR_S for hour, _ in changes)]),
            np.array([1, *(number for _, number in changes)]),
            START_S + 3 * DAY_S,
        )
        for market, changes in machines.items()
    }
    made = of(CookbookRule.DYNAMIC, step_s=HOUR_S / 2, delay_s=60.0, **fields)
    made = replace(made, deadline_s=12 * HOUR_S)
    scenario = Scenario(
        (work,), prices, billing_preset("ec2-second"), Availability(series), delay=StartDelay(60.0, 0.0)
    )
    return scenario.run(made, START_S), scenario


def test_where_capacity_may_go_it_works_while_there_are_machines() -> None:
    """Prices alone wait for the low price, and from the seventh hour on there are no machines."""
    goes = {EAST: [(7.0, 0)], WEST: [(7.0, 0)]}
    by_prices, found = on_gpus(goes, capacity=False)[0], on_gpus(goes)[0]
    assert not by_prices.finished or by_prices.makespan_s > 12 * HOUR_S
    assert found.finished
    assert found.makespan_s < 7 * HOUR_S


def test_without_machines_work_goes_on_in_another_market() -> None:
    """The cheaper market's machine is taken after two hours, and refused from then on."""
    goes = {EAST: [(2.0, 0)], WEST: []}
    by_prices, found = on_gpus(goes, capacity=False)[0], on_gpus(goes)[0]
    assert not by_prices.finished or by_prices.makespan_s > 12 * HOUR_S
    assert found.finished
    assert found.makespan_s < 7 * HOUR_S
    assert [lease.market for lease in found.leases if lease.is_charged] == [EAST, WEST]


def test_after_a_restart_it_knows_the_same_shortages() -> None:
    goes = {EAST: [(2.0, 0)], WEST: [(5.0, 0), (6.0, 1)]}
    whole, scenario = on_gpus(goes)

    class Restarted:
        name, wakes_on = "restarted", of(CookbookRule.DYNAMIC).wakes_on

        def decide(self, view: Any) -> Any:
            json.dumps(view.memory)
            made = of(CookbookRule.DYNAMIC, step_s=HOUR_S / 2, delay_s=60.0)
            return replace(made, deadline_s=12 * HOUR_S).decide(view)

    again = scenario.run(Restarted(), START_S)
    assert whole.finished
    assert [line.usd for line in again.ledger.lines] == [line.usd for line in whole.ledger.lines]


def test_in_an_auction_prices_alone_decide_until_a_machine_is_refused() -> None:
    """A price above the list price tells of capacity, and takes machines."""
    spiked = PriceSeries(CALM.times_s, np.where(np.arange(len(CALM)) == 9, 3.2, CALM.prices))
    span: dict[str, float] = {"start_s": BEGAN_S, "end_s": START_S + 3 * DAY_S}
    calm, wild = (eb.PriceHistory({EAST: series}, **span) for series in (CALM, spiked))
    work = job(steps=6000, steps_per_hour={"p3.2xlarge": 1000.0}, machines=1)
    begins_h = []
    for prices in (calm, wild):
        made = replace(of(CookbookRule.DYNAMIC), deadline_s=12 * HOUR_S)
        found = Scenario((work,), prices, billing_preset("ec2-second")).run(made, START_S)
        begins_h.append((found.leases[0].requested_s - START_S) / HOUR_S)
    assert begins_h[0] == 0.0
    assert begins_h[1] > 0.5
