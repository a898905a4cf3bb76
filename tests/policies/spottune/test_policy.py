"""SpotTune on small markets worked out by hand, and what always holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.forecasts.revocation.forecasts import Foresight, Never, PastFrequency
from ebbtide.forecasts.revocation.minutes import minutes_of
from ebbtide.jobs.job import Job
from ebbtide.jobs.throughput import ThroughputModel
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.prices import PriceHistory
from ebbtide.policies.backoff import BacksOff
from ebbtide.policies.registry import policies
from ebbtide.policies.spottune.offers import StepCost
from ebbtide.policies.spottune.policy import ObservedStepTimes, SpotTune
from ebbtide.testing.scripted import replay

CALM = {C3: [(0, 0.36)], R3: [(0, 0.10)]}


def run(
    policy: SpotTune,
    jobs: list[Job],
    prices: PriceHistory,
    *,
    billing: str = "ec2-second",
    curves: Sequence[Curve] = (),
) -> Outcome:
    result = eb.backtest(jobs, [policy], prices, billing=billing, starts=[START_S + 86_400], seed=1, curves=curves)
    (outcome,) = result.outcomes[policy.name]
    return outcome


def sweep(ends: list[float], steps: int = 3600) -> tuple[list[Job], list[Curve]]:
    """Trials whose metrics fall alike, to these ends."""
    at = np.arange(1.0, 101.0)
    jobs = [job(steps).model_copy(update={"name": f"trial-{number}"}) for number in range(len(ends))]
    curves = [
        Curve("w", str(number), at * steps / 100, 1 / (0.1 * at + 0.3) - 1 / 10.3 + end, float(steps))
        for number, end in enumerate(ends)
    ]
    return jobs, curves


def flapping(low: float = 0.05, high: float = 0.5, hours: int = 100) -> list[tuple[float, float]]:
    """Cheap for forty-five minutes, expensive for five, and so on."""
    return [point for n in range(hours * 60 // 50) for point in ((n * 3000.0, low), (n * 3000.0 + 2700.0, high))]


def test_the_least_expected_step_cost_is_rented() -> None:
    """c3 takes one second a step at 0.36, r3 two at 0.10: a step on r3 costs less."""
    outcome = run(SpotTune(provisioner=StepCost(Never())), [job()], history(CALM))
    assert {lease.market for lease in outcome.leases[1:]} <= {R3}
    assert outcome.finished
    assert outcome.jobs[0].steps_saved == 3600


def test_the_max_price_is_the_price_and_delta() -> None:
    relative = run(SpotTune(provisioner=StepCost(Never(), delta=(0.01, 0.01))), [job(600)], history(CALM))
    assert relative.leases[0].max_price_usd_per_hour == pytest.approx(1.01 * CALM[relative.leases[0].market][0][1])
    published = run(SpotTune(provisioner=StepCost(Never(), delta=None)), [job(600)], history(CALM))
    lease = published.leases[0]
    assert 0.00001 <= lease.max_price_usd_per_hour - CALM[lease.market][0][1] <= 0.2


def test_who_foresees_revocations_trains_for_nothing() -> None:
    """A market that takes every machine within the hour: steps on it are free, but for the last lease's."""
    prices = history({C3: flapping(), R3: [(0, 0.10)]})
    minutes = minutes_of(prices)
    free = run(SpotTune(provisioner=StepCost(Foresight(minutes), doubt=0.1)), [job(36_000)], prices)
    blind = run(SpotTune(provisioner=StepCost(Never(), delta=(10.0, 10.0))), [job(36_000)], prices)
    assert free.finished
    assert free.refund_usd > 0
    assert free.cost_usd < 0.9 * blind.cost_usd
    by_frequency = run(
        SpotTune(provisioner=StepCost(PastFrequency(minutes, days=0.9), doubt=0.1)), [job(36_000)], prices
    )
    assert by_frequency.refund_usd > 0
    assert by_frequency.cost_usd < 0.9 * blind.cost_usd


def test_after_an_hour_a_machine_is_given_back_as_algorithm_1_has_it() -> None:
    outcome = run(SpotTune(provisioner=StepCost(Never()), stays=False), [job(7200)], history(CALM))
    held = [lease.ended_s - lease.started_s for lease in outcome.leases if lease.is_charged]
    assert len(held) > 2
    # Until it is saved, and no longer.
    assert max(held) <= 3600 + 120 + 10 + 1


