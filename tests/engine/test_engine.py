"""The engine over the replay provider, on cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.errors import InputError, PolicyError
from ebbtide.jobs.job import Amdahl, Coupling
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.leases import LeaseState
from ebbtide.policies.api.actions import Assign, Release, Request, Save, Stop, WakeAt, WakeAtStep
from ebbtide.policies.api.events import Wake
from ebbtide.testing.scripted import READY_S, Scripted, replay

CALM = {C3: [(0, 0.36)], R3: [(0, 0.18)]}


def rent(market=C3, max_price=math.inf, **more):
    """Request one machine for job 0."""
    return lambda _view, _event: [Request(market, max_price, **({"job": 0} | more))]


def test_one_machine_start_restore_train_save_end() -> None:
    policy = Scripted({Wake.START: rent()})
    outcome = replay(policy, [job(3600, save_s=10, restore_s=20)], history(CALM))
    # 20 s request, 100 s boot, 20 s restore, 3600 steps at one a second, 10 s for the last save.
    assert outcome.makespan_s == pytest.approx(READY_S + 20 + 3600 + 10)
    (lease,) = outcome.leases
    assert lease.started_s == START_S + 20
    assert lease.state is LeaseState.RELEASED
    assert outcome.cost_usd == pytest.approx(0.36 / 3600 * (100 + 20 + 3600 + 10))
    assert (outcome.finished, outcome.revocations, outcome.checkpoints, outcome.steps_lost) == (True, 0, 1, 0)
    assert [moment.what for moment in outcome.timeline] == [
        "requested",
        "running",
        "saved",
        "released",
        "finished",
    ]


def test_a_price_above_the_max_price_gives_notice_then_takes_the_machine() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]})
    policy = Scripted({Wake.START: rent(max_price=0.2), Wake.NOTICE: rent(R3)})
    outcome = replay(policy, [job(3600, save_s=10, restore_s=20)], prices)
    first, second = outcome.leases
    assert policy.times(Wake.NOTICE) == [1000]
    assert first.state is LeaseState.REVOKED
    assert first.ended_s == START_S + 1120
    # It trains from 140 s until 1110 s, saves until 1120 s: 970 steps; the second machine has booted at 1120 s.
    assert second.running_s == START_S + 1120
    assert outcome.steps_lost == 0
    left_s = (3600 - 970) * 2
    assert outcome.makespan_s == pytest.approx(1120 + 20 + left_s + 10)
    # Revoked within its first hour: free.
    assert outcome.refund_usd == pytest.approx((980 * 0.10 + 120 * 0.50) / 3600)
    assert outcome.cost_usd == pytest.approx(0.18 / 3600 * (100 + 20 + left_s + 10))


def test_a_save_longer_than_the_notice_loses_everything_since_the_last() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]})
    policy = Scripted({Wake.START: rent(max_price=0.2), Wake.NOTICE: rent(R3)})
    outcome = replay(policy, [job(3600, save_s=121, restore_s=20)], prices)
    # It trains to the very end, 140 s to 1120 s, in vain.
    assert outcome.steps_lost == pytest.approx(980)
    assert outcome.makespan_s == pytest.approx(1120 + 20 + 7200 + 121)
    assert outcome.checkpoints == 1


def test_periodic_checkpoints_bound_that_loss() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]})
    policy = Scripted({Wake.START: rent(max_price=0.2), Wake.NOTICE: rent(R3)})
    outcome = replay(policy, [job(3600, save_s=121, restore_s=20, interval_s=300)], prices)
    # Trains 140 to 440, saves to 561, trains 561 to 740 (300 s after the save began), saves to 861, trains on to
    # 1040, and is cut off in the save that was to end at 1161.
    assert outcome.steps_lost == pytest.approx(1040 - 861)
    assert outcome.jobs[0].steps_saved == 3600


def test_a_job_that_cannot_be_checkpointed_begins_again() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]})
    policy = Scripted({Wake.START: rent(max_price=0.2), Wake.NOTICE: rent(R3)})
    outcome = replay(policy, [job(3600, checkpoint=None)], prices)
    assert outcome.steps_lost == pytest.approx(1000)
    assert outcome.makespan_s == pytest.approx(1120 + 7200)
    assert outcome.checkpoints == 0


def test_work_that_ends_within_the_notice_is_not_interrupted() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)]})
    policy = Scripted({Wake.START: rent(max_price=0.2)})
    outcome = replay(policy, [job(900, save_s=10, restore_s=20)], prices)
    # Its last step is done at 1040 s, its last save at 1050 s; the machine would have gone at 1120 s.
    assert outcome.makespan_s == pytest.approx(1050)
    assert outcome.revocations == 0
    assert outcome.refund_usd == 0


def test_a_request_below_the_price_fails_and_costs_nothing() -> None:
    policy = Scripted({Wake.START: rent(max_price=0.3), Wake.LAUNCH_FAILED: rent(R3)})
    outcome = replay(policy, [job(60)], history(CALM))
    assert policy.times(Wake.LAUNCH_FAILED) == [20]
    assert policy.seen[1].detail == "price 0.3600 above max price 0.3000"
    assert outcome.leases[0].state is LeaseState.FAILED
    assert outcome.revocations == 0
    assert outcome.finished


def test_a_machine_revoked_while_it_boots_is_free_under_first_hour_refunds() -> None:
    prices = history({C3: [(0, 0.10), (60, 0.50)], R3: [(0, 0.18)]})
    policy = Scripted({Wake.START: rent(max_price=0.2), Wake.ENDED: rent(R3)})
    outcome = replay(policy, [job(60)], prices)
    assert outcome.leases[0].ended_s == START_S + 180
    assert outcome.revocations == 1
    assert outcome.refund_usd > 0
    # Notice came at 60 s; it had booted at 120 s, but nobody puts work on a machine that is about to go.
    assert outcome.jobs[0].restores == 1


def test_capacity_refuses_and_takes_machines_whatever_their_max_price() -> None:
    capacity = CapacitySeries(START_S + np.array([0.0, 500, 1000]), np.array([1, 0, 1]), START_S + 90_000)
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, job=0), Request(C3, job=0)],
            Wake.ENDED: rent(),
            Wake.LAUNCH_FAILED: lambda view, _e: [WakeAt(view.now_s + 300)] if view.now_s > START_S + 100 else [],
            Wake.TIMER: rent(),
        }
    )
    outcome = replay(policy, [job(3600)], history(CALM), availability=Availability({C3: capacity}))
    # The second of two asked for at once fails: there is one. The first goes at 500 + 120 s; asked for again at
    # once it fails at 640 s, at 940 s (asked again in time) it is tried at 960 s and fails, at 1260 s it is there.
    assert policy.times(Wake.LAUNCH_FAILED) == [20, 640, 960]
    assert [event.detail for event in policy.seen if event.wake is Wake.LAUNCH_FAILED] == ["no capacity"] * 3
    assert policy.times(Wake.NOTICE) == [500]
    assert outcome.finished


def test_the_last_machine_in_is_the_first_that_capacity_takes() -> None:
    capacity = CapacitySeries(START_S + np.array([0.0, 500]), np.array([3, 2]), START_S + 90_000)
    policy = Scripted({Wake.START: lambda _v, _e: [Request(C3, job=0, count=3)]})
    outcome = replay(
        policy,
        [job(7200, machines={"min": 1, "max": 3})],
        history(CALM),
        availability=Availability({C3: capacity}),
    )
    assert [lease.state for lease in outcome.leases] == [LeaseState.RELEASED] * 2 + [LeaseState.REVOKED]


def test_a_maximum_lifetime_ends_with_its_notice_before() -> None:
    policy = Scripted({Wake.START: rent(), Wake.NOTICE: rent()})
    outcome = replay(policy, [job(100_000)], history(CALM), "gcp-preemptible")
    first, second = outcome.leases
    assert first.ended_s - first.started_s == 24 * 3600
    assert policy.times(Wake.NOTICE) == [20 + 24 * 3600 - 30]
    assert policy.seen[2].detail == "maximum lifetime"
    assert second.state is LeaseState.RELEASED
    assert outcome.finished


def test_prices_do_not_revoke_where_billing_says_so() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)]})
    outcome = replay(Scripted({Wake.START: rent(max_price=0.2)}), [job(3600)], prices, "gcp-spot")
    assert outcome.revocations == 0


def test_on_demand_machines_are_charged_the_list_price_and_never_revoked() -> None:
    prices = history({C3: [(0, 0.10), (1000, 50.0)]})
    outcome = replay(Scripted({Wake.START: rent(on_demand=True)}), [job(3600, save_s=10, restore_s=20)], prices)
    assert outcome.cost_usd == pytest.approx(0.21 / 3600 * (100 + 20 + 3600 + 10))
    assert outcome.revocations == 0


def test_an_unknown_list_price_cannot_be_rented_at() -> None:
    market = type(C3)("aws", "us-east-1", "us-east-1a", "m5.large")
    policy = Scripted({Wake.START: rent(market, on_demand=True)})
    with pytest.raises(InputError, match="on-demand price of us-east-1a m5.large is not known"):
        replay(policy, [job(60)], history({market: [(0, 0.1)]}))


def test_a_migration_saves_here_while_the_next_machine_boots_there() -> None:
    """DeepSpotCloud's move: checkpoint and start in parallel."""
    policy = Scripted(
        {
            Wake.START: lambda view, _e: [Request(C3, job=0), WakeAt(view.now_s + 1000)],
            Wake.TIMER: lambda _v, _e: [Request(R3, job=0), Release(0)],
        }
    )
    outcome = replay(policy, [job(3600, save_s=30, restore_s=20)], history(CALM))
    first, second = outcome.leases
    assert first.ended_s == START_S + 1030  # as soon as it had saved
    assert second.running_s == START_S + 1120
    done = 1000 - 140
    assert outcome.makespan_s == pytest.approx(1120 + 20 + (3600 - done) * 2 + 30)
    assert outcome.steps_lost == 0
    assert outcome.revocations == 0


