"""Deadlines on the engine: against the compiled runs, on any record in time, and refusals that say what is wrong."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import TRACES
from tests.markets import history

import ebbtide as eb
from ebbtide.base.compiled_records import FAILOVER, TABLE, ZonesTape
from ebbtide.base.utc import HOUR_S
from ebbtide.engine.outcome import Outcome
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels, fit_market_spells, probes_of
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.jobs.job import Job
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.market.billing import billing_preset
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.events import Wake
from ebbtide.policies.backoff import BacksOff, backing_off
from ebbtide.policies.deadline.costs import zones_problem
from ebbtide.policies.deadline.gangs import Gang
from ebbtide.policies.deadline.policy import Deadline, DeadlineRule
from ebbtide.policies.deadline.table import solve_zones
from ebbtide.policies.ebbtide.policy import Ebbtide
from ebbtide.policies.registry import policy
from ebbtide.replay.replayed_market import ReplayedMarket
from ebbtide.replay.scenario import Scenario
from ebbtide.replay.start_delay import StartDelay
from ebbtide_papers.deadlines.deadline_runs import run_zones
from ebbtide_papers.deadlines.zone_sets import read_probed_zones

EAST = Market("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
WEST = Market("aws", "us-west-2", "us-west-2b", "p3.2xlarge")
TICK_S, HOURS = 600.0, 72
BINS = len(AGE_BINS_S)
MODELS = SpellModels(
    SpellModel(np.array([[0.8] * BINS, [0.3] * BINS])),
    {str(WEST): SpellModel(np.array([[0.5] * BINS, [0.5] * BINS]))},
)
PRICES = history({EAST: [(0, 1.0)], WEST: [(0, 1.2)]}, hours=float(HOURS))
BEGINS_S = PRICES.start_s


def job(hours: float = 12.0, **changes: object) -> Job:
    checkpoint = {"save_s": 0, "restore_s": 0, "size_bytes": 5 * 2**30}
    content = {
        "name": "j",
        "steps": int(hours * 3600),
        "steps_per_hour": {"p3.2xlarge": 3600.0},
        "checkpoint": checkpoint,
    }
    return Job.model_validate(content | changes)


def recorded(available: np.ndarray) -> Availability:
    times_s = BEGINS_S + np.arange(available.shape[1]) * TICK_S
    end_s = float(times_s[-1]) + TICK_S
    both = zip((EAST, WEST), available, strict=True)
    return Availability({market: CapacitySeries(times_s, up.astype(int) * 9, end_s) for market, up in both})


def scenario(available: np.ndarray, *jobs: Job, boot_s: float = 720.0, billing: str = "gcp-spot") -> Scenario:
    return Scenario(
        jobs or (job(),),
        PRICES,
        billing_preset(billing),
        availability=recorded(available),
        delay=StartDelay(0.0, boot_s),
    )


def is_late(outcome: Outcome, hours: float) -> bool:
    return not outcome.finished or outcome.makespan_s > hours * HOUR_S + 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("rule", "number"), [(DeadlineRule.TABLE, TABLE), (DeadlineRule.FAILOVER, FAILOVER)])
def test_the_engine_and_the_compiled_runs_agree(rule: DeadlineRule, number: int) -> None:
    """Twelve hours of work in eighteen, on drawn records: the engine asks and pays, the compiled run computes."""
    problem = zones_problem(
        [(str(EAST), EAST.place), (str(WEST), WEST.place)],
        (1.0, 1.2),
        3.06,
        work_h=12.0,
        deadline_h=18.0,
        restart_h=0.2,
        checkpoint_bytes=5 * 2**30,
    )
    table = solve_zones(problem, [MODELS.of(EAST), MODELS.of(WEST)], begins_s=BEGINS_S, ask_every_s=7200.0)
    random = np.random.default_rng(2)
    engine, compiled = [], []
    for _ in range(30):
        up = np.stack([MODELS.of(market).drawn(HOURS * 6, TICK_S, random) for market in (EAST, WEST)])
        outcome = scenario(up).run(Deadline(rule, 18 * HOUR_S, models=MODELS, start_s=720.0), BEGINS_S)
        assert not is_late(outcome, 18.0)
        engine.append(outcome.cost_usd)
        prices = np.repeat(np.array([[1.0], [1.2]]), up.shape[1], axis=1)
        tape = ZonesTape(up, prices, TICK_S)
        usd, _, late_h, *_ = run_zones(number, problem, tape, 0, 7200.0, table)
        assert late_h == 0.0
        compiled.append(usd)
    # A machine that is noticed works two minutes on; one that comes is there before the last is given back.
    assert np.mean(engine) == pytest.approx(np.mean(compiled), rel=0.04)
    assert np.corrcoef(engine, compiled)[0, 1] > 0.8


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.booleans(), min_size=40, max_size=40),
    st.sampled_from(list(DeadlineRule)),
    st.sampled_from([13.0, 15.0, 20.0]),
    st.sampled_from(["ec2-second", "gcp-spot"]),
)
def test_no_deadline_is_missed_on_any_record(
    bits: list[bool], rule: DeadlineRule, deadline_h: float, billing: str
) -> None:
    """Ten spells a zone of any pattern, each of 70 minutes."""
    available = np.repeat(np.array(bits).reshape(2, 20), 7, axis=1)
    up = np.concatenate([available, np.zeros((2, HOURS * 6 - available.shape[1]), dtype=bool)], axis=1)
    run = scenario(up, boot_s=300.0, billing=billing)
    outcome = run.run(Deadline(rule, deadline_h * HOUR_S, models=MODELS, start_s=300.0), BEGINS_S)
    assert not is_late(outcome, deadline_h)
    assert outcome.cost_usd == pytest.approx(outcome.ledger.total_usd)


def test_where_spot_is_always_to_be_had_nothing_else_is_rented() -> None:
    always = np.ones((2, HOURS * 6), dtype=bool)
    for rule in DeadlineRule:
        outcome = scenario(always).run(Deadline(rule, 20 * HOUR_S, models=MODELS, start_s=720.0), BEGINS_S)
        assert [(lease.market, lease.on_demand) for lease in outcome.leases] == [(EAST, False)]
        assert outcome.cost_usd == pytest.approx(12.2)


def test_without_spot_machines_it_is_on_demand_and_in_time() -> None:
    never = np.zeros((2, HOURS * 6), dtype=bool)
    for rule in DeadlineRule:
        outcome = scenario(never).run(Deadline(rule, 14 * HOUR_S, models=MODELS, start_s=720.0), BEGINS_S)
        assert not is_late(outcome, 14.0)
        held = [lease for lease in outcome.leases if lease.is_charged]
        assert all(lease.on_demand for lease in held)
        # `deadline` may give the machine back once, to wait for spot, while there is time.
        assert outcome.cost_usd == pytest.approx((12.0 + 0.2 * len(held)) * 3.06)
        assert len(held) <= (2 if rule is DeadlineRule.TABLE else 1)


def test_saves_while_it_trains_count_as_time() -> None:
    # 12 h of work with a minute of every ten for saves are 13 h 20 min.
    never = np.zeros((2, HOURS * 6), dtype=bool)
    saved = {"save_s": 60, "restore_s": 0, "interval_s": 600, "size_bytes": 0}
    for rule in DeadlineRule:
        rule_s = Deadline(rule, 15 * HOUR_S, models=MODELS, start_s=720.0)
        assert not is_late(scenario(never, job(checkpoint=saved)).run(rule_s, BEGINS_S), 15.0)
    with pytest.raises(InputError, match=r"cannot be done in 13\.0 h: on the fastest machine it takes 13\.3 h"):
        scenario(never, job(checkpoint=saved)).run(Deadline(deadline_s=13 * HOUR_S, models=MODELS), BEGINS_S)


def test_what_cannot_be_saved_is_not_put_on_a_machine_that_can_be_taken() -> None:
    always = np.ones((2, HOURS * 6), dtype=bool)
    outcome = scenario(always, job(checkpoint=None)).run(Deadline(models=MODELS), BEGINS_S)
    assert all(lease.on_demand for lease in outcome.leases)


def test_refusals_say_what_is_wrong() -> None:
    always = np.ones((2, HOURS * 6), dtype=bool)
    with pytest.raises(InputError, match="cannot be done in 12.0 h: on the fastest machine it takes 12.0 h"):
        scenario(always).run(Deadline(deadline_s=12 * HOUR_S), BEGINS_S)
    with pytest.raises(InputError, match="field look_every_s: is 0.0; it must be from 1 to 86400"):
        Deadline(look_every_s=0.0)
    unknown = Market("gcp", "moon-1", "moon-1-a", "a2-highgpu-1g")
    prices = history({unknown: [(0, 1.0)]}, hours=72.0)
    work = Job(name="j", steps=10, steps_per_hour={"a2-highgpu-1g": 1.0})
    with pytest.raises(InputError, match="no market with a known on-demand price"):
        eb.backtest(work, [Deadline()], prices, billing="gcp-spot", starts=1)


def test_by_name_it_takes_one_and_a_half_times_the_work() -> None:
    never = np.zeros((2, HOURS * 6), dtype=bool)
    for name in ("deadline", "uniform-progress", "next-cheapest", "greedy-spot"):
        outcome = scenario(never, boot_s=240.0).run(policy(name), BEGINS_S)
        assert outcome.policy == name
        assert not is_late(outcome, 18.0)


def test_a_deadline_that_is_not_given_leaves_time_for_starts() -> None:
    """One and a half times the work of a minute is less than a machine takes to start."""
    outcome = scenario(np.ones((2, HOURS * 6), bool), job(1 / 60)).run(policy("deadline"), BEGINS_S)
    assert outcome.finished
    with pytest.raises(InputError, match="cannot be done in 6 min: on the fastest machine it takes 1 min"):
        scenario(np.ones((2, HOURS * 6), bool), job(1 / 60)).run(Deadline(deadline_s=360.0), BEGINS_S)


@pytest.mark.long
@pytest.mark.parametrize(
    "chosen", [Deadline(deadline_s=30 * HOUR_S), Ebbtide(deadline_s=30 * HOUR_S)], ids=lambda one: one.name
)
def test_in_a_shortage_each_market_is_asked_once_a_minute(chosen: Any) -> None:
    nothing = np.zeros((2, HOURS * 6), dtype=bool)
    delay = StartDelay(20.0, 60.0)
    short = Scenario((job(12.0),), PRICES, billing_preset("gcp-spot"), availability=recorded(nothing), delay=delay)
    outcome = short.run(backing_off(chosen), BEGINS_S, record=True)
    refused = [lease for lease in outcome.leases if lease.state is LeaseState.FAILED]
    for market in (EAST, WEST):
        times_s = sorted(lease.requested_s for lease in refused if lease.market == market)
        # A refusal takes 20 s to come.
        assert np.diff(times_s).min() >= 80.0
        assert len(times_s) >= 15 * 60 * 60 / 100.0
    assert not is_late(outcome, 30.0)


def test_markets_that_are_backed_off_from_are_not_asked() -> None:
    """As on EC2: who has just refused is not shown for a while."""
    up = np.repeat(np.array([[1, 0, 0, 1], [0, 0, 1, 0]], dtype=bool), HOURS * 6 // 4, axis=1)[:, : HOURS * 6]
    plain = scenario(up).run(Deadline(deadline_s=20 * HOUR_S, models=MODELS, start_s=720.0), BEGINS_S)
    spared = scenario(up).run(BacksOff(Deadline(deadline_s=20 * HOUR_S, models=MODELS, start_s=720.0)), BEGINS_S)
    assert not is_late(spared, 20.0)
    failed = [sum(lease.state is LeaseState.FAILED for lease in one.leases) for one in (plain, spared)]
    assert failed[1] <= failed[0]
    # Where all refuse spot machines, one on demand is still available.
    never = scenario(np.zeros((2, HOURS * 6), dtype=bool))
    assert not is_late(never.run(BacksOff(Deadline(deadline_s=14 * HOUR_S, start_s=720.0)), BEGINS_S), 14.0)


@pytest.mark.long
@pytest.mark.parametrize("chosen", [Deadline(deadline_s=20 * HOUR_S), Ebbtide(deadline_s=20 * HOUR_S)])
def test_where_an_on_demand_machine_is_refused_the_next_zone_is_asked(
    chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No spot machines, and in the zone that is asked first no on-demand machine either."""
    start = ReplayedMarket._start
    first: list[Market] = []

    def refusing(market: ReplayedMarket, lease: Any) -> Any:
        if lease.on_demand and not first:
            first.append(lease.market)
        if lease.on_demand and lease.market == first[0]:
            lease.state, lease.ended_s = LeaseState.FAILED, market.now_s
            return market._event(Wake.LAUNCH_FAILED, lease, "no capacity")
        return start(market, lease)

    monkeypatch.setattr(ReplayedMarket, "_start", refusing)
    never = recorded(np.zeros((2, HOURS * 6), dtype=bool))
    outcome = Scenario((job(),), PRICES, billing_preset("gcp-spot"), never).run(chosen, BEGINS_S)
    assert outcome.finished
    assert outcome.makespan_s <= 20 * HOUR_S
    asked = [lease.market for lease in outcome.leases if lease.on_demand]
    assert set(asked) == {EAST, WEST}
    assert len(asked) <= 6


