"""What a provider measures is what policies see, and what they learn from."""

from __future__ import annotations

import pytest

import ebbtide as eb
from ebbtide.controller.kinds.measured_speed import MeasuredSpeeds
from ebbtide.engine.engine import Engine
from ebbtide.jobs.job import Checkpointing
from ebbtide.market.billing import billing_preset
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.spottune.policy import ObservedStepTimes
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket

PRICES = eb.generate_prices(days=2, seed=1, kind="auction")
JOB = eb.Job(name="j", steps=1000, steps_per_hour={"c3.xlarge": 3600, "m3.medium": 1800})
FAST, SLOW = (next(market for market in PRICES if market.instance_type == name) for name in JOB.steps_per_hour)


class Measuring(ReplayProvider):
    """A replay that pretends to have seen machines at work."""

    def __init__(self, speeds: MeasuredSpeeds) -> None:
        market = ReplayedMarket(PRICES, PRICES.start_s, billing_preset("ec2-second"))
        super().__init__(market, catalogue=eb.default_catalogue())
        self.speeds = speeds

    def measured_steps_per_s(self, job_id: int, market: eb.Market) -> float | None:
        return self.speeds.measured(job_id, market.instance_type)

    def steps_per_s(self, job_id: int, market: eb.Market, declared: float) -> float:
        return self.speeds.steps_per_s(job_id, market.instance_type, declared)


def engine(provider: ReplayProvider) -> Engine:
    return Engine(eb.policies.Reactive(), [JOB], provider, billing_preset("ec2-second"))


def test_measured_speeds_take_the_place_of_declared_ones() -> None:
    speeds = MeasuredSpeeds()
    measuring = engine(Measuring(speeds))
    view = measuring.view
    (job,) = view.jobs
    assert [view.steps_per_s(job.job, market) for market in (FAST, SLOW)] == [1.0, 0.5]
    assert view.seen_steps_per_s(job.job, FAST) is None
    times = ObservedStepTimes({})
    (own,) = measuring.jobs
    own.leases, own.steps_run = [Lease(0, FAST, 1.0, False, 0.0, LeaseState.RUNNING)], 5.0
    own.steps_on = {0: 5.0}
    times.observe(view, job)
    assert times.seen == {"0": {}}
    speeds.begin(0, 1, "c3.xlarge", 0)
    for step, time_s in ((1, 10.0), (2, 20.0), (11, 110.0)):
        speeds.reported(0, 1, step, time_s)
    # A tenth of what was declared there, and so a tenth of it elsewhere.
    assert [view.steps_per_s(job.job, market) for market in (FAST, SLOW)] == pytest.approx([0.1, 0.05])
    assert view.seen_steps_per_s(job.job, FAST) == pytest.approx(0.1)
    times.observe(view, job)
    assert times.seen == {"0": {"c3.xlarge": pytest.approx(10.0)}}
    # Of a job that is none of the run's nothing is measured.
    assert view.steps_per_s(JOB.model_copy(update={"name": "other"}), FAST) == 1.0


def test_in_a_replay_rates_are_as_declared() -> None:
    market = ReplayedMarket(PRICES, PRICES.start_s, billing_preset("ec2-second"))
    view = engine(ReplayProvider(market, catalogue=eb.default_catalogue())).view
    assert view.steps_per_s(JOB, FAST) == view.seen_steps_per_s(JOB, FAST) == 1.0


def test_saves_take_their_share_of_a_declared_rate_and_are_in_a_measured_one_already() -> None:
    """A minute of every ten goes for saves."""
    saved = JOB.model_copy(update={"checkpoint": Checkpointing(save_s=60.0, restore_s=0.0, interval_s=600.0)})
    given: list[float] = []

    class Declared(Measuring):
        def steps_per_s(self, job_id: int, market: eb.Market, declared: float) -> float:
            given.append(declared)
            return super().steps_per_s(job_id, market, declared)

    market = ReplayedMarket(PRICES, PRICES.start_s, billing_preset("ec2-second"))
    for provider, rate in (
        (ReplayProvider(market, catalogue=eb.default_catalogue()), 0.9),
        (Declared(MeasuredSpeeds()), 1.0),
    ):
        view = Engine(eb.policies.Reactive(), [saved], provider, billing_preset("ec2-second")).view
        # Asked again, it is the same.
        assert [view.steps_per_s(view.jobs[0].job, FAST) for _ in range(2)] == pytest.approx([rate, rate])
    assert given == [1.0, 1.0]
    # Of a job that is none of the run's nothing is measured, and saves take their share.
    assert view.steps_per_s(saved.model_copy(), FAST) == pytest.approx(0.9)
    assert view.seen_steps_per_s(saved.model_copy(), FAST) == pytest.approx(0.9)