def test_a_release_without_saving_is_at_once_and_loses_steps() -> None:
    policy = Scripted(
        {
            Wake.START: lambda view, _e: [Request(C3, job=0), WakeAt(view.now_s + 1000)],
            Wake.TIMER: lambda _v, _e: [Request(C3, job=0), Release(0, save=False)],
        }
    )
    outcome = replay(policy, [job(3600)], history(CALM))
    assert outcome.leases[0].ended_s == START_S + 1000
    assert outcome.steps_lost == pytest.approx(1000 - 140)


def test_a_gang_moves_as_one_and_gains_by_its_speedup() -> None:
    gang = job(3600, machines=2, save_s=10, restore_s=20, speedup=Amdahl(parallel=0.5))
    both = Scripted({Wake.START: lambda _v, _e: [Request(C3, job=0, count=2)]})
    outcome = replay(both, [gang], history(CALM))
    # The first boots a moment before the second: the gang begins, and at once begins again with both.
    assert outcome.makespan_s == pytest.approx(READY_S + 20 + 3600 / (4 / 3) + 10)
    assert outcome.cost_usd == pytest.approx(2 * 0.36 / 3600 * (outcome.makespan_s - 20))


def test_a_gang_that_loses_a_machine_saves_and_waits_for_another() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]})
    gang = job(3600, machines=2, save_s=10, restore_s=20)
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, 0.2, job=0), Request(R3, job=0)],
            Wake.ENDED: lambda _v, _e: [Request(R3, job=0)],
        }
    )
    outcome = replay(policy, [gang], prices)
    # Together (1 + 0.5) steps a second from 140 s to 1110 s; then r3.large waits until it has another beside it.
    together = math.floor(970 * 1.5)
    assert outcome.steps_lost < 1
    assert outcome.makespan_s == pytest.approx(1120 + 120 + 20 + (3600 - together) / 1.0 + 10, abs=1e-3)