def test_where_on_demand_machines_are_refused_everywhere_all_are_asked_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a spot machine that comes is taken, though it may be late."""
    start = ReplayedMarket._start

    def refusing(market: ReplayedMarket, lease: Any) -> Any:
        if lease.on_demand:
            lease.state, lease.ended_s = LeaseState.FAILED, market.now_s
            return market._event(Wake.LAUNCH_FAILED, lease, "no capacity")
        return start(market, lease)

    monkeypatch.setattr(ReplayedMarket, "_start", refusing)
    times_s = BEGINS_S + np.array([0.0, 14.0]) * HOUR_S
    series = CapacitySeries(times_s, np.array([0, 1]), BEGINS_S + HOURS * HOUR_S)
    came = Availability({EAST: series, WEST: series})
    asked = Deadline(deadline_s=16 * HOUR_S)
    outcome = Scenario((job(),), PRICES, billing_preset("gcp-spot"), came).run(asked, BEGINS_S)
    assert outcome.finished
    for market in (EAST, WEST):
        for on_demand in (False, True):
            times = [
                one.requested_s for one in outcome.leases if (one.market, one.on_demand) == (market, on_demand)
            ]
            assert np.diff(times).min(initial=60.0) >= 60.0


def test_what_it_remembers_is_plain() -> None:
    """A controller that is stopped goes on from JSON."""
    from ebbtide.engine.engine import Engine
    from ebbtide.replay.replay import ReplayProvider
    from ebbtide.replay.replayed_market import ReplayedMarket

    up = np.repeat(np.array([[1, 0, 1], [0, 1, 0]], dtype=bool), HOURS * 2, axis=1)
    billing = billing_preset("gcp-spot")
    market = ReplayedMarket(PRICES, BEGINS_S, billing, availability=recorded(up))
    engine = Engine(Deadline(deadline_s=20 * HOUR_S, models=MODELS), [job()], ReplayProvider(market), billing)
    engine.run()
    assert json.loads(json.dumps(engine.memory)) == engine.memory


@pytest.mark.long
def test_a_sweep_under_a_deadline_where_capacity_decides() -> None:
    """Six trials compared half way: the best two go on, all on machines that the deadline's table rents."""
    random = np.random.default_rng(7)
    up = np.stack([MODELS.of(market).drawn(HOURS * 6, TICK_S, random) for market in (EAST, WEST)])
    trials = tuple(job(6.0, name=f"t{n}") for n in range(6))
    at = np.linspace(0.01, 1.0, 50)
    curves = tuple(
        Curve("s", one.name, at * one.steps, 1 / (1 + 9 * at) + 0.1 * n, float(one.steps))
        for n, one in enumerate(trials)
    )
    run = Scenario(
        trials, PRICES, billing_preset("ec2-second"), availability=recorded(up), delay=StartDelay(), curves=curves
    )
    decides = Ebbtide(deadline_s=10 * HOUR_S, theta=0.5, mcnt=2, selects=True, spells=MODELS)
    outcome = run.run(decides, BEGINS_S)
    assert not is_late(outcome, 10.0)
    done = [one.steps_done / one.job.steps for one in outcome.jobs]
    assert done[:2] == pytest.approx([1.0, 1.0])
    assert all(0.49 < share < 0.56 for share in done[2:])
    assert outcome.refund_usd >= 0.0


