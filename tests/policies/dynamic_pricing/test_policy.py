"""Dynamic Pricing on the engine: allocations that machines follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.controller.kinds.measured_speed import MeasuredSpeeds
from ebbtide.engine.engine import Engine
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import JobList, ListedJob
from ebbtide.jobs.one_training import sweep_of
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.backoff import BacksOff
from ebbtide.policies.dynamic_pricing.policy import DynamicPricing, Goal
from ebbtide.policies.for_job import policy_for
from ebbtide.replay.replay import ReplayProvider
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.scenario import Scenario
from ebbtide.testing import replay

DAY = 86_400.0
CALM = history({C3: [(0, 0.20)], R3: [(0, 0.12)]})


def named(name: str, **rates: float) -> eb.Job:
    """A job of 7,200 steps with these rates an hour."""
    kinds = {"c3": "c3.xlarge", "r3": "r3.large"}
    return job(7200).model_copy(update={"name": name, "steps_per_hour": {kinds[k]: v for k, v in rates.items()}})


def run(policy: DynamicPricing, jobs: list[eb.Job], prices: eb.PriceHistory = CALM) -> Outcome:
    result = eb.backtest(jobs, [policy], prices, billing="gcp-spot", starts=[START_S + DAY], seed=1)
    (outcome,) = result.outcomes[policy.name]
    return outcome


def kinds_of(outcome: Outcome, job_id: int) -> set[str]:
    steps_on = outcome.jobs[job_id].steps_on
    return {outcome.leases[lease].market.instance_type for lease, steps in steps_on.items() if steps > 0}


def test_each_job_goes_where_its_steps_cost_least() -> None:
    """c3 is 1.7 times as dear: worth it for who is twice as fast there, not for who is half as fast again."""
    jobs = [named("a", c3=3600, r3=1800), named("b", c3=2700, r3=1800)]
    outcome = run(DynamicPricing(Goal.COST), jobs)
    assert outcome.finished
    assert [kinds_of(outcome, number) for number in range(2)] == [{"c3.xlarge"}, {"r3.large"}]
    fast = run(DynamicPricing(Goal.THROUGHPUT), jobs)
    assert all(kinds_of(fast, number) == {"c3.xlarge"} for number in range(2))
    assert fast.makespan_s < outcome.makespan_s


def test_where_its_type_is_refused_everywhere_a_job_takes_another_at_once() -> None:
    """A live run hides markets that have just refused; a round may last for hours."""
    none = eb.types.Availability({R3: PriceSeries(np.array([START_S]), np.array([0.0]))})
    policy = BacksOff(DynamicPricing(Goal.COST))
    outcome = replay(policy, [named("a", c3=2700, r3=1800)], CALM, "gcp-spot", availability=none)
    assert outcome.finished
    refused, given = outcome.leases
    assert (refused.market, given.market) == (R3, C3)
    assert given.requested_s - refused.requested_s <= 60.0


def test_an_slo_takes_the_faster_machine() -> None:
    jobs = [named("b", c3=2700, r3=1800)]
    soon = run(DynamicPricing(Goal.COST, slo_h={"b": 3.0}, round_s=600.0), jobs)
    assert soon.makespan_s <= 3 * 3600 + 600
    assert "c3.xlarge" in kinds_of(soon, 0)
    with pytest.raises(InputError, match=r"SLO of b: 7200 steps in 0\.9\d* h"):
        run(DynamicPricing(Goal.COST, slo_h={"b": 1.0}), jobs)


def test_under_a_quota_jobs_take_turns_and_the_makespan_is_near_the_best() -> None:
    """One c3: two jobs that are twice as fast there share it; r3 does the rest."""
    jobs = [named("a", c3=3600, r3=1800), named("b", c3=3600, r3=1800)]
    policy = DynamicPricing(Goal.MAKESPAN, quotas={"c3.xlarge": 1, "r3.large": 1}, round_s=1200.0)
    outcome = run(policy, jobs)
    assert outcome.finished
    # 5,400 steps an hour in all for 14,400 steps; moving and the last round cost some.
    assert outcome.makespan_s == pytest.approx(14_400 / 5_400 * 3600, rel=0.25)
    assert all(kinds_of(outcome, number) == {"c3.xlarge", "r3.large"} for number in range(2))
    assert outcome.steps_lost == 0


@pytest.mark.parametrize(
    ("changes_s", "prices", "moves_s"),
    [
        (1800, (0.12, 0.05), 1800),  # by more than a tenth: at once
        (200, (0.12, 0.05), 600),  # but not before the round is ten minutes old
        (1800, (0.104, 0.094), 3600),  # by less: at the next round
    ],
)
def test_when_prices_change_jobs_follow(changes_s: float, prices: tuple[float, float], moves_s: float) -> None:
    before, after = prices
    record = history({C3: [(0, 0.20)], R3: [(0, before), (DAY + changes_s, after)]})
    outcome = run(DynamicPricing(Goal.COST, round_s=3600.0), [named("a", c3=3600, r3=1800)], record)
    assert [lease.market for lease in outcome.leases] == [C3, R3]
    assert outcome.leases[1].requested_s == pytest.approx(START_S + DAY + moves_s, abs=1.0)


def test_a_move_that_saves_less_than_it_costs_is_not_made() -> None:
    record = history({C3: [(0, 0.20)], R3: [(0, 0.101), (DAY + 1800, 0.099)]})
    outcome = run(DynamicPricing(Goal.COST, round_s=3600.0), [named("a", c3=3600, r3=1800)], record)
    # An hour is left: 0.2 USD here, 0.198 there, and a start of two minutes and a restore there besides.
    assert [lease.market for lease in outcome.leases] == [C3]
    # To a cheaper market of the same type as well.
    other = eb.Market("aws", "us-east-1", "us-east-1c", "c3.xlarge")
    for cheaper, markets in ((0.199, [C3]), (0.15, [C3, other])):
        record = history({C3: [(0, 0.20)], other: [(0, 0.25), (DAY + 1800, cheaper)]})
        outcome = run(DynamicPricing(Goal.COST, round_s=3600.0), [named("a", c3=3600)], record)
        assert [lease.market for lease in outcome.leases] == markets, cheaper


@pytest.mark.parametrize("goal", list(Goal))
def test_on_generated_prices_all_is_done_and_every_step_accounted_for(goal: Goal) -> None:
    prices = eb.generate_prices(days=8, seed=2, kind="auction")
    jobs = [eb.Job(name=f"j{n}", steps=6_000, other_steps_per_hour_per_vcpu=100.0 * (n + 1)) for n in range(4)]
    policy = DynamicPricing(goal, quotas={"c3.xlarge": 2})
    (result,) = eb.backtest(jobs, [policy], prices, starts=1, seed=1).outcomes.values()
    (outcome,) = result
    assert outcome.finished
    for found in outcome.jobs:
        assert found.steps_run == pytest.approx(found.steps_saved + found.steps_lost, abs=1e-3)
    assert outcome.cost_usd == pytest.approx(math.fsum(line.usd for line in outcome.ledger.lines))


@pytest.mark.real_traces
def test_on_prices_of_2020_it_is_not_dearer_than_the_cheapest_by_the_step(traces: Path) -> None:
    prices = eb.PriceHistory.read(traces / "ec2-gpu-2020.parquet")
    work = eb.Job(name="w", steps=10_000, steps_per_hour={"p2.xlarge": 100.0, "p3.2xlarge": 330.0})
    policies = [DynamicPricing(Goal.COST), eb.policies.Reactive()]
    found = eb.backtest(work, policies, prices, starts=3, seed=1).outcomes
    ours, reactive = (sum(outcome.cost_usd for outcome in found[policy.name]) for policy in policies)
    assert ours <= 1.02 * reactive


def test_a_job_that_goes_to_another_cloud_pays_for_its_checkpoint_and_once_for_its_dataset() -> None:
    aws, azure = (
        eb.Market("aws", "us-east-1", "us-east-1a", "p2.xlarge"),
        eb.Market("azure", "us-east", "us-east", "NC6"),
    )
    swing = [(n * 86_400.0, 0.3 if n % 2 else 0.1) for n in range(6)]
    prices = history({aws: swing, azure: [(0, 0.2)]}, hours=150)
    work = eb.Job(
        name="g",
        steps=80,
        steps_per_hour={"p2.xlarge": 1.0, "NC6": 1.0},
        checkpoint={"size_bytes": 2**30},
        dataset={"size_bytes": 10 * 2**30, "cloud": "aws", "region": "us-east-1"},
    )  # type: ignore[arg-type]
    policy = eb.policies.DynamicPricing()
    (outcome,) = eb.backtest(work, [policy], prices, starts=[prices.start_s]).outcomes[policy.name]
    assert outcome.finished
    clouds = [lease.market.cloud for lease in outcome.leases]
    assert clouds[:4] == ["aws", "azure", "aws", "azure"]
    # The dataset and a checkpoint to Azure, a checkpoint back, another there.
    assert outcome.egress_usd == pytest.approx(10 * 0.09 + 0.09 + 0.087 + 0.09)


def test_jobs_that_share_machines_by_rounds_rent_no_others() -> None:
    jobs = [named("a", c3=3600, r3=1800), named("b", c3=3600, r3=1800)]
    policy = DynamicPricing(Goal.MAKESPAN, quotas={"c3.xlarge": 1, "r3.large": 1}, round_s=1200.0)
    outcome = run(policy, jobs)
    # They change places five times or so, and nothing boots for it.
    assert sorted(lease.market.instance_type for lease in outcome.leases) == ["c3.xlarge", "r3.large"]
    assert all(found.restores >= 3 for found in outcome.jobs)
    # One after the other on one machine.
    queue = [named(name, r3=3600) for name in "abcd"]
    after = run(DynamicPricing(Goal.COST, quotas={"r3.large": 1}, round_s=3600.0), queue)
    assert len(after.leases) == 1
    assert after.finished
    # A second job begins on a machine when the first has been saved: none trains beside another.
    assert after.makespan_s >= 4 * 2 * 3600.0


class Measuring(ReplayProvider):
    """A replay whose speeds are other ones than declared, and are measured once a job was seen on a type."""

    def __init__(self, market: ReplayedMarket, truth: dict[str, float]) -> None:
        super().__init__(market)
        self._truth, self._measured = truth, MeasuredSpeeds()

    def start(self, jobs: Sequence[JobProgress], *, watch_prices: bool) -> None:
        super().start(jobs, watch_prices=watch_prices)
        for training in self._training:
            training._rate = lambda lease: self._truth[lease.market.instance_type] / 3600.0

    def _measure(self) -> None:
        for job_id, training in enumerate(self._training):
            for number in training.progress.steps_on:
                kind = self._leases[number].market.instance_type
                if self._measured.measured(job_id, kind) is None:
                    self._measured.add(job_id, kind, 1000, 1000 / self._truth[kind] * 3600.0)

    def measured_steps_per_s(self, job_id: int, market: eb.Market) -> float | None:
        self._measure()
        return self._measured.measured(job_id, market.instance_type)

    def steps_per_s(self, job_id: int, market: eb.Market, declared: float) -> float:
        self._measure()
        return self._measured.steps_per_s(job_id, market.instance_type, declared)


def measured_run(policy: DynamicPricing, jobs: list[eb.Job], truth: dict[str, float]) -> Outcome:
    rule = eb.billing_preset("gcp-spot")
    provider = Measuring(ReplayedMarket(CALM, START_S + DAY, rule), truth)
    return Engine(policy, jobs, provider, rule).run()


def test_rates_are_timed_before_jobs_are_allocated() -> None:
    """c3 is declared to be as fast as r3, and is five times as fast: 1.7 times as dear, it is worth it."""
    truth = {"c3.xlarge": 9000.0, "r3.large": 1800.0}
    jobs = [named(f"trial-{number}", c3=1800, r3=1800) for number in range(3)]
    believed = measured_run(DynamicPricing(Goal.COST), jobs, truth)
    assert {lease.market for lease in believed.leases} == {R3}
    timed = measured_run(DynamicPricing(Goal.COST, timing_s=300.0), jobs, truth)
    assert timed.finished
    # Two trials are timed, each on a type, and the third trains meanwhile; then all go where their steps cost least.
    first = [lease.market for lease in timed.leases if lease.requested_s == START_S + DAY]
    assert first == [C3, R3, R3]
    assert all(max(found.steps_on, key=lambda one: found.steps_on[one]) in _on(timed, C3) for found in timed.jobs)
    assert timed.cost_usd < believed.cost_usd
    # What a replay knows is not timed.
    assert run(DynamicPricing(Goal.COST, timing_s=300.0), jobs).cost_usd == run(DynamicPricing(), jobs).cost_usd


def _on(outcome: Outcome, market: eb.Market) -> set[int]:
    return {lease.lease_id for lease in outcome.leases if lease.market == market}


def test_quotas_hold_for_all_jobs_of_a_list(caplog: pytest.LogCaptureFixture) -> None:
    """Jobs that begin later have a policy of their own, and the machines of the run in common."""
    work = JobList(
        name="list",
        listed=(
            *(ListedJob(work=sweep_of(named(name, r3=3600).model_copy(update={"command": "x"}))) for name in "ab"),
            ListedJob(
                work=sweep_of(named("c", r3=3600).model_copy(update={"command": "x", "deadline_h": 4.5})),
                needs=("a",),
            ),
        ),
    )
    policy = policy_for(work, "dynamic-pricing-cost", parameters={"quotas": {"r3.large": 1}, "round_s": 3600.0})
    outcome = Scenario(work.jobs(), CALM, eb.billing_preset("gcp-spot")).run(policy, START_S + DAY)
    assert outcome.finished
    ends = sorted(
        (time_s, change)
        for lease in outcome.leases
        for time_s, change in ((lease.requested_s, 1), (lease.ended_s, -1))
    )
    rented, most = 0, 0
    for _, change in ends:
        rented += change
        most = max(most, rented)
    assert most == 1
    # Six hours of work on one machine: its SLO cannot be kept, which is said.
    assert "SLOs that cannot be kept any more: c; done as soon as they can" in caplog.text


def test_jobs_that_are_not_timed_go_on_and_a_timing_is_not_cut_short() -> None:
    truth = {"c3.xlarge": 9000.0, "r3.large": 1800.0}
    names = ("resnet-18", "resnet-50", "short")
    jobs = [named(name, c3=1800, r3=1800) for name in names]
    jobs[2] = jobs[2].model_copy(update={"steps": 60, "steps_per_hour": {"r3.large": 1800.0}})
    outcome = measured_run(DynamicPricing(Goal.COST, timing_s=900.0), jobs, truth)
    assert outcome.finished
    kinds = [kinds_of(outcome, number) for number in range(3)]
    # Networks of different sizes are different programs: each is timed on both types, though a job ends meanwhile.
    assert kinds == [{"c3.xlarge", "r3.large"}, {"c3.xlarge", "r3.large"}, {"r3.large"}]
    assert outcome.jobs[2].finished_s < START_S + DAY + 900.0
    for number in range(2):
        on = outcome.jobs[number].steps_on
        assert max(on, key=lambda lease: on[lease]) in _on(outcome, C3)


@pytest.mark.parametrize("goal", list(Goal))
def test_a_job_may_stay_on_a_type_that_gives_no_other_machine(goal: Goal) -> None:
    """One c3 machine, for jobs that all run best there: who asks for another is refused, and the type is hidden."""
    times_s = START_S + DAY + 3600.0 * np.array([-1.0, 0.5])
    one = CapacitySeries(times_s, np.array([1, 1]), START_S + 100 * 3600.0)
    jobs = [named(name, c3=3600, r3=1200) for name in "abc"]
    scenario = Scenario(tuple(jobs), CALM, eb.billing_preset("gcp-spot"), Availability({C3: one}))
    outcome = scenario.run(BacksOff(DynamicPricing(goal, round_s=1800.0)), START_S + DAY)
    assert outcome.finished
    assert any("c3.xlarge" in kinds_of(outcome, number) for number in range(3))