def test_a_gang_uses_no_more_machines_than_it_asks_for() -> None:
    gang = job(3600, machines=2, save_s=10, restore_s=20)
    three = Scripted({Wake.START: lambda _v, _e: [Request(C3, job=0, count=3)]})
    outcome = replay(three, [gang], history(CALM))
    assert outcome.makespan_s == pytest.approx(READY_S + 20 + 1800 + 10)
    assert sorted(outcome.jobs[0].steps_on.values()) == pytest.approx([1800.0, 1800.0])


def test_a_policy_that_gives_one_machine_refuses_a_job_that_waits_for_more() -> None:
    for name in ("spottune", "dynamic-pricing-cost", "deepspotcloud-migrate"):
        with pytest.raises(InputError, match="gives each job one machine, and job .* waits for 2"):
            replay(eb.policy(name), [job(3600, machines=2)], history(CALM))
    for name in ("cheapest-spot", "deadline", "next-cheapest"):
        assert replay(eb.policy(name), [job(3600, machines=2)], history(CALM)).finished


def test_an_elastic_job_that_loses_a_machine_saves_and_goes_on_with_the_rest() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]})
    gang = job(3600, machines={"min": 1, "max": 2}, save_s=10, restore_s=20)
    policy = Scripted({Wake.START: lambda _v, _e: [Request(C3, 0.2, job=0), Request(R3, job=0)]})
    outcome = replay(policy, [gang], prices)
    # Together (1 + 0.5) steps a second from 140 s to 1110 s, then r3.large alone at half a step a second.
    together = math.floor(970 * 1.5)
    assert outcome.steps_lost < 1
    assert outcome.makespan_s == pytest.approx(1120 + 20 + (3600 - together) / 0.5 + 10, abs=1e-3)