def test_what_a_run_sees_of_its_zones_goes_into_its_models() -> None:
    """In the east machines go after forty minutes: thrice as often as the models have it."""
    tick = np.arange(HOURS * 6)
    up = np.stack([tick % 8 < 4, np.zeros_like(tick, dtype=bool)])
    policy = Deadline(DeadlineRule.TABLE, 18 * HOUR_S, models=MODELS, start_s=300.0, learn_every_s=6 * HOUR_S)
    asked: list[tuple[float, SpellModel]] = []

    class Watched(Deadline):
        def _model(self, gang: Gang, own: dict[str, Any], memory: dict[str, Any]) -> SpellModel:
            found = super()._model(gang, own, memory)
            if gang.market == EAST:
                asked.append((own.get("learnt_s", BEGINS_S), found))
            return found

    watched = Watched(**{one.name: getattr(policy, one.name) for one in fields(policy)})
    outcome = scenario(up).run(watched, BEGINS_S)
    assert not is_late(outcome, 18.0)
    before = [model for learnt_s, model in asked if learnt_s <= BEGINS_S]
    after = [model for learnt_s, model in asked if learnt_s > BEGINS_S]
    assert {model.ends_within(UP, 0.0, HOUR_S) for model in before} == {
        MODELS.of(EAST).ends_within(UP, 0.0, HOUR_S)
    }
    assert after
    assert min(model.ends_within(UP, 0.0, HOUR_S) for model in after) > MODELS.of(EAST).ends_within(
        UP, 0.0, HOUR_S
    )


