"""Each registered policy decides in a live run as in a replay of the same tape, and differences are found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from tests.harness.parity.memory_store import MemoryStore
from tests.harness.parity.parity import Parity, RunLive, compare, compare_all, report_of
from tests.harness.parity.tape_cloud import run_live
from tests.harness.parity.tapes import BILLINGS, Tape, scenario_of, scenario_with, small_bundle, tapes

import ebbtide as eb
from ebbtide.engine.outcome import Outcome
from ebbtide.jobs.transfers import Bucket
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.registry import POLICIES
from ebbtide.policies.spottune.policy import SpotTune
from ebbtide.replay.scenario import Scenario
from ebbtide.testing.contracts.stores import ObjectStoreContract

_tapes = cache(tapes)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> eb.types.ModelBundle:
    return small_bundle(_tapes()[0].known, tmp_path_factory.mktemp("bundle") / "models")


class TestMemoryStore(ObjectStoreContract):
    def make_store(self, folder: Path) -> MemoryStore:  # noqa: ARG002
        return MemoryStore()


@pytest.mark.long
def test_each_policy_decides_live_as_in_replay(models: eb.types.ModelBundle) -> None:
    """Each policy runs on one tape; `make parity` runs each on all."""
    on = [
        (name, _tapes()[0 if name.startswith("spottune") else number % 3], BILLINGS[number % 2])
        for number, name in enumerate(POLICIES)
    ]
    found = compare_all(models, on)
    assert [str(each.differences[0]) for each in found if each.differences] == []
    report = report_of(found)
    assert report["policies"] == list(POLICIES)
    assert report["differing_decisions"] == report["ledger_difference_usd"] == 0
    assert report["decisions"] == sum(each.decisions for each in found) > 500
    assert all(each.finished for each in found)
    assert sum(each.revocations for each in found) > 5


def test_spottune_selects_the_same_trials(models: eb.types.ModelBundle) -> None:
    tape = _tapes()[1]
    scenario = scenario_of("spottune", tape, "ec2-second")
    made = eb.policy("spottune", models)
    assert isinstance(made, SpotTune)
    made = replace(made, mcnt=1)
    replayed, lived = scenario.run(made, tape.start_s), run_live(scenario, made, tape.start_s)
    stopped = [job.stopped for job in replayed.jobs]
    assert [job.stopped for job in lived.jobs] == stopped
    # Trials were stopped at theta, except for the best one.
    assert stopped == [False, True, True, True]


@dataclass(frozen=True)
class Everything:
    """Subscribes to all events, saves at each third price, and changes the machine when a period ends."""

    period_lead_s: float = 90.0
    name: str = "everything"
    wakes_on: frozenset[eb.policies.Wake] = frozenset(
        {eb.policies.Wake.PRICE, eb.policies.Wake.PERIOD_END, eb.policies.Wake.REBALANCE}
    )

    def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
        (job,) = view.jobs
        for event in view.events:
            if event.wake is eb.policies.Wake.PRICE:
                view.memory["prices"] = view.memory.get("prices", 0) + 1
                if view.memory["prices"] % 30 == 0:
                    yield eb.policies.Save(job.job_id)
            elif event.wake is eb.policies.Wake.PERIOD_END:
                view.memory["ends"] = view.memory.get("ends", 0) + 1
                # Wake-ups at a step that is done already, twice, and at a future step.
                per_cent = min(int(100.0 * job.steps_done / job.job.steps) + 2, 100)
                for step in (1, 1, job.job.steps * per_cent // 100):
                    yield eb.policies.WakeAtStep(job.job_id, step)
                if view.memory["ends"] % 2:
                    yield eb.policies.Release(event.lease_id)
        steady = [lease for lease in view.leases_of(job.job_id) if lease.revoke_at_s == float("inf")]
        if not job.is_finished and not steady:
            markets = [market for market in view.markets if view.steps_per_s(job.job, market) > 0]
            cheap = sorted(markets, key=lambda market: (view.price(market), market))
            yield eb.policies.Request(cheap[len(view.memory) % 2], 2.0 * view.price(cheap[-1]), job=0)


@pytest.mark.long
@pytest.mark.parametrize("billing", BILLINGS)
def test_every_wake_comes_live_as_in_replay(billing: str) -> None:
    tape = _tapes()[1]
    scenario = scenario_of("reactive", tape, billing)
    if billing == "ec2-second":
        scenario = replace(scenario, billing=replace(scenario.billing, period_s=600.0))
    found = compare("everything", scenario, tape.name, tape.start_s, Everything())
    assert [str(each) for each in found.differences[:1]] == []
    assert not found.ledger_difference_usd
    assert found.finished
    assert found.decisions > 300


@pytest.mark.parametrize("name", ["deepspotcloud-migrate", "deepspotcloud-best-price", "reactive", "deadline"])
def test_what_goes_through_a_bucket_is_charged_live_as_in_replay(name: str, models: eb.types.ModelBundle) -> None:
    """The tape's markets are in the east and the west of the US; the bucket is in one of them."""
    tape = _tapes()[1]
    scenario = scenario_of(name, tape, BILLINGS[1])
    (job,) = scenario.jobs
    assert job.checkpoint is not None
    checkpoint = job.checkpoint.model_copy(update={"interval_s": 1217.0 if name == "reactive" else None})
    for region in ("us-west-2", "us-east-1"):
        bucket = Bucket(cloud="aws", region=region)
        with_bucket = replace(
            scenario, jobs=(job.model_copy(update={"bucket": bucket, "checkpoint": checkpoint}),)
        )
        made = eb.policy(name, models)
        found = compare(name, with_bucket, tape.name, tape.start_s, made)
        assert [str(each) for each in found.differences[:1]] == []
        assert not found.ledger_difference_usd
        assert found.finished
        outcome = with_bucket.run(made, tape.start_s)
        moved = {(move.source.region, move.destination.region) for move in outcome.jobs[0].transfers}
        assert outcome.egress_usd > 0 or not moved