def test_independent_machines_come_and_go_alone() -> None:
    prices = history({C3: [(0, 0.10), (1000, 0.50)], R3: [(0, 0.18)]})
    tasks = job(3600, machines=2, save_s=10, restore_s=20, coupling=Coupling.INDEPENDENT)
    policy = Scripted({Wake.START: lambda _v, _e: [Request(C3, 0.2, job=0), Request(R3, job=0)]})
    outcome = replay(policy, [tasks], prices)
    # c3.xlarge does 970 steps until it saves at 1110 s; r3.large never stops: half a step a second from 140 s.
    assert outcome.makespan_s == pytest.approx(140 + (3600 - 970) / 0.5 + 10, abs=1e-3)
    assert outcome.jobs[0].restores == 2


def test_several_jobs_share_a_machine_by_their_shares() -> None:
    halves = [job(600, share=0.5), job(1200, share=0.5)]
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, keep=True)],
            Wake.RUNNING: lambda _v, _e: [Assign(0, [0]), Assign(1, [0])],
        }
    )
    outcome = replay(policy, halves, history(CALM))
    ends = [progress.finished_s - START_S for progress in outcome.jobs]
    assert ends == pytest.approx([140 + 600 + 10, 140 + 1200 + 10])
    assert outcome.cost_usd == pytest.approx(0.36 / 3600 * (ends[1] - 20))
    three = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3)],
            Wake.RUNNING: lambda _v, _e: [Assign(n, [0]) for n in range(3)],
        }
    )
    with pytest.raises(PolicyError, match="does not fit"):
        replay(three, [job(60, share=0.5)] * 3, history(CALM))


@pytest.mark.parametrize(("share", "machines"), [(0.5, 1), (1.0, 2)])
def test_a_job_beside_another_on_a_machine_to_come_takes_it_away_only_where_both_do_not_fit(
    share: float, machines: int
) -> None:
    pair = [job(600, share=share), job(600, share=share)]
    seen: list[list[int]] = []

    def beside(view, _events):
        seen.append([lease.lease_id for lease in view.leases_of(0)])
        return [] if view.leases_of(0) else [Request(C3, job=0)]

    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, job=0), Assign(1, [0]), WakeAt(START_S + 5)],
            Wake.TIMER: beside,
        }
    )
    outcome = replay(policy, pair, history(CALM))
    assert seen == [[0] if share == 0.5 else []]
    assert len(outcome.leases) == machines
    assert all(progress.finished_s for progress in outcome.jobs)


def test_no_job_is_put_on_a_machine_that_is_being_given_back() -> None:
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, job=0), WakeAt(START_S + 500), WakeAt(START_S + 505)],
            Wake.TIMER: lambda view, _e: (
                [Release(0)] if view.now_s < START_S + 502 else [Assign(1, [0]), Request(R3, job=0)]
            ),
            Wake.FINISHED: lambda _v, event: [Request(R3, job=1)] if event.job_id == 0 else [],
        }
    )
    outcome = replay(policy, [job(600, save_s=10), job(600, save_s=10)], history(CALM))
    assert outcome.finished
    # It saves for ten seconds from 500 s on, and has ended then.
    assert outcome.leases[0].ended_s == START_S + 510