def test_a_run_that_learns_keeps_its_deadline_and_decides_the_same_twice() -> None:
    random = np.random.default_rng(4)
    policy = Deadline(DeadlineRule.TABLE, 18 * HOUR_S, models=MODELS, start_s=720.0, learn_every_s=6 * HOUR_S)
    for _ in range(3):
        up = np.stack([MODELS.of(market).drawn(HOURS * 6, TICK_S, random) for market in (EAST, WEST)])
        one, two = (scenario(up).run(policy, BEGINS_S) for _ in range(2))
        assert not is_late(one, 18.0)
        assert (one.cost_usd, len(one.leases)) == (two.cost_usd, len(two.leases))


def test_its_own_probes_teach_it() -> None:
    """What a run asked for and held, fitted: a zone that is mostly down differs from one that is mostly up."""
    random = np.random.default_rng(8)
    up = np.stack([random.random(HOURS * 6) < 0.95, random.random(HOURS * 6) < 0.1])
    outcome = scenario(up, job(20.0)).run(
        Deadline(DeadlineRule.GREEDY, 40 * HOUR_S, start_s=720.0, retry_s=TICK_S), BEGINS_S
    )
    probes = probes_of(outcome.leases, outcome.end_s)
    asked = {(row.zone, row.available) for row in probes.itertuples()}
    assert ("us-east-1a", 1) in asked
    assert ("us-west-2b", 0) in asked
    seen = probes.groupby("zone")["available"].mean()
    assert seen["us-east-1a"] > 0.8 > 0.4 > seen["us-west-2b"]
    # Ticks are torn in one of twenty: in the mean an up spell of east lasts some three hours.
    left_h = fit_market_spells(probes).of(EAST).mean_left_s(UP, 0.0) / HOUR_S
    assert 1.0 < left_h < 8.0


