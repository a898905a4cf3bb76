"""ExoSphere's master on the engine: what it rents, tells and does, by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import DAY_S, HOUR_S, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.billing import billing_preset
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.view import View
from ebbtide.policies.backoff import _Shown
from ebbtide.policies.exosphere import master
from ebbtide.policies.exosphere.allocation import CoresAndMemory
from ebbtide.policies.exosphere.applications import (
    Application,
    BagOfTasks,
    CallAgain,
    Checkpoint,
    DownCall,
    Mpi,
    PortfolioMttr,
    PortfolioRequest,
    ReleaseServers,
    RentedServer,
    Resize,
    Spark,
    VirtualCluster,
)
from ebbtide.policies.exosphere.master import ExoSphere
from ebbtide.policies.exosphere.portfolio import Selection, construct
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay

BEGAN_S = to_epoch_s("2015-05-22T00:00:00Z")
START_S = to_epoch_s("2015-06-01T00:00:00Z")
A, B, C = (eb.Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "abc")
LOW, SPIKE, ON_DEMAND = 0.05, 1.0, 0.21
Points = Sequence[tuple[float, float]]


def scenario(
    *jobs: dict[str, object],
    a: Points = (),
    b: Points = (),
    c: Points | None = None,
    notice: bool = True,
    delay: StartDelay | None = None,
) -> Scenario:
    """Markets of one type that cost little for ten days and from the start on as told, (hours, USD)."""
    series = {}
    for market, points in ((A, a), (B, b), (C, c)):
        if points is not None:
            times_s = [BEGAN_S, *(START_S + hours * HOUR_S for hours, _ in points)]
            series[market] = PriceSeries(np.array(times_s), np.array([LOW, *(usd for _, usd in points)]))
    prices = eb.PriceHistory(series, start_s=BEGAN_S, end_s=START_S + 100 * HOUR_S)
    content = {
        "steps_per_hour": {"c3.xlarge": 1},
        "coupling": "independent",
        "checkpoint": {"save_s": 0, "restore_s": 0},
    }
    parsed = tuple(eb.Job.parse({"name": f"job-{n}", **content, **job}) for n, job in enumerate(jobs))
    billing = billing_preset("ec2-hourly")
    billing = billing if notice else replace(billing, notice_s=0.0)
    return Scenario(parsed, prices, billing, delay=delay or StartDelay(0.0, 0.0))


def run(policy: ExoSphere, where: Scenario) -> eb.types.Outcome:
    return where.run(policy, START_S)


def four(**options: object) -> Spark:
    """Four c3.xlarge."""
    return Spark(CoresAndMemory(16, 0), **{"save_s": 0.0, "replenish_until": 1.0, **options})  # type: ignore[arg-type]


SPIKED = [(4, SPIKE), (7, LOW)]


def test_twin_markets_share_the_cluster() -> None:
    outcome = run(ExoSphere((four(),)), scenario({"steps": 40}))
    assert outcome.finished
    assert outcome.makespan_s == pytest.approx(10 * HOUR_S)
    assert Counter(lease.market for lease in outcome.leases) == {A: 2, B: 2}
    assert {lease.max_price_usd_per_hour for lease in outcome.leases} == {ON_DEMAND}


def test_without_aversion_to_risk_one_market_has_all() -> None:
    outcome = run(ExoSphere((four(alpha=0.0),)), scenario({"steps": 40}, b=[(-48, 0.04)]))
    assert Counter(lease.market for lease in outcome.leases) == {B: 4}


def test_what_is_taken_is_rented_elsewhere_at_once() -> None:
    outcome = run(ExoSphere((four(),)), scenario({"steps": 40}, a=SPIKED))
    assert outcome.revocations == 2
    assert [lease.market for lease in outcome.leases[4:]] == [B, B]
    # All of it saved on notice: nothing is lost but the time of the notice.
    assert outcome.makespan_s == pytest.approx(10 * HOUR_S, abs=300)


def test_without_replenishment_it_goes_on_with_what_is_left() -> None:
    outcome = run(ExoSphere((four(replenish_until=0.0),)), scenario({"steps": 40}, a=SPIKED))
    assert len(outcome.leases) == 4
    # Sixteen steps by four machines, the other twenty-four by two.
    assert outcome.makespan_s == pytest.approx((4 + 12) * HOUR_S, abs=600)
    late = run(ExoSphere((four(replenish_until=0.3),)), scenario({"steps": 40}, a=SPIKED))
    assert late.makespan_s == pytest.approx(outcome.makespan_s)


def test_without_checkpoints_the_lost_market_s_work_is_done_again() -> None:
    outcome = run(ExoSphere((four(),)), scenario({"steps": 40, "checkpoint": None}, a=SPIKED))
    # Eight steps of two machines are lost: two hours more of four.
    assert outcome.steps_lost == pytest.approx(8, abs=0.2)
    assert outcome.makespan_s == pytest.approx(12 * HOUR_S, abs=300)


def test_when_all_is_lost_it_waits_until_something_is_to_be_had() -> None:
    both = scenario({"steps": 40}, a=SPIKED, b=SPIKED)
    outcome = run(ExoSphere((four(replenish_until=0.0),)), both)
    assert outcome.revocations == 4
    assert outcome.finished
    assert outcome.makespan_s == pytest.approx((10 + 3) * HOUR_S, abs=600)


def test_a_market_outside_the_portfolio_is_taken_when_the_portfolio_s_own_are_gone() -> None:
    # Without aversion all is in B, the cheapest; when that goes, the next best is as good.
    outcome = run(ExoSphere((four(alpha=0.0),)), scenario({"steps": 40}, b=[(-48, 0.04), *SPIKED]))
    assert Counter(lease.market for lease in outcome.leases[4:]) == {A: 4}


def test_spark_saves_as_often_as_its_portfolio_s_life_tells() -> None:
    """Ten days less a tenth were seen, no revocation in them: half a one counts."""
    fast = {"steps": 16_000, "steps_per_hour": {"c3.xlarge": 1_000}, "checkpoint": {"save_s": 1, "restore_s": 1}}
    outcome = scenario(fast).run(ExoSphere((four(save_s=1.0),)), START_S, record=True)
    saved_s = [moment.time_s - START_S for moment in outcome.timeline if moment.what == "saved"]
    first_s = (2 * 1.0 * 2 * 10 * DAY_S) ** 0.5
    assert saved_s[0] == pytest.approx(first_s, rel=0.02)
    assert outcome.steps_lost == 0


def test_mpi_takes_the_market_that_outlives_it_and_begins_anew() -> None:
    """B is cheaper, but is taken every other day."""
    flapping = [
        (hours, usd) for day in range(-8, 0, 2) for hours, usd in ((day * 24, SPIKE), (day * 24 + 1, 0.01))
    ]
    gang = {"steps": 40, "coupling": "gang", "machines": 4}
    short = run(ExoSphere((Mpi(CoresAndMemory(16, 0), length_s=10 * HOUR_S),)), scenario(gang, b=flapping))
    assert {lease.market for lease in short.leases} == {B}
    long = run(ExoSphere((Mpi(CoresAndMemory(16, 0), length_s=40 * HOUR_S),)), scenario(gang, b=flapping))
    assert {lease.market for lease in long.leases} == {A}
    lost = run(
        ExoSphere((Mpi(CoresAndMemory(16, 0)),)), scenario({**gang, "checkpoint": None}, a=SPIKED, b=[(5, 0.06)])
    )
    assert lost.steps_lost == pytest.approx(16, abs=0.3)
    assert Counter(lease.market for lease in lost.leases) == {A: 4, B: 4}


def test_by_name_a_gang_takes_the_market_that_outlives_it() -> None:
    """B is cheaper, but is taken every other day; the length of the job follows from its steps and its speed."""
    days = (-8, -6, -4, -2, 1)
    flapping = [(hours, usd) for day in days for hours, usd in ((day * 24, SPIKE), (day * 24 + 1, 0.01))]
    gang = {"coupling": "gang", "machines": 4, "checkpoint": None}
    for steps, market in ((40, B), (160, A)):
        outcome = run(ExoSphere(), scenario({**gang, "steps": steps}, b=flapping))
        assert {lease.market for lease in outcome.leases} == {market}
        assert (outcome.steps_lost, outcome.makespan_s) == (0, pytest.approx(steps / 4 * HOUR_S))


def test_by_name_a_gang_is_saved_where_no_notice_leaves_time_for_it() -> None:
    slow = {"steps": 160, "coupling": "gang", "machines": 4, "checkpoint": {"save_s": 60, "restore_s": 60}}
    # Only its end is saved where a notice of two minutes leaves time.
    assert scenario(slow).run(ExoSphere(), START_S).checkpoints == 1
    outcome = scenario(slow, notice=False).run(ExoSphere(), START_S, record=True)
    # Ten days less a tenth were seen, no revocation in them: half a one counts.
    saved_s = [moment.time_s - START_S for moment in outcome.timeline if moment.what == "saved"]
    assert saved_s[0] == pytest.approx((2 * 60.0 * 2 * 10 * DAY_S) ** 0.5, rel=0.05)


def test_a_bag_of_tasks_leaves_a_market_that_is_dear_and_comes_back() -> None:
    expensive = [(2, 0.15), (4, LOW)]
    bag = BagOfTasks(CoresAndMemory(16, 0), alpha=1.0, price_threshold=0.5)
    outcome = run(ExoSphere((bag,)), scenario({"steps": 40}, a=expensive, b=expensive))
    assert outcome.revocations == 0
    # Nothing is paid at the expensive price, and two hours are waited, five minutes at the most beside.
    assert {line.price_usd_per_hour for line in outcome.ledger.lines} == {LOW}
    assert outcome.makespan_s == pytest.approx(12 * HOUR_S, abs=400)
    stays = run(
        ExoSphere((BagOfTasks(CoresAndMemory(16, 0), alpha=1.0),)),
        scenario({"steps": 40}, a=expensive, b=expensive),
    )
    assert stays.makespan_s == pytest.approx(10 * HOUR_S)


def test_an_ended_application_s_servers_go_to_another_that_lost_its_own() -> None:
    """Both have two machines in A and two in B. The first ends; then A is lost, and B's free ones serve."""
    delay = StartDelay(0.0, 300.0)
    jobs = ({"steps": 4}, {"steps": 40})
    kept = run(ExoSphere((four(), four())), scenario(*jobs, a=[(1.15, SPIKE), (9, LOW)], delay=delay))
    assert kept.finished
    assert len(kept.leases) == 8
    gone = run(
        ExoSphere((four(), four()), free_list_s=1.0), scenario(*jobs, a=[(1.15, SPIKE), (9, LOW)], delay=delay)
    )
    assert len(gone.leases) == 10
    assert kept.makespan_s < gone.makespan_s


