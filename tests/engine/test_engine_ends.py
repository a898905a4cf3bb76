"""Machines and jobs that end while the engine looks elsewhere: each is charged and counted once."""

from __future__ import annotations

import math

import pytest
from tests.markets import C3, START_S, history, job

import ebbtide as eb
from ebbtide.engine.engine import Engine
from ebbtide.market.billing import LeaseEnding
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.events import Event, Wake
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket

PER_SECOND = eb.billing_preset("ec2-second")


class Rents:
    """Rents one machine for each job."""

    name = "rents"
    wakes_on: frozenset[Wake] = frozenset()

    def decide(self, view: eb.policies.View) -> list[eb.policies.Action]:
        short = [each for each in view.jobs if not each.is_finished and not view.leases_of(each.job_id)]
        return [eb.policies.Request(C3, job=each.job_id) for each in short]


class EndsWithTheJob(ReplayProvider):
    """Its machine has ended by itself when it tells that the job is done, and it has not told of that yet."""

    def next_event(self, until_s: float) -> Event | None:
        event = super().next_event(until_s)
        if event is not None and event.wake is Wake.FINISHED:
            for lease in self.rented:
                lease.state, lease.ended_s = LeaseState.RELEASED, self.now_s
        return event

    def launch(self, lease: Lease) -> None:
        self.rented = [*getattr(self, "rented", []), lease]
        super().launch(lease)


class Keeps(ReplayProvider):
    """Ends nothing: another controller has taken over."""

    def terminate(self, lease: Lease) -> None:
        """Do nothing."""


def engine(kind: type[ReplayProvider], jobs: int = 1) -> Engine:
    market = ReplayedMarket(history({C3: [(0, 0.36)]}), START_S, PER_SECOND)
    return Engine(Rents(), [job(steps=100.0) for _ in range(jobs)], kind(market), PER_SECOND)


def test_a_machine_that_ended_with_the_last_job_is_charged() -> None:
    usual, ended = engine(ReplayProvider).run(), engine(EndsWithTheJob).run()
    assert usual.cost_usd > 0
    assert ended.cost_usd == pytest.approx(usual.cost_usd)


def test_what_another_controller_has_is_not_charged_here_as_ended() -> None:
    outcome = engine(Keeps).run()
    assert outcome.finished
    (lease,) = outcome.leases
    assert lease.is_open
    assert math.isnan(lease.ended_s)
    assert outcome.cost_usd == 0.0


def test_a_job_that_is_told_done_twice_ends_once() -> None:
    runs = engine(ReplayProvider, jobs=2)
    runs._job_done(0)
    runs._job_done(0)
    assert runs._unfinished == {1}


class PublishesLate(ReplayProvider):
    """Its prices of the past are known only after the run."""

    later: eb.PriceHistory | None = None

    def prices(self, market: eb.Market) -> PriceSeries:
        return super().prices(market) if self.later is None else self.later[market]


def test_prices_that_are_published_late_are_charged_in_the_end() -> None:
    runs = engine(PublishesLate)
    outcome = runs.run()
    (lease,), usd = outcome.leases, outcome.cost_usd
    provider = runs._provider
    assert isinstance(provider, PublishesLate)
    middle_s = (lease.started_s + lease.ended_s) / 2.0
    provider.later = history({C3: [(0, 0.36), (middle_s - START_S, 0.72)]})
    runs.settle_all_again()
    bill = PER_SECOND.bill(provider.later[C3], lease.started_s, lease.ended_s, LeaseEnding.RELEASED)
    assert runs.view.spent_usd == pytest.approx(bill.usd)
    assert usd < bill.usd < 2.0 * usd


def test_what_was_never_charged_is_not_charged_in_the_end() -> None:
    """Its launch counted as failed, whatever its times say."""
    runs = engine(ReplayProvider)
    outcome = runs.run()
    failed = Lease(1, C3, 1.0, on_demand=False, requested_s=START_S, state=LeaseState.FAILED, started_s=START_S)
    failed.ended_s = START_S + 3600.0
    runs._leases.append(failed)
    runs.settle_all_again()
    assert runs.view.spent_usd == outcome.cost_usd


def test_a_run_began_when_it_began_whatever_the_time_is_now() -> None:
    made = engine(ReplayProvider)
    assert made.started_s == made.now_s == START_S
    outcome = made.run()
    assert made.started_s == outcome.start_s == START_S
    assert made.now_s == outcome.end_s > START_S