def recorded_v100() -> tuple[eb.PriceHistory, Availability, np.ndarray]:
    """Recorded V100 prices and capacity of 2023, and the times of its ticks, seconds since 1970."""
    files = TRACES / "ec2-gpu-availability-2022-2023.parquet", [TRACES / "ec2-v100-2023.parquet"]
    records = read_probed_zones(*files)[0]
    times_s = records.times_s()
    markets = [
        Market("aws", place.region, zone, "p3.2xlarge")
        for zone, place in zip(records.zones, records.places, strict=True)
    ]
    end_s = float(times_s[-1]) + records.tick_s
    capacity = {
        market: CapacitySeries(times_s, up.astype(int), end_s)
        for market, up in zip(markets, records.available, strict=True)
    }
    return eb.PriceHistory.read(TRACES / "ec2-v100-2023.parquet"), Availability(capacity), times_s


@pytest.mark.long
@pytest.mark.real_traces
def test_on_real_zones_every_policy_is_in_time() -> None:
    """40 h in 60 h, from three starts; and deadline costs least."""
    prices, capacity, times_s = recorded_v100()
    run = Scenario((job(40.0),), prices, billing_preset("ec2-second"), availability=capacity)
    mean_usd = {}
    for rule in DeadlineRule:
        found = [run.run(Deadline(rule, 60 * HOUR_S), float(times_s[tick])) for tick in (5_600, 8_200, 12_100)]
        assert not any(is_late(outcome, 60.0) for outcome in found)
        mean_usd[rule] = np.mean([outcome.cost_usd for outcome in found])
    assert mean_usd[DeadlineRule.TABLE] < mean_usd[DeadlineRule.FAILOVER]
    assert mean_usd[DeadlineRule.TABLE] < 0.4 * 40 * 3.06