def test_jobs_take_turns_on_a_machine_in_rounds() -> None:
    """Dynamic Pricing's rounds: each assignment saves one job and restores the other."""

    def turn(view, _event):
        now_on = view.memory.get("on", 1)
        view.memory["on"] = 1 - now_on
        left = [progress.job_id for progress in view.jobs if not progress.is_finished]
        nxt = (1 - now_on) if (1 - now_on) in left else left[0]
        return [Assign(other, []) for other in left if other != nxt] + [Assign(nxt, [0]), WakeAt(view.now_s + 600)]

    script = {Wake.START: lambda _v, _e: [Request(C3, keep=True)], Wake.RUNNING: turn, Wake.TIMER: turn}
    outcome = replay(Scripted(script), [job(1000), job(1000)], history(CALM))
    assert outcome.finished
    assert outcome.steps_lost == 0
    assert all(progress.restores >= 2 for progress in outcome.jobs)


def test_milestones_timers_and_period_ends_wake_when_asked() -> None:
    policy = Scripted(
        {Wake.START: lambda view, _e: [Request(C3, job=0), WakeAtStep(0, 500), WakeAt(view.now_s + 300)]},
        wakes_on=frozenset({Wake.PERIOD_END, Wake.SAVED}),
        period_lead_s=60.0,
    )
    replay(policy, [job(8000, save_s=10, restore_s=20)], history(CALM), "ec2-hourly")
    assert policy.times(Wake.MILESTONE) == [pytest.approx(140 + 500)]
    assert policy.times(Wake.TIMER) == [300]
    assert policy.times(Wake.PERIOD_END) == [20 + 3600 - 60, 20 + 7200 - 60]
    assert policy.times(Wake.SAVED) == [pytest.approx(140 + 8000 + 10)]


def test_price_changes_wake_only_those_who_ask() -> None:
    prices = history({C3: [(0, 0.1), (100, 0.2), (200, 0.1)], R3: [(0, 0.1), (150, 0.2)]})
    curious = Scripted({Wake.START: rent()}, wakes_on=frozenset({Wake.PRICE}))
    replay(curious, [job(600)], prices)
    assert curious.times(Wake.PRICE) == [100, 150, 200]
    calm = Scripted({Wake.START: rent()})
    replay(calm, [job(600)], prices)
    assert calm.times(Wake.PRICE) == []


def test_stop_saves_and_ends_early() -> None:
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, job=0), WakeAtStep(0, 700)],
            Wake.MILESTONE: lambda _v, _e: [Stop(0)],
        }
    )
    outcome = replay(policy, [job(1000, save_s=10, restore_s=20)], history(CALM))
    assert outcome.finished
    assert outcome.makespan_s == pytest.approx(140 + 700 + 10)
    assert outcome.jobs[0].stopped
    assert outcome.jobs[0].steps_saved == 700


def test_save_checkpoints_and_training_goes_on_without_restoring() -> None:
    policy = Scripted(
        {
            Wake.START: lambda _v, _e: [Request(C3, job=0), WakeAtStep(0, 700)],
            Wake.MILESTONE: lambda _v, _e: [Save(0)],
        }
    )
    outcome = replay(policy, [job(1000, save_s=10, restore_s=20)], history(CALM))
    assert outcome.makespan_s == pytest.approx(140 + 1000 + 2 * 10)
    assert (outcome.checkpoints, outcome.jobs[0].restores) == (2, 1)


def test_the_view_shows_the_present_and_the_past_only() -> None:
    prices = history({C3: [(0, 0.1), (100, 0.2), (5000, 9.0)], R3: [(400, 0.3)]})
    shown = {}

    def look(view, _event):
        shown["markets"] = list(view.markets)
        shown["past"] = view.past_prices(C3, 200)
        shown["mean"] = view.mean_price(C3, 200)
        shown["price"] = view.price(C3)
        shown["spent"] = view.spent_usd
        shown["list"] = view.on_demand_price(C3)
        return [Request(C3, job=0)]

    policy = Scripted({Wake.START: lambda view, _e: [WakeAt(view.now_s + 200)], Wake.TIMER: look})
    replay(policy, [job(60)], prices)
    assert shown["markets"] == [C3]
    assert shown["past"][0].tolist() == [START_S, START_S + 100]
    assert shown["mean"] == pytest.approx(0.15)
    assert shown["price"] == 0.2
    assert shown["spent"] == 0
    assert shown["list"] == 0.21


