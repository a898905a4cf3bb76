"""Groups of jobs in order, each with a policy of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from ebbtide.errors import InputError
from ebbtide.jobs.asked_policy import AskedPolicy
from ebbtide.jobs.job import Job
from ebbtide.jobs.job_list import JobList, ListedJob
from ebbtide.jobs.one_training import sweep_of
from ebbtide.market.billing import billing_preset
from ebbtide.market.generator import generate_auction_prices
from ebbtide.policies.api.actions import Action, Request, Stop, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View
from ebbtide.policies.baselines import OnDemand, Reactive
from ebbtide.policies.deadline.policy import Deadline
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.for_job import policy_for, within_budget
from ebbtide.policies.job_order import InOrder, JobGroup
from ebbtide.policies.registry import DEFAULT, POLICIES
from ebbtide.replay.scenario import Scenario

PRICES = generate_auction_prices(days=20, seed=4)
START_S = PRICES.start_s + 6 * 86_400.0
BILLING = billing_preset("ec2-second")


def job(name: str, steps: int = 400, **fields: object) -> Job:
    rates = {"c3.xlarge": 400, "m3.medium": 150}
    return Job(name=name, command="python x.py", steps=steps, steps_per_hour=rates, **fields)


def listed(*jobs: tuple[Job, tuple[str, ...]], **fields: object) -> JobList:
    return JobList(
        name="list",
        listed=tuple(ListedJob(work=sweep_of(each), needs=needs) for each, needs in jobs),
        **fields,
    )


CHAIN = listed((job("a"), ()), (job("b"), ("a",)), (job("c"), ("b",)), (job("side", 2000), ()))


@dataclass
class Watching:
    """Rents the first market for each job, and notes what it is shown."""

    name: str = "watching"
    wakes_on: frozenset[Wake] = frozenset()
    shown: list[tuple[list[str], list[int], list[Wake]]] = field(default_factory=list)

    def decide(self, view: View) -> Iterable[Action]:
        names = [each.job.name for each in view.jobs]
        assert [each.job_id for each in view.jobs] == list(range(len(view.jobs)))
        assert all(lease in view.leases for each in view.jobs for lease in view.leases_of(each.job_id))
        self.shown.append((names, [event.job_id for event in view.events], [each.wake for each in view.events]))
        for each in view.jobs:
            if not each.is_finished and not view.leases_of(each.job_id):
                yield Request(view.markets[0], 10.0, job=each.job_id)
        yield WakeAt(view.now_s + 600.0)


def test_each_begins_once_what_it_needs_is_done() -> None:
    watching = Watching()
    policy = within_budget(CHAIN, watching)
    outcome = Scenario(CHAIN.jobs(), PRICES, BILLING).run(policy, START_S, record=True)
    assert outcome.finished
    first, second, third, side = outcome.jobs
    requested = {
        moment.detail: moment.time_s for moment in outcome.timeline if moment.what in ("requested", "finished")
    }
    assert requested
    began = [outcome.leases[min(each.steps_on)].requested_s for each in outcome.jobs]
    assert began[0] == began[3] == START_S
    assert began[1] == pytest.approx(first.finished_s)
    assert began[2] == pytest.approx(second.finished_s)
    assert side.finished_s > third.finished_s
    # Side by side where nothing is needed: one policy for both; each other group has a policy of its own.
    assert {tuple(names) for names, _, _ in watching.shown} == {("a", "side"), ("b",), ("c",)}
    # Each is told its own jobs' events, by its own numbers, and begins with a start.
    starts = [names for names, _, wakes in watching.shown if Wake.START in wakes]
    assert starts == [["a", "side"], ["b"], ["c"]]
    assert all(job_id < len(names) for names, ids, _ in watching.shown for job_id in ids)


@pytest.mark.parametrize("name", [*POLICIES, DEFAULT])
def test_every_policy_ends_a_list(name: str) -> None:
    work = listed((job("a"), ()), (job("b"), ("a",)), deadline_h=60.0)
    if name == "dba":
        work = work.model_copy(update={"deadline_h": 200.0})
    outcome = Scenario(work.jobs(), PRICES, BILLING, seed=1).run(policy_for(work, name), START_S)
    assert outcome.finished, name
    first, second = outcome.jobs
    began = min(outcome.leases[number].requested_s for number in second.steps_on)
    assert began >= first.finished_s - 1e-6
    assert all(not lease.is_open for lease in outcome.leases)


def test_those_that_need_a_failed_job_are_not_begun() -> None:
    @dataclass(frozen=True)
    class StopsAll:
        name: str = "stops-all"
        wakes_on: frozenset[Wake] = frozenset()

        def decide(self, view: View) -> Iterable[Action]:
            yield from (Stop(each.job_id) for each in view.jobs if not each.is_finished)

    groups = (
        JobGroup("a", StopsAll(), (0,)),
        JobGroup("b", Reactive(), (1,), ((0,),)),
        JobGroup("c", Reactive(), (2,), ((1,),)),
        JobGroup("d", Reactive(), (3,)),
    )
    jobs = tuple(job(name) for name in "abcd")
    outcome = Scenario(jobs, PRICES, BILLING).run(InOrder(groups, "mine"), START_S)
    assert [each.stopped for each in outcome.jobs] == [True, True, True, False]
    assert [each.steps_run for each in outcome.jobs[:3]] == [0.0, 0.0, 0.0]
    assert outcome.jobs[3].steps_saved == 400
    assert outcome.finished


def test_a_deadline_counts_from_the_start_of_the_run() -> None:
    # Each takes an hour at the least; the second has its 12 h from the start of the run.
    work = listed((job("a"), ()), (job("b"), ("a",)), deadline_h=12.0)
    policy = policy_for(work, "deadline")
    assert isinstance(policy, InOrder)
    assert [group.policy.deadline_s for group in policy.groups] == [11 * 3600.0, 12 * 3600.0]  # type: ignore[attr-defined]
    outcome = Scenario(work.jobs(), PRICES, BILLING).run(policy, START_S)
    assert outcome.end_s <= START_S + 12 * 3600.0


def test_a_job_that_begins_too_late_for_its_policy_runs_on_demand(caplog: pytest.LogCaptureFixture) -> None:
    slow = Reactive(max_price_ratio=1.0)
    groups = (
        JobGroup("a", slow, (0,)),
        JobGroup("b", Deadline(deadline_s=1.5 * 3600.0), (1,), ((0,),)),
    )
    jobs = (job("a", 800), job("b"))
    outcome = Scenario(jobs, PRICES, BILLING).run(InOrder(groups, "mine"), START_S)
    assert outcome.finished
    assert [outcome.leases[number].on_demand for number in outcome.jobs[1].steps_on] == [True]
    assert "b runs on demand: policy deadline refuses it: job b cannot be done in" in caplog.text
    # At the start of the run it is refused, as it is alone.
    with pytest.raises(InputError, match="cannot be done"):
        early = (JobGroup("b", Deadline(deadline_s=0.1 * 3600.0), (0,)),)
        Scenario((job("b"),), PRICES, BILLING).run(InOrder(early, "mine"), START_S)


def test_one_budget_holds_for_all() -> None:
    work = listed((job("a"), ()), (job("b"), ("a",)), budget_usd=0.02)
    outcome = Scenario(work.jobs(), PRICES, BILLING).run(policy_for(work, "on-demand"), START_S)
    assert not outcome.finished
    assert outcome.cost_usd <= 0.02
    assert math.isnan(outcome.jobs[1].finished_s)


def test_it_says_which_jobs_a_policy_does_not_fit() -> None:
    gang = job("gang", machines=2)
    work = listed((job("a"), ()), (gang, ("a",)))
    with pytest.raises(InputError, match=r"deepspotcloud-migrate gives each job one machine, and job gang waits"):
        Scenario(work.jobs(), PRICES, BILLING).run(policy_for(work, "deepspotcloud-migrate"), START_S)


def test_limits_of_dynamic_pricing_are_the_jobs_own_deadlines() -> None:
    work = listed((job("a", deadline_h=5), ()), (job("b"), ()), deadline_h=9.0, budget_usd=4.0)
    policy = policy_for(work, "dynamic-pricing-cost")
    (group,) = policy.policy.groups  # type: ignore[attr-defined]
    assert (group.policy.slo_h, group.policy.budget_usd) == ({"a": 5.0, "b": 9.0}, 4.0)
    with pytest.raises(InputError, match=r"slo_h\.c"):
        policy_for(work, "dynamic-pricing-cost", parameters={"slo_h": {"c": 3.0}})


def test_a_policy_of_its_own_and_one_for_the_rest() -> None:
    work = listed((job("a"), ()), (job("b"), ()))
    own = work.listed[1].model_copy(update={"policy": AskedPolicy(name="on-demand")})
    work = work.model_copy(update={"listed": (work.listed[0], own)})
    policy = policy_for(work, DEFAULT)
    assert isinstance(policy, InOrder)
    assert [type(group.policy) for group in policy.groups] == [Ebbtide, OnDemand]
    with pytest.raises(InputError, match="name one policy to give it parameters"):
        policy_for(work, DEFAULT, parameters={"max_price_ratio": 0.5})


@dataclass
class Waking:
    """Rents a machine for its job, asks to be woken every so often, and notes when it is."""

    every_s: float
    name: str = "waking"
    wakes_on: frozenset[Wake] = frozenset()
    woken_s: list[float] = field(default_factory=list)

    def decide(self, view: View) -> Iterable[Action]:
        if any(event.wake is Wake.TIMER for event in view.events):
            self.woken_s.append(view.now_s)
        if not view.leases_of(0):
            yield Request(view.markets[0], 10.0, job=0)
        begun = any(event.wake in (Wake.START, Wake.TIMER) for event in view.events)
        if begun:
            yield WakeAt(view.now_s + self.every_s)


def test_a_timer_is_of_the_group_that_asked_for_it() -> None:
    often, seldom = Waking(100.0), Waking(450.0)
    groups = (JobGroup("often", often, (0,)), JobGroup("seldom", seldom, (1,)))
    jobs = (job("a"), job("b"))
    assert Scenario(jobs, PRICES, BILLING).run(InOrder(groups, "two"), START_S).finished
    # At 900 s both are woken, and else each by its own.
    assert {round(time_s - START_S) % 450 for time_s in seldom.woken_s} == {0}
    assert {round(time_s - START_S) % 100 for time_s in often.woken_s} == {0}
    assert len(often.woken_s) > 4 * len(seldom.woken_s) > 0