def test_where_moving_gains_nothing_it_stays() -> None:
    outcome = run(SpotTune(provisioner=StepCost(Never())), [job(7200)], history({R3: [(0, 0.10)]}))
    assert len(outcome.leases) == 1


@pytest.mark.parametrize("billing", ["gcp-preemptible", "ec2-hourly"])
def test_without_refunds_it_is_no_dearer_than_cheapest_spot(billing: str) -> None:
    prices = history({C3: [(0, 0.36)], R3: [(0, 0.10)]})
    jobs, curves = sweep([0.1, 0.2])
    policies = [SpotTune(theta=1.0, name="spottune-full"), eb.policies.CheapestSpot()]
    result = eb.backtest(jobs, policies, prices, billing=billing, starts=[START_S + 86_400], curves=curves)
    ours, cheapest = (result.outcomes[policy.name][0].cost_usd for policy in policies)
    assert ours <= 1.03 * cheapest


def test_the_best_by_prediction_are_trained_on_and_the_others_end_at_theta() -> None:
    ends = [0.50, 0.20, 0.90, 0.30, 0.70, 0.25]
    jobs, curves = sweep(ends)
    outcome = run(SpotTune(theta=0.7, mcnt=3, provisioner=StepCost(Never())), jobs, history(CALM), curves=curves)
    assert outcome.finished
    whole = {number for number, found in enumerate(outcome.jobs) if found.steps_saved == 3600}
    assert whole == {1, 3, 5}
    for number, found in enumerate(outcome.jobs):
        if number not in whole:
            assert found.stopped
            assert 0.7 * 3600 <= found.steps_saved < 0.75 * 3600


def test_theta_1_and_few_trials_are_trained_to_the_end() -> None:
    jobs, curves = sweep([0.5, 0.2, 0.9, 0.3])
    whole = run(SpotTune(theta=1.0, provisioner=StepCost(Never())), jobs, history(CALM), curves=curves)
    assert all(found.steps_saved == 3600 for found in whole.jobs)
    few = run(SpotTune(theta=0.7, provisioner=StepCost(Never())), jobs[:2], history(CALM), curves=curves[:2])
    assert all(found.steps_saved == 3600 for found in few.jobs)


def test_a_trial_that_has_converged_or_diverged_is_ended() -> None:
    jobs, curves = sweep([0.5, 0.2, 0.9, 0.3])
    flat = np.where(np.arange(100) < 20, curves[0].metric, 0.7)
    broken = np.where(np.arange(100) < 33, curves[1].metric, math.nan)
    curves[0] = Curve("w", "0", curves[0].steps, flat, 3600.0)
    curves[1] = Curve("w", "1", curves[1].steps, broken, 3600.0)
    outcome = run(SpotTune(theta=1.0, provisioner=StepCost(Never())), jobs, history(CALM), curves=curves)
    assert outcome.jobs[0].stopped
    assert outcome.jobs[1].stopped
    assert outcome.jobs[0].steps_saved <= 0.45 * 3600
    assert outcome.jobs[1].steps_saved <= 0.45 * 3600
    assert all(found.steps_saved == 3600 for found in outcome.jobs[2:])


@pytest.mark.parametrize("seed", range(4))
def test_every_step_is_run_once_in_the_winning_history(seed: int) -> None:
    """Steps run are those saved and those lost; the parts on each machine add up to them; the ledger is the sum."""
    prices = eb.generate_prices(days=14, seed=seed, kind="auction")
    minutes = minutes_of(prices)
    jobs, curves = sweep([0.5, 0.2, 0.9, 0.3, 0.6], steps=7200)
    policy = SpotTune(theta=0.7, provisioner=StepCost(PastFrequency(minutes)))
    result = eb.backtest(jobs, [policy], prices, starts=3, seed=seed, curves=curves)
    for outcome in result.outcomes["spottune"]:
        assert outcome.finished
        for found in outcome.jobs:
            assert found.steps_run == pytest.approx(found.steps_saved + found.steps_lost, abs=1e-4)
            assert sum(found.steps_on.values()) == pytest.approx(found.steps_run, abs=1e-4)
        recount = math.fsum(outcome.ledger.usd_of(lease.lease_id) for lease in outcome.leases)
        assert outcome.cost_usd == pytest.approx(recount)
        assert outcome.cost_usd == pytest.approx(math.fsum(line.usd for line in outcome.ledger.lines))