@pytest.mark.real_traces
def test_no_on_demand_machine_is_paid_for_and_given_back_before_it_worked() -> None:
    """40 h in 46 h where a start takes half an hour, from four starts: on demand is needed, and none of it is idle."""
    prices, capacity, times_s = recorded_v100()
    delay = StartDelay(0.0, HOUR_S / 2)
    run = Scenario((job(40.0),), prices, billing_preset("ec2-second"), availability=capacity, delay=delay)
    bought: list[Lease] = []
    for start_s in times_s[np.linspace(3_000, len(times_s) - 900, 4).astype(int)]:
        outcome = run.run(Deadline(DeadlineRule.TABLE, 46 * HOUR_S, start_s=HOUR_S / 2), float(start_s))
        assert not is_late(outcome, 46.0)
        bought += [lease for lease in outcome.leases if lease.on_demand and lease.is_charged]
    assert bought
    assert not [lease for lease in bought if not lease.ended_s > lease.running_s + 60.0]


def test_a_refused_request_does_not_move_where_the_last_machine_was() -> None:
    """The checkpoint lies where a machine worked last, so what a move costs is counted from there."""
    zones: list[tuple[int, bool]] = []

    class Told(Deadline):
        def decide(self, view: Any) -> Any:
            yield from super().decide(view)
            own = view.memory["deadline"]["jobs"].get("0", {})
            held = any(lease.is_booted and not lease.on_demand for lease in view.leases_of(0))
            if "zone" in own:
                zones.append((own["zone"], held))

    # The east has a machine for four hours and again after four; the west never has one.
    up = np.zeros((2, HOURS * 6), dtype=bool)
    up[0, :24] = up[0, 48:] = True
    outcome = scenario(up).run(Told(DeadlineRule.FAILOVER, 30 * HOUR_S, models=MODELS, start_s=720.0), BEGINS_S)
    assert {lease.market for lease in outcome.leases if lease.state is LeaseState.FAILED} == {EAST, WEST}
    worked = next(place for place, (_, held) in enumerate(zones) if held)
    assert {zone for zone, _ in zones[worked:]} == {zones[worked][0]}