def _live_without_prices(scenario: Scenario, policy: Policy, start_s: float) -> Outcome:
    """Make a live run that gets no price events."""

    class Deaf:
        name, wakes_on, decide = policy.name, policy.wakes_on - {eb.policies.Wake.PRICE}, policy.decide

    return run_live(scenario, Deaf(), start_s)


def test_a_live_run_that_misses_prices_is_found() -> None:
    found = _one("dynamic-pricing-cost", _tapes()[1], live=_live_without_prices)
    assert found.differences
    first = found.differences[0]
    assert "price" in str(first.replayed)
    assert "decision" in str(first)
    assert report_of([found])["differing_decisions"] == len(found.differences)


def test_a_policy_that_knows_where_it_runs_is_found() -> None:
    """The policy decides differently in its second run, as if it read its own clock."""
    asked: list[float] = []

    @dataclass(frozen=True)
    class Forgetful:
        name: str = "forgetful"
        wakes_on: frozenset[eb.policies.Wake] = frozenset()

        def decide(self, view: eb.policies.View) -> Iterable[eb.policies.Action]:
            asked.append(view.now_s)
            yield from eb.policies.Reactive().decide(view)
            if len(asked) == 1:
                yield eb.policies.WakeAt(view.now_s + 60.0)

    tape = _tapes()[0]
    found = compare("forgetful", scenario_of("reactive", tape, BILLINGS[0]), "calm", tape.start_s, Forgetful())
    assert found.differences[0].number == 0
    assert not found.is_same


def _one(name: str, tape: Tape, live: RunLive) -> Parity:
    scenario = scenario_of(name, tape, BILLINGS[0])
    return compare(name, scenario, tape.name, tape.start_s, eb.policy(name), live)


@pytest.mark.parametrize("goal", ["cost", "makespan", "throughput"])
def test_machines_that_change_hands_by_rounds_are_the_same_live(goal: str) -> None:
    tape = _tapes()[1]
    jobs = scenario_of("dynamic-pricing-cost", tape, BILLINGS[0]).jobs
    kinds = {kind for job in jobs for kind in job.steps_per_hour} or {
        market.instance_type for market in tape.prices
    }
    limits = dict.fromkeys(sorted(kinds), 1)
    made = eb.policy(f"dynamic-pricing-{goal}", parameters={"quotas": limits, "round_s": 3600.0})
    found = compare("rounds", scenario_with(jobs, tape, BILLINGS[0]), tape.name, tape.start_s, made)
    assert found.finished
    assert found.differences == ()
    assert found.ledger_difference_usd == 0.0
