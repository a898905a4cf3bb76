"""Gangs under a deadline: whole or given back, elastic ones on what there is, young spells watched before they count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.markets import history

from ebbtide.base.compiled_records import SPOT, TABLE, ZonesNow, ZonesTape
from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.jobs.job import Job
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.billing import billing_preset
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.deadline.costs import zones_problem
from ebbtide.policies.deadline.gangs import Gang, largest_within, note_refusal, refused_s, sizes_of
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.deadline.table import solve_zones
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide_papers.deadlines.deadline_runs import run_zones

EAST = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
WEST = Market("aws", "us-west-2", "us-west-2b", "p3.2xlarge")
TICK_S, HOURS, BINS = 600.0, 72, len(AGE_BINS_S)
ON_DEMAND_USD = 3.06


def spells(down_per_h: float, up_per_h: float) -> SpellModel:
    return SpellModel(np.array([[down_per_h] * BINS, [up_per_h] * BINS]))


MODELS = SpellModels(spells(0.8, 0.3))
PRICES = history({EAST: [(0, 1.0)], WEST: [(0, 1.2)]}, hours=float(HOURS))
BEGINS_S = PRICES.start_s


def job(hours: float = 12.0, machines: object = 4, **changes: object) -> Job:
    """A job of so many hours on all its machines."""
    most = machines if isinstance(machines, int) else dict(machines)["max"]  # type: ignore[call-overload]
    content = {
        "name": "j",
        "steps": int(hours * 3600 * most),
        "steps_per_hour": {"p3.2xlarge": 3600.0},
        "checkpoint": {"save_s": 0, "restore_s": 0, "size_bytes": 2**30},
        "machines": machines,
    }
    return Job.model_validate(content | changes)


ELASTIC = {"min": 1, "max": 4}


def run(
    counts: np.ndarray, work: Job, policy: Deadline, billing: str = "gcp-spot", boot_s: float = 300.0
) -> Outcome:
    """A run over counts of machines in each market, by tick; shape (2, ticks)."""
    times_s = BEGINS_S + np.arange(counts.shape[1], dtype=np.float64) * TICK_S
    end_s = BEGINS_S + HOURS * HOUR_S
    series = {
        market: CapacitySeries(times_s, row, end_s) for market, row in zip((EAST, WEST), counts, strict=True)
    }
    scenario = Scenario(
        (work,), PRICES, billing_preset(billing), availability=Availability(series), delay=StartDelay(0.0, boot_s)
    )
    return scenario.run(policy, BEGINS_S)


def always(east: int, west: int) -> np.ndarray:
    return np.repeat(np.array([[east], [west]]), HOURS * 6, axis=1)


def is_in_time(outcome: Outcome, hours: float) -> bool:
    return outcome.finished and outcome.makespan_s <= hours * HOUR_S + 1e-6


@pytest.mark.parametrize(
    ("machines", "sizes"),
    [(1, (1,)), (16, (16,)), ({"min": 2, "max": 4}, (4, 3, 2)), ({"min": 3, "max": 16}, (16, 12, 7, 3))],
)
def test_an_elastic_job_is_planned_for_a_few_sizes(machines: object, sizes: tuple[int, ...]) -> None:
    assert sizes_of(job(machines=machines)) == sizes
    assert sizes_of(job(machines=machines, coupling="independent")) == (1,)


def test_a_refusal_of_few_is_one_of_many_and_not_the_other_way_round() -> None:
    gangs = (Gang(EAST, 4), Gang(EAST, 2), Gang(WEST, 4))
    refused: dict[str, float] = {}
    note_refusal(refused, gangs, EAST, 2, 7.0)
    assert refused_s(refused, gangs, gangs[0]) == 7.0
    assert refused_s(refused, gangs, gangs[1]) < 0.0 > refused_s(refused, gangs, gangs[2])
    note_refusal(refused, gangs, EAST, 1, 9.0)
    assert refused_s(refused, gangs, gangs[1]) == refused_s(refused, gangs, gangs[0]) == 9.0
    assert largest_within(gangs, EAST, 3) == 1
    assert largest_within(gangs, EAST, 1) == 1


@pytest.mark.parametrize("rule", list(DeadlineRule))
def test_a_gang_that_is_always_there_costs_its_time_on_spot_machines(rule: DeadlineRule) -> None:
    outcome = run(always(4, 4), job(), Deadline(rule, 18 * HOUR_S, models=MODELS))
    assert is_in_time(outcome, 18.0)
    assert outcome.cost_usd == pytest.approx(4 * (12.0 + 300.0 / HOUR_S) * 1.0, rel=1e-3)
    assert len([lease for lease in outcome.leases if lease.is_charged]) == 4


def test_machines_that_are_too_few_are_given_back_at_once() -> None:
    """Three of four are always there: a whole gang runs on demand, and hardly pays for what it cannot use."""
    outcome = run(always(3, 0), job(), Deadline(deadline_s=18 * HOUR_S, models=MODELS))
    assert is_in_time(outcome, 18.0)
    on_demand_usd = 4 * (12.0 + 300.0 / HOUR_S) * ON_DEMAND_USD
    assert on_demand_usd < outcome.cost_usd
    spot = [lease for lease in outcome.leases if not lease.on_demand and lease.is_charged]
    assert spot
    assert all(lease.ended_s - lease.started_s <= 300.0 for lease in spot)


@pytest.mark.long
def test_an_elastic_job_trains_on_what_there_is() -> None:
    """Two of four machines: half as fast, as cheap; with 30 h for 12 h of work that is in time."""
    outcome = run(always(2, 0), job(machines=ELASTIC), Deadline(deadline_s=30 * HOUR_S, models=MODELS))
    assert is_in_time(outcome, 30.0)
    assert outcome.cost_usd == pytest.approx(4 * 12.0, rel=0.02)
    assert not any(lease.on_demand and lease.is_charged for lease in outcome.leases)
    # In half the time it needs machines on demand at the end, and is in time.
    short = run(always(2, 0), job(machines=ELASTIC), Deadline(deadline_s=18 * HOUR_S, models=MODELS))
    assert is_in_time(short, 18.0)
    assert 4 * 12.0 < short.cost_usd < 4 * 12.5 * ON_DEMAND_USD


def test_an_elastic_job_grows_where_it_is() -> None:
    """Two machines for three hours, then four, of which two are too slow: the two are kept, and two more join."""
    counts = always(4, 0)
    counts[0, :18] = 2
    outcome = run(
        counts, job(machines=ELASTIC), Deadline(deadline_s=20 * HOUR_S, models=MODELS, ask_every_s=600.0)
    )
    assert is_in_time(outcome, 20.0)
    charged = [lease for lease in outcome.leases if lease.is_charged]
    assert {lease.market for lease in charged} == {EAST}
    assert len([lease for lease in charged if lease.ended_s - lease.started_s > 12 * HOUR_S]) >= 2
    assert not any(lease.on_demand for lease in charged)
    assert outcome.cost_usd == pytest.approx(4 * 12.0, rel=0.03)


def test_an_elastic_job_goes_on_with_those_that_are_left() -> None:
    """Four machines for two hours, which fewer could not make good, then three."""
    counts = always(4, 0)
    counts[0, 12:] = 3
    outcome = run(counts, job(machines=ELASTIC), Deadline(deadline_s=16 * HOUR_S, models=MODELS))
    assert is_in_time(outcome, 16.0)
    charged = [lease for lease in outcome.leases if lease.is_charged]
    assert len([lease for lease in charged if lease.state is LeaseState.REVOKED]) == 1
    assert not any(lease.on_demand for lease in charged)
    assert outcome.cost_usd == pytest.approx(4 * 12.0, rel=0.03)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=40, max_size=40),
    st.sampled_from(list(DeadlineRule)),
    st.sampled_from([4, ELASTIC, {"min": 2, "max": 4}]),
    st.sampled_from([13.0, 16.0, 24.0]),
    st.sampled_from(["ec2-second", "gcp-spot"]),
)
def test_no_deadline_is_missed_whatever_part_of_a_gang_there_is(
    numbers: list[int], rule: DeadlineRule, machines: object, deadline_h: float, billing: str
) -> None:
    """Ten spells a zone of any size, each of 70 minutes; after them there is nothing."""
    counts = np.repeat(np.array(numbers).reshape(2, 20), 7, axis=1)
    counts = np.concatenate([counts, np.zeros((2, HOURS * 6 - counts.shape[1]), dtype=int)], axis=1)
    policy = Deadline(rule, deadline_h * HOUR_S, models=MODELS, start_s=300.0)
    outcome = run(counts, job(machines=machines), policy, billing)
    assert is_in_time(outcome, deadline_h)
    charged = [lease for lease in outcome.leases if lease.is_charged]
    # At a move the new gang starts while the old one works.
    moments = sorted({lease.started_s for lease in charged})
    assert max(sum(one.started_s <= at < one.ended_s for one in charged) for at in moments) <= 8


# Most spells end within ten minutes; one of twenty minutes lasts for hours.
_BRIEF = SpellModel(np.array([[1.0] * BINS, [6.0 if age_s < 1200.0 else 0.05 for age_s in AGE_BINS_S]]))


def brief_spells(number: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [
        np.stack([_BRIEF.drawn(HOURS * 6, TICK_S, random) for _ in range(2)]).astype(int) * 4
        for _ in range(number)
    ]


def test_watching_young_spells_pays_where_a_start_is_long() -> None:
    """On drawn records; the table expects it."""
    usd, expected = {}, {}
    prices = np.repeat(np.array([[4.0], [4.8]]), HOURS * 6, axis=1)
    for look_s in (60.0, np.inf):
        problem = zones_problem(
            [(str(Gang(market, 4)), market.place) for market in (EAST, WEST)],
            (4.0, 4.8),
            4 * ON_DEMAND_USD,
            work_h=12.0,
            deadline_h=24.0,
            restart_h=0.5,
            checkpoint_bytes=2**30,
            look_s=look_s,
        )
        table = solve_zones(problem, [_BRIEF, _BRIEF], ask_every_s=7200.0)
        runs = [
            run_zones(TABLE, problem, ZonesTape(counts >= 4, prices, TICK_S), 0, 7200.0, table)
            for counts in brief_spells(200)
        ]
        assert all(late_h == 0.0 for _, _, late_h, *_ in runs)
        usd[look_s] = np.mean([run[0] for run in runs])
        chances, costs = table.beginnings()
        expected[look_s] = float(chances @ costs)
    assert expected[60.0] < 0.95 * expected[np.inf]
    assert usd[60.0] < 0.85 * usd[np.inf]


@pytest.mark.long
def test_a_watched_zone_is_asked_once_a_decision_and_its_machines_are_given_back() -> None:
    costs: dict[bool, list[float]] = {True: [], False: []}
    looks, watched = 0, set()
    for counts in brief_spells(3):
        for watches in (True, False):
            policy = Deadline(deadline_s=12 * HOUR_S, models=SpellModels(_BRIEF), start_s=1800.0, watches=watches)
            outcome = run(counts, job(6.0), policy, boot_s=1800.0)
            assert is_in_time(outcome, 12.0)
            costs[watches].append(outcome.cost_usd)
            if watches:
                seen = [lease for lease in outcome.leases if lease.is_charged and not lease.on_demand]
                brief = [lease for lease in seen if lease.ended_s - lease.started_s <= 60.0]
                looks += len(brief)
                assert all(lease.state is LeaseState.RELEASED for lease in brief)
                watched |= {lease.market for lease in brief}
                times_s = sorted({lease.started_s for lease in brief})
                assert min(np.diff(times_s), default=600.0) >= 60.0
    assert looks > 4 * 3
    assert watched == {EAST, WEST}
    assert np.mean(costs[True]) < 1.02 * np.mean(costs[False])


@pytest.mark.parametrize(("machines", "east"), [(4, 3), ({"min": 3, "max": 4}, 2), (4, 0)])
def test_what_comes_in_part_is_not_asked_for_again_and_again(machines: object, east: int) -> None:
    """With little time left a gang works on demand; what it asks for beside that costs little, and is not much."""
    outcome = run(always(east, 0), job(machines=machines), Deadline(deadline_s=13 * HOUR_S, models=MODELS))
    assert is_in_time(outcome, 13.0)
    assert outcome.cost_usd < 1.06 * 4 * (12.0 + 300.0 / HOUR_S) * ON_DEMAND_USD
    assert len(outcome.leases) < 1000


# As fitted to a gang of sixteen: most spells end early, those that do not last for days.
_HEAVY = [
    SpellModel(np.array([down, up]))
    for down, up in (
        (
            [1.9, 1.1, 0.8, 0.5, 0.2, 0.2, 0.05, 0.06, *[0.01] * 4],
            [2.5, 2, 0.9, 0.9, 0.5, 0.4, 0.2, 0.1, *[0.01] * 4],
        ),
        (
            [5.2, 2.3, 2.3, 1.1, 0.6, 0.4, 0.1, 0.1, *[0.02] * 4],
            [1.9, 2, 0.7, 0.6, 0.5, 0.4, 0.2, 0.1, *[0.01] * 4],
        ),
    )
]


def test_machines_that_are_as_good_as_each_other_are_not_swapped() -> None:
    """Both zones are always there and nobody saw their spells begin: one is held to the end."""
    problem = zones_problem(
        [("a", EAST.place), ("b", EAST.place)],
        [38.5, 38.0],
        165.0,
        work_h=40.0,
        deadline_h=60.0,
        restart_h=0.2,
        checkpoint_bytes=0,
    )
    table = solve_zones(problem, _HEAVY, ask_every_s=0.0)
    tape = ZonesTape(np.ones((2, 400), dtype=bool), np.array([[38.5], [38.0]]) * np.ones((2, 400)), TICK_S)
    _, _, late_h, started, _ = run_zones(TABLE, problem, tape, 0, 0.0, table)
    assert (late_h, started) == (0.0, 1)


@pytest.mark.parametrize("machines", [1, 4])
def test_a_spell_whose_beginning_nobody_saw_is_no_younger_once_a_machine_is_held(machines: int) -> None:
    """East refuses at first, and is asked again only when west's machines go, three and a half hours later."""
    ages_s = []

    class Noting(Deadline):
        def _answer(
            self, view: View, job: JobView, now: ZonesNow, own: dict[str, Any], memory: dict[str, Any]
        ) -> int:
            answer = super()._answer(view, job, now, own, memory)
            if now.held == SPOT and own["zone"] == 0:
                ages_s.append(now.age_s)
            return answer

    counts = always(0, 4)
    counts[1, 24:] = 0
    counts[0, 3:] = 4
    policy = Noting(deadline_s=18 * HOUR_S, models=SpellModels(_BRIEF), ask_every_s=24 * HOUR_S)
    outcome = run(counts, job(machines=machines), policy, boot_s=100.0)
    assert is_in_time(outcome, 18.0)
    assert ages_s[0] > 1200.0
