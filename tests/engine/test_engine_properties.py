"""Properties of every run, on random markets; and the engine against a second-by-second simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.tick_simulation import simulate
from tests.market.test_billing import recount
from tests.markets import C3, R3, START_S

from ebbtide.base.utc import to_epoch_s
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.job import Checkpointing, Coupling, Job
from ebbtide.market.billing import PRESETS, LeaseEnding
from ebbtide.market.leases import LeaseState
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.baselines import Reactive
from ebbtide.policies.registry import policies
from ebbtide.testing.scripted import DELAY, replay

HOURS = 12
SPAN_S = HOURS * 3600


@st.composite
def markets(draw: st.DrawFn) -> PriceHistory:
    """Two markets that jump about their on-demand prices (0.21 and 0.175), at whole seconds."""
    series = {}
    for market in (C3, R3):
        gaps = draw(st.lists(st.integers(20, 4000), min_size=0, max_size=25))
        times = np.concatenate([[0], np.cumsum(gaps)])
        times = times[times < SPAN_S]
        prices = draw(
            st.lists(st.sampled_from([0.02, 0.05, 0.1, 0.2, 0.3]), min_size=len(times), max_size=len(times))
        )
        series[market] = PriceSeries(START_S + times.astype(float), np.array(prices))
    return PriceHistory(series, start_s=START_S, end_s=START_S + SPAN_S)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    save_s = draw(st.integers(1, 200))
    return Job(
        name="random",
        steps=draw(st.integers(10, 20_000)),
        # No whole number of steps a second: what is lost of a step under way counts, too.
        steps_per_hour={"c3.xlarge": 7000, "r3.large": 3333},
        checkpoint=Checkpointing(
            save_s=save_s,
            restore_s=draw(st.integers(0, 90)),
            interval_s=draw(st.none() | st.integers(save_s + 1, 3000)),
        ),
        machines=draw(st.integers(1, 3)),
        coupling=draw(st.sampled_from(list(Coupling))),
    )


def check(outcome: Outcome, prices: PriceHistory, billing: str) -> None:
    """What must hold of every run."""
    for progress in outcome.jobs:
        # Conservation: every step ever run is either in the end result or lost.
        done = progress.steps_saved if outcome.finished else progress.steps_done
        assert progress.steps_run == pytest.approx(done + progress.steps_lost, abs=1e-3)
        if outcome.finished:
            assert progress.steps_saved == progress.job.steps
    # The ledger equals a recount of each lease, second by second, from the preset's table.
    expected = 0.0
    for lease in outcome.leases:
        assert not lease.is_open
        if lease.is_charged:
            revoked = LeaseEnding.REVOKED if lease.state is LeaseState.REVOKED else LeaseEnding.RELEASED
            # Leases end at whole seconds only if all delays are whole; rates need not be.
            start, end = round(lease.started_s, 6), round(lease.ended_s, 6)
            if start == int(start):
                used = math.ceil(end - start)
                if used == end - start or revoked is LeaseEnding.RELEASED:
                    cost, _ = recount(billing, prices[lease.market], int(start), int(start) + used, revoked)
                    expected += cost
                    continue
            expected += outcome.ledger.usd_of(lease.lease_id)
    assert outcome.cost_usd == pytest.approx(expected, abs=1e-9)
    assert outcome.cost_usd == pytest.approx(math.fsum(line.usd for line in outcome.ledger.lines), abs=1e-9)
    assert outcome.revocations == sum(lease.state is LeaseState.REVOKED for lease in outcome.leases)
    # Time does not run back, and nothing happens after the end.
    moments = [moment.time_s for moment in outcome.timeline]
    assert moments == sorted(moments)
    assert all(lease.ended_s <= outcome.end_s + 1e-6 for lease in outcome.leases if lease.is_charged)


@settings(max_examples=150)
@given(
    markets(),
    jobs(),
    st.sampled_from(["ec2-second", "ec2-hourly", "gcp-preemptible", "azure-spot", "mithril-auction"]),
)
def test_steps_and_money_are_conserved(prices: PriceHistory, job: Job, billing: str) -> None:
    check(replay(Reactive(), [job], prices, billing), prices, billing)


@settings(max_examples=50)
@given(markets(), st.lists(jobs(), min_size=2, max_size=4))
def test_they_are_with_several_jobs_at_once(prices: PriceHistory, several: list[Job]) -> None:
    check(replay(Reactive(), several, prices), prices, "ec2-second")


@settings(max_examples=30)
@given(markets(), jobs())
def test_a_run_is_the_same_every_time(prices: PriceHistory, job: Job) -> None:
    one, other = (replay(Reactive(), [job], prices) for _ in range(2))
    assert one.ledger.lines == other.ledger.lines
    assert list(one.timeline) == list(other.timeline)


@settings(max_examples=150)
@given(
    prices=markets(),
    steps=st.integers(10, 15_000),
    save_s=st.integers(1, 150),
    restore_s=st.integers(1, 90),
)
def test_the_engine_agrees_with_a_simulation_second_by_second(
    prices: PriceHistory, steps: int, save_s: int, restore_s: int
) -> None:
    job = Job(
        name="tick",
        steps=steps,
        steps_per_hour={"c3.xlarge": 7200, "r3.large": 3600},
        checkpoint=Checkpointing(save_s=save_s, restore_s=restore_s),
    )
    outcome = replay(Reactive(), [job], prices)
    ticked = simulate(
        prices,
        {C3: 2.0, R3: 1.0},
        {C3: 0.21, R3: 0.175},
        steps,
        save_s=save_s,
        restore_s=restore_s,
        request_s=int(DELAY.request_s),
        boot_s=int(DELAY.boot_s),
        notice_s=int(PRESETS["ec2-second"].notice_s),
        retry_s=300,
        end=SPAN_S,
    )
    assert outcome.finished == (ticked.finished_at is not None)
    leases = [(str(lease.market), lease.state is LeaseState.REVOKED) for lease in outcome.leases]
    assert leases == [(str(machine.market), machine.revoked) for machine in ticked.machines]
    if ticked.finished_at is None:
        return
    # On two steps a second a job may be done half a second before the tick.
    assert outcome.makespan_s == pytest.approx(ticked.finished_at, abs=0.5)
    assert outcome.checkpoints == ticked.checkpoints
    assert outcome.steps_lost == pytest.approx(ticked.steps_lost, abs=1e-3)
    cost = sum(
        recount(
            "ec2-second",
            prices[machine.market],
            int(START_S) + machine.started,
            int(START_S) + machine.ended,
            LeaseEnding.REVOKED if machine.revoked else LeaseEnding.RELEASED,
        )[0]
        for machine in ticked.machines
        if machine.started is not None and machine.ended is not None
    )
    assert outcome.cost_usd == pytest.approx(cost, abs=1e-9)


@pytest.mark.real_traces
@pytest.mark.parametrize("start", ["2015-04-20T00:00:00Z", "2015-05-17T12:00:00Z", "2015-06-30T06:00:00Z"])
def test_on_real_prices_too(auction_2015: PriceHistory, one_day: Job, start: str) -> None:
    start_s = to_epoch_s(start)
    for policy in (*policies("cheapest-spot,fastest-spot,reactive"), Reactive(max_price_ratio=0.2)):
        for billing in ("ec2-second", "ec2-hourly"):
            outcome = replay(policy, [one_day], auction_2015, billing, start_s=start_s)
            assert outcome.finished
            check(outcome, auction_2015, billing)