def test_spending_is_known_while_a_machine_runs() -> None:
    seen = []

    def look(view, _event):
        seen.append(view.spent_usd)
        return []

    policy = Scripted(
        {
            Wake.START: lambda view, _e: [Request(C3, job=0), WakeAt(view.now_s + 1820)],
            Wake.TIMER: look,
        }
    )
    replay(policy, [job(3600)], history(CALM))
    assert seen == [pytest.approx(0.18)]


def test_a_history_that_ends_first_leaves_the_run_unfinished_and_charged() -> None:
    outcome = replay(Scripted({Wake.START: rent()}), [job(36_000)], history(CALM, hours=2))
    assert not outcome.finished
    assert outcome.end_s == START_S + 7200
    assert outcome.cost_usd == pytest.approx(0.36 / 3600 * (7200 - 20))
    assert outcome.jobs[0].steps_done == pytest.approx(7200 - 140)
    assert not any(lease.is_open for lease in outcome.leases)


def test_a_policy_that_does_nothing_ends_unfinished_and_free() -> None:
    outcome = replay(Scripted({}), [job(60)], history(CALM, hours=1))
    assert (outcome.finished, outcome.cost_usd) == (False, 0)


def test_a_policy_that_answers_itself_without_end_is_stopped() -> None:
    policy = Scripted(
        {
            Wake.START: lambda view, _e: [WakeAt(view.now_s)],
            Wake.TIMER: lambda view, _e: [WakeAt(view.now_s)],
        }
    )
    with pytest.raises(PolicyError, match="without end"):
        replay(policy, [job(60)], history(CALM))


def test_a_start_outside_the_history_is_refused() -> None:
    with pytest.raises(InputError, match="outside the history, which covers 2015-04-01"):
        replay(Scripted({}), [job(60)], history(CALM), start_s=START_S - 1)


@pytest.mark.parametrize("per_hour", [3_600.0, 40_000.0, 1e6, 3e8])
def test_a_job_of_many_quick_steps_ends(per_hour: float) -> None:
    """The clock tells a quarter of a microsecond apart: quick steps are not told apart by it."""
    quick = job(round(2.345 * per_hour), per_hour=per_hour, checkpoint=None)
    result = eb.backtest(
        quick, [eb.policies.CheapestSpot()], history({C3: [(0, 0.1)]}), starts=[START_S + 3600.123], seed=1
    )
    (outcome,) = result.outcomes["cheapest-spot"]
    assert outcome.finished
    assert outcome.makespan_s == pytest.approx(2.345 * 3600 + 120, abs=2)


def test_a_machine_that_has_booted_after_its_job_s_end_is_not_put_on_it() -> None:
    """It is kept for other jobs, so it was not given back when the job ended."""
    seen: list[tuple[bool, list[int]]] = []

    def booted(view, event):
        if event.lease_id == 2:
            done = view.jobs[0]
            seen.append((done.is_finished, [lease.lease_id for lease in done.leases]))
            return [Assign(1, [2])]
        return []

    policy = Scripted(
        {
            Wake.START: lambda view, _e: [Request(C3, job=0), Request(R3, job=1), WakeAt(view.now_s + 200)],
            Wake.TIMER: rent(keep=True),
            Wake.RUNNING: booted,
        }
    )
    outcome = replay(policy, [job(160), job(3600)], history(CALM))
    # The first job ends at 310 s, and the machine asked for at 200 s has booted at 320 s.
    assert outcome.jobs[0].finished_s == START_S + 310
    assert seen == [(True, [])]
    assert outcome.jobs[1].steps_on.keys() == {1, 2}


def test_a_timeline_says_how_each_machine_was_requested() -> None:
    policy = Scripted(
        {Wake.START: lambda _v, _e: [Request(C3, 0.5, job=0), Request(C3, on_demand=True), Request(R3)]}
    )
    outcome = replay(policy, [job(60)], history(CALM))
    told = [moment.detail for moment in outcome.timeline if moment.what == "requested"]
    assert told == [f"{C3}, max price 0.5000", f"{C3}, on demand", f"{R3}, max price inf"]
