"""DeepSpotCloud's rules on small markets worked out by hand, and on the real ones."""

from __future__ import annotations

import numpy as np
import pytest
from tests.markets import C3, START_S, history, job

import ebbtide as eb
from ebbtide.engine.outcome import Outcome
from ebbtide.policies.deepspotcloud.policy import DeepSpotCloud, MoveWhen

OTHER = eb.Market("aws", "us-east-1", "us-east-1b", "c3.xlarge")
FAR = eb.Market("aws", "eu-west-1", "eu-west-1a", "c3.xlarge")
DAY = 86_400.0


def run(when: MoveWhen, prices: eb.PriceHistory, hours: float = 5.0, **more: float) -> Outcome:
    policy = DeepSpotCloud(when, **more)
    work = job(round(3600 * hours))
    result = eb.backtest(work, [policy], prices, billing="ec2-hourly", starts=[START_S + DAY], seed=1)
    (outcome,) = result.outcomes[policy.name]
    assert outcome.finished
    return outcome


def after(*points: tuple[float, float]) -> list[tuple[float, float]]:
    """Prices from a start of a day after the record's."""
    return [(0.0, points[0][1]), *((DAY + time, price) for time, price in points[1:])]


# Cheapest at first; from forty minutes on the other one is.
CROSSING = {C3: after((0, 0.05), (2400, 0.15)), OTHER: after((0, 0.10))}


def test_interrupt_stays_until_it_is_taken() -> None:
    outcome = run(MoveWhen.NEVER, history(CROSSING))
    assert [lease.market for lease in outcome.leases] == [C3]
    # The first hour at 0.05, the others at 0.15.
    assert outcome.cost_usd == pytest.approx(0.05 + 5 * 0.15)


def test_hourly_moves_at_the_end_of_the_hour_that_is_paid_anyway() -> None:
    outcome = run(MoveWhen.PERIOD_END, history(CROSSING))
    assert [lease.market for lease in outcome.leases] == [C3, OTHER]
    first = outcome.leases[0]
    assert first.ended_s - first.started_s <= 3600
    assert first.ended_s - first.started_s > 3600 - 300
    assert outcome.ledger.usd_of(0) == pytest.approx(0.05)
    assert outcome.cost_usd == pytest.approx(0.05 + 5 * 0.10)
    assert outcome.steps_lost == 0


def test_best_price_moves_at_once_and_pays_the_rest_of_the_hour() -> None:
    outcome = run(MoveWhen.CHEAPER, history(CROSSING))
    assert [lease.market for lease in outcome.leases] == [C3, OTHER]
    assert outcome.leases[1].requested_s == START_S + DAY + 2400
    assert outcome.ledger.usd_of(0) == pytest.approx(0.05)


def test_a_move_that_is_not_worth_it_is_not_made() -> None:
    """A tenth of a cent an hour cheaper, for a checkpoint of 8 GiB that has to cross an ocean."""
    prices = history({C3: after((0, 0.050), (2400, 0.051)), FAR: after((0, 0.0505))})
    heavy = {"save_s": 10.0, "restore_s": 20.0, "size_bytes": 8 * 2**30}
    work = job(
        5 * 3600,
        checkpoint=eb.Job.model_validate(
            {"name": "x", "steps": 1, "steps_per_hour": {"c3.xlarge": 1}, "checkpoint": heavy}
        ).checkpoint,
    )
    policies = [DeepSpotCloud(MoveWhen.PERIOD_END), DeepSpotCloud(MoveWhen.WORTHWHILE)]
    found = eb.backtest(work, policies, prices, billing="ec2-hourly", starts=[START_S + DAY], seed=1).outcomes
    moved, stayed = (found[policy.name][0] for policy in policies)
    assert len(moved.leases) == 2
    assert len(stayed.leases) == 1


def test_a_revoked_job_goes_to_the_cheapest_market_that_is_left() -> None:
    prices = history({C3: after((0, 0.05), (4000, 0.9)), OTHER: after((0, 0.10)), FAR: after((0, 0.08))})
    for when in MoveWhen:
        outcome = run(when, prices)
        assert [lease.market for lease in outcome.leases] == [C3, FAR]
        assert outcome.revocations == 1
        assert outcome.steps_lost == 0


def test_above_the_list_price_everywhere_it_waits() -> None:
    prices = history({C3: after((0, 0.5), (7200, 0.05))})
    outcome = run(MoveWhen.PERIOD_END, prices)
    assert outcome.leases[0].requested_s == pytest.approx(START_S + DAY + 7200, abs=301)


@pytest.mark.exhaustive
@pytest.mark.real_traces
def test_on_real_prices_the_orderings_of_the_paper_hold(auction_2015: eb.PriceHistory) -> None:
    """Fig. 6: hourly is cheaper than interrupt for at most 1 % more time, best-price the dearest; ours is the least."""
    prices = auction_2015.select(lambda market: market.instance_type == "g2.2xlarge")
    work = eb.Job(name="g", steps=72_000, steps_per_hour={"g2.2xlarge": 1_000.0})
    policies = [DeepSpotCloud(when) for when in MoveWhen]
    found = eb.backtest(work, policies, prices, billing="ec2-hourly", starts=150, seed=1).outcomes
    cost = {name: np.mean([out.cost_usd for out in outcomes]) for name, outcomes in found.items()}
    time = {name: np.mean([out.makespan_s for out in outcomes]) for name, outcomes in found.items()}
    interrupt, best, hourly, ours = (f"deepspotcloud-{when}" for when in MoveWhen)
    assert cost[ours] <= cost[hourly] < cost[interrupt] < cost[best]
    assert max(time[ours], time[hourly]) <= 1.01 * time[interrupt]