def test_it_is_found_by_name() -> None:
    names = [policy.name for policy in policies("spottune,spottune-full,spottune-bid")]
    assert names == ["spottune", "spottune-full", "spottune-bid"]
    assert eb.policies.SpotTune is SpotTune


class Fleet:
    """Two types for `ObservedStepTimes`: eight cores and two."""

    markets = (C3, R3)

    def machine(self, market: eb.Market):  # type: ignore[no-untyped-def]
        return eb.default_catalogue().instance_type("aws", market.instance_type)


def test_step_times_begin_with_cores_and_carry_over_between_trials() -> None:
    """Before anything is seen: the model of `ThroughputModel`, from cores and clock."""
    view, first, second = Fleet(), *(type("P", (), {"job_id": number})() for number in range(2))
    times = ObservedStepTimes({}, parallel=1.0)
    model = ThroughputModel(1.0, 1.0)
    modelled = [model.seconds_per_step(view.machine(market)) for market in (C3, R3)]
    assert modelled[1] > 2 * modelled[0]
    assert times.of_all(view, first, [C3, R3]) == pytest.approx(modelled)  # type: ignore[arg-type]
    # One trial has seen that r3.large is three times as slow; another, only itself on c3.xlarge.
    times = ObservedStepTimes({"0": {"c3.xlarge": 10.0, "r3.large": 30.0}, "1": {"c3.xlarge": 4.0}})
    assert times.of_all(view, first, [C3, R3]) == pytest.approx([10.0, 30.0])  # type: ignore[arg-type]
    assert times.of_all(view, second, [C3, R3]) == pytest.approx([4.0, 12.0])  # type: ignore[arg-type]


def test_a_metric_to_be_maximised_and_trials_that_tell_none() -> None:
    jobs, curves = sweep([0.50, 0.20, 0.90, 0.30, 0.70, 0.25])
    higher = [Curve(curve.workload, curve.name, curve.steps, -curve.metric, curve.max_steps) for curve in curves]
    outcome = run(SpotTune(mcnt=2, maximise=True), jobs, history(CALM), curves=higher)
    assert {n for n, found in enumerate(outcome.jobs) if found.steps_saved == 3600} == {1, 5}
    silent = run(SpotTune(mcnt=2), jobs, history(CALM))
    assert all(found.steps_saved == 3600 for found in silent.jobs)


@pytest.mark.long
@pytest.mark.real_traces
@pytest.mark.parametrize("billing", ["ec2-second", "gcp-preemptible"])
@pytest.mark.parametrize("name", ["spottune-full", "spottune-bid"])
def test_where_revocations_are_rare_it_does_not_lose_to_cheapest_spot(
    name: str, billing: str, traces: Path
) -> None:
    """Prices of 2020 move once a day at most; with `gcp-preemptible` nothing is refunded either."""
    prices = eb.PriceHistory.read(traces / "ec2-gpu-2020.parquet")
    work = eb.Job(name="w", steps=4_000, steps_per_hour={"p2.xlarge": 100.0, "p3.2xlarge": 300.0})
    found = eb.backtest(
        work, [eb.policy(name), eb.policies.CheapestSpot()], prices, billing=billing, starts=2, seed=1
    )
    ours, cheapest = (np.mean([out.cost_usd for out in outcomes]) for outcomes in found.outcomes.values())
    assert ours <= 1.03 * cheapest


def test_a_machine_stays_while_its_market_is_hidden_since_it_refused_another() -> None:
    """One machine is there for two trials: the refusals of the second hide the market in which the first trains."""
    one = CapacitySeries(np.array([START_S]), np.array([1]), START_S + 100 * 3600.0)
    prices = history({C3: [(0, 0.04)], R3: [(0, 0.06)]}, hours=100.0)
    trials = [job(40 * 3600).model_copy(update={"name": f"t{n}"}) for n in range(3)]
    available = Availability({C3: one})
    outcome = replay(BacksOff(eb.policy("spottune")), trials, prices, availability=available)
    assert outcome.finished
    assert outcome.steps_lost == pytest.approx(0.0, abs=1.0)