def test_servers_that_nobody_wants_are_given_back() -> None:
    outcome = run(ExoSphere((four(), four())), scenario({"steps": 4}, {"steps": 40}))
    first, other = outcome.leases[:4], outcome.leases[4:]
    assert {lease.ended_s - START_S for lease in first} == {HOUR_S + 600.0}
    assert {lease.ended_s - START_S for lease in other} == {10 * HOUR_S}


@dataclass(frozen=True)
class Listening(Application):
    """Notes what it is told, and answers as it is told to."""

    answers: dict[str, list[DownCall]] = field(default_factory=dict)
    told: list[tuple[str, float, object]] = field(default_factory=list)

    def _note(self, what: str, cluster: VirtualCluster, about: object) -> Iterable[DownCall]:
        self.told.append((what, cluster.now_s - START_S, about))
        return self.answers.pop(what, [])

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        return [PortfolioRequest(CoresAndMemory(16, 0), price_threshold=0.9), *self._note("begin", cluster, None)]

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:
        return self._note("mttr", cluster, mttr)

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:
        return self._note("hard", cluster, lost)

    def on_soft_revocation(self, cluster: VirtualCluster, at_risk: Sequence[RentedServer]) -> Iterable[DownCall]:
        return self._note("soft", cluster, at_risk)

    def on_price_threshold(self, cluster: VirtualCluster, expensive: Sequence[RentedServer]) -> Iterable[DownCall]:
        return self._note("expensive", cluster, expensive)

    def on_due(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        return self._note("due", cluster, cluster.wanted)


def told(application: Listening, what: str) -> list[tuple[float, object]]:
    return [(time_s, about) for kind, time_s, about in application.told if kind == what]


@pytest.mark.parametrize("notice", [True, False])
def test_each_up_call_comes_when_its_time_is_there_and_once(notice: bool) -> None:
    application = Listening()
    rising = [(1.0, 0.12), (1.5, 0.2), (2.0, SPIKE), (5.0, LOW)]
    where = scenario({"steps": 20}, a=rising, notice=notice)
    run(ExoSphere((application,)), where)
    for what, at_h in (("soft", 1.0), ("expensive", 1.5), ("hard", 2.0)):
        calls = told(application, what)
        assert [time_s for time_s, _ in calls] == pytest.approx([at_h * HOUR_S] * len(calls))
        # Servers of one market may be noticed one after the other; each is told of once.
        assert [(server.lease_id, server.market) for _, about in calls for server in about] == [(0, A), (1, A)]  # type: ignore[attr-defined]
    mttr = told(application, "mttr")
    # Once the portfolio is made, and then every five minutes.
    assert [time_s for time_s, _ in mttr[:4]] == [0.0, 300.0, 600.0, 900.0]
    first, last = mttr[0][1], mttr[-1][1]
    assert isinstance(first, PortfolioMttr)
    assert isinstance(last, PortfolioMttr)
    assert first.by_market_s[A] == pytest.approx(first.by_market_s[B])
    # A revocation was seen since: one and a half against half a one.
    assert last.by_market_s[A] == pytest.approx(last.by_market_s[B] / 3, rel=0.05)
    assert last.portfolio_s == pytest.approx(2 / (1 / last.by_market_s[A] + 1 / last.by_market_s[B]), rel=0.01)


def test_a_rebalance_recommendation_is_a_soft_revocation() -> None:
    class Recommended(ExoSphere):
        def decide(self, view: View) -> Iterable[Action]:
            if view.now_s >= START_S + HOUR_S and "recommended" not in view.memory:
                view.memory["recommended"] = True
                events = [*view.events, Event(Wake.REBALANCE, view.now_s, lease_id=2)]
                return super().decide(_Shown(view, view.markets, events))  # type: ignore[arg-type]
            return super().decide(view)

    assert Wake.REBALANCE in ExoSphere().wakes_on
    application = Listening({"soft": [Checkpoint()]})
    outcome = run(Recommended((application,)), scenario({"steps": 20}))
    ((at_s, servers),) = told(application, "soft")
    assert HOUR_S <= at_s < HOUR_S + 301
    assert [server.lease_id for server in servers] == [2]  # type: ignore[attr-defined]
    # What to do about it is the application's to say: the machine is kept.
    assert len(outcome.leases) == 4


def test_down_calls_resize_release_save_and_wake() -> None:
    application = Listening({"begin": [CallAgain(START_S + HOUR_S), CallAgain(START_S + 2 * HOUR_S)]})
    application.answers["due"] = [Resize(CoresAndMemory(8, 0)), Checkpoint()]
    outcome = run(ExoSphere((application,)), scenario({"steps": 20}))
    assert [time_s for time_s, _ in told(application, "due")] == [HOUR_S, 2 * HOUR_S]
    # One of each market is given back after an hour; two are left for the other sixteen steps.
    assert Counter((lease.market, round((lease.ended_s - START_S) / HOUR_S)) for lease in outcome.leases) == {
        (A, 1): 1,
        (B, 1): 1,
        (A, 9): 1,
        (B, 9): 1,
    }
    leaver = Listening({"soft": [ReleaseServers((0,))]})
    outcome = run(ExoSphere((leaver,)), scenario({"steps": 20}, a=[(1.0, 0.12)]))
    assert len(outcome.leases) == 4
    assert outcome.leases[0].ended_s - START_S == pytest.approx(HOUR_S)


def test_all_that_the_master_remembers_is_plain() -> None:
    seen: list[str] = []

    class Watched(ExoSphere):
        def decide(self, view: object) -> Iterable[object]:  # type: ignore[override]
            actions = list(super().decide(view))  # type: ignore[arg-type]
            kept = json.dumps(view.memory)  # type: ignore[attr-defined]
            seen.append(kept)
            view.memory.clear()  # type: ignore[attr-defined]
            view.memory.update(json.loads(kept))  # type: ignore[attr-defined]
            return actions

    plain = run(ExoSphere((four(),)), scenario({"steps": 40}, a=SPIKED))
    outcome = run(Watched((four(),)), scenario({"steps": 40}, a=SPIKED))
    assert (outcome.cost_usd, outcome.makespan_s) == (plain.cost_usd, plain.makespan_s)
    assert len(seen) > 10


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(InputError, match="2 applications for 1 jobs"):
        run(ExoSphere((four(), four())), scenario({"steps": 4}))
    with pytest.raises(InputError, match="covariance"):
        ExoSphere(covariance="beta")
    with pytest.raises(InputError, match="soft_share"):
        ExoSphere(soft_share=0.0)
    with pytest.raises(InputError, match="resources of a request are nothing"):
        PortfolioRequest(CoresAndMemory(0, 0))
    with pytest.raises(InputError, match="alpha is -1"):
        PortfolioRequest(CoresAndMemory(1, 0), alpha=-1.0)
    with pytest.raises(InputError, match="price_threshold"):
        PortfolioRequest(CoresAndMemory(1, 0), price_threshold=2.0)
    thief = Listening({"begin": [ReleaseServers((7,))]})
    with pytest.raises(InputError, match="lease 7 is none of"):
        run(ExoSphere((thief,)), scenario({"steps": 4}))


def test_a_gang_of_machines_of_several_sizes_is_refused() -> None:
    job = eb.Job(name="g", steps=8, other_steps_per_hour_per_vcpu=1.0, machines=2)
    small, large = (eb.Market("aws", "us-east-1", "us-east-1a", name) for name in ("c3.large", "c3.xlarge"))
    calm = PriceSeries(np.array([BEGAN_S]), np.array([0.05]))
    prices = eb.PriceHistory({small: calm, large: calm}, start_s=BEGAN_S, end_s=START_S + 90 * DAY_S)
    with pytest.raises(
        InputError, match="waits for 2 machines, and ExoSphere rents cores: of those with 2, 4 vCPUs"
    ):
        Scenario((job,), prices, billing_preset("ec2-second")).run(ExoSphere(), START_S)


def test_a_job_without_an_application_gets_one_by_its_coupling() -> None:
    gang = run(ExoSphere(), scenario({"steps": 8, "coupling": "gang", "machines": 2}))
    assert len({lease.market for lease in gang.leases}) == 1
    assert len(gang.leases) == 2
    alone = run(ExoSphere(), scenario({"steps": 8, "machines": 2}))
    assert {lease.market for lease in alone.leases} == {A, B}


@pytest.mark.parametrize("selection", [Selection.PORTFOLIO, Selection.DIVERSIFIED])
@pytest.mark.parametrize("coupling", ["independent", "gang"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_job_without_an_application_has_no_more_machines_than_it_may_use(
    selection: Selection, coupling: str, number: int
) -> None:
    """A third of four machines is one and a third in each market, which Equation 8 rounds up to two."""
    job = {"steps": 8, "coupling": coupling, "machines": number}
    policy = ExoSphere(alpha=1e6, selection=selection)
    # With a notice, new servers start while those that it is for are still there.
    outcome = run(policy, scenario(job, a=[(0.5, SPIKE), (1.5, LOW)], c=(), notice=False))
    assert outcome.finished
    began_s = [lease.started_s for lease in outcome.leases]
    at_once = [sum(one.started_s <= at_s < one.ended_s for one in outcome.leases) for at_s in began_s]
    assert max(at_once) == number
    both = run(policy, scenario(job, job, c=()))
    assert (both.finished, len(both.leases)) == (True, 2 * number)


def test_machines_of_several_sizes_are_no_more_than_a_job_may_use() -> None:
    job = eb.Job(name="array", steps=40, other_steps_per_hour_per_vcpu=1.0, machines=3, coupling="independent")
    calm = PriceSeries(np.array([BEGAN_S]), np.array([0.01]))
    types = ("m3.medium", "c3.large", "c3.xlarge", "c3.2xlarge")
    markets = [eb.Market("aws", "us-east-1", f"us-east-1{zone}", name) for zone in "abc" for name in types]
    prices = eb.PriceHistory(dict.fromkeys(markets, calm), start_s=BEGAN_S, end_s=START_S + 90 * DAY_S)
    outcome = Scenario((job,), prices, billing_preset("ec2-second")).run(
        ExoSphere(selection=Selection.DIVERSIFIED), START_S
    )
    assert outcome.finished
    assert len(outcome.leases) <= 3


def trials(number: int, **more: object) -> list[dict[str, object]]:
    """Trials of a sweep: each on one machine."""
    return [{"steps": 8, "coupling": "gang", **more} for _ in range(number)]


def test_the_trials_of_a_sweep_share_one_portfolio_by_its_alpha() -> None:
    """B saves a little more, and A is as good as it but for that."""
    slightly = [(-48, 0.0499)]
    for alpha, wanted in ((0.0, {B: 8}), (1e6, {A: 4, B: 4}), (None, {A: 4, B: 4})):
        outcome = run(ExoSphere(alpha=alpha), scenario(*trials(8), b=slightly))
        assert outcome.finished
        assert Counter(lease.market for lease in outcome.leases) == wanted, alpha
    # One job alone has nobody to share with: as one loss is as bad as all, it takes the best market.
    outcome = run(ExoSphere(), scenario(*trials(1), b=slightly))
    assert Counter(lease.market for lease in outcome.leases) == {B: 1}


def test_a_trial_that_lost_its_machine_goes_where_most_of_its_share_is_missing() -> None:
    outcome = run(ExoSphere(), scenario(*trials(4), a=SPIKED))
    assert outcome.finished
    assert Counter(lease.market for lease in outcome.leases) == {A: 2, B: 4}


@pytest.mark.parametrize("selection", [Selection.DIVERSIFIED, Selection.LOWEST_COST])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_trial_has_one_machine_and_no_more(selection: Selection, number: int) -> None:
    outcome = run(ExoSphere(selection=selection), scenario(*trials(number), b=[(-48, 0.04)]))
    assert outcome.finished
    assert len(outcome.leases) == number
    assert outcome.makespan_s == pytest.approx(8 * HOUR_S)
    spread = len({lease.market for lease in outcome.leases})
    assert spread == (min(number, 2) if selection is Selection.DIVERSIFIED else 1)


def test_a_portfolio_is_constructed_once_for_all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(master, "construct", lambda *given, **more: made.append(1) or construct(*given, **more))
    assert run(ExoSphere(), scenario(*trials(20))).finished
    assert len(made) == 1
