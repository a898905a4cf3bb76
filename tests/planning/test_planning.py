"""Plans: ranges from backtests, prices alone where speed is unknown, and refusals with their arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.markets import C3, R3, history

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.models import default_spell_models
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.availability import Availability, CapacitySeries
from ebbtide.planning.planning import plan
from ebbtide.policies.budget import WithinBudget
from ebbtide.policies.for_job import policy_for
from ebbtide.policies.registry import DEFAULT_NAME
from ebbtide.replay.stand_in_curves import stand_in_curves

CALM = history({C3: [(0, 0.36)], R3: [(0, 0.10)]}, hours=14 * 24.0)


def sweep(**changes: Any) -> Sweep:
    content = {
        "name": "s",
        "command": "train --lr {lr}",
        "grid": {"lr": [0.1, 0.03, 0.01, 0.003]},
        "metric": "loss",
        "max_trial_steps": 3600,
        "mcnt": 1,
        "steps_per_hour": {"c3.xlarge": 3600.0, "r3.large": 1800.0},
        "billing": "gcp-spot",
    }
    return Sweep.model_validate(content | changes)


def test_on_prices_that_stand_still_the_estimate_is_the_sum() -> None:
    """r3 costs 0.10 for half the speed: 0.7 of four trials of two hours, and the rest of the best one."""
    found = plan(sweep(), CALM, runs=5)
    assert found.estimate is not None
    hours = 4 * 0.7 * 2 + 0.3 * 2
    assert found.estimate.cost_usd.mean == pytest.approx(0.10 * hours, rel=0.05)
    assert found.estimate.cost_usd.low <= found.estimate.cost_usd.mean <= found.estimate.cost_usd.high
    assert found.estimate.duration_h.mean == pytest.approx(2.0, rel=0.06)
    assert found.estimate.rivals_usd["cheapest-spot"] == pytest.approx(0.80, rel=0.05)
    assert found.offers[0].market == R3
    # Half a step a second, and what the saves in between take.
    assert 2.0 < found.offers[0].seconds_per_step < 2.001
    assert found.estimate.over_budget is None


def test_the_chance_of_going_over_budget_and_past_the_deadline() -> None:
    estimates = [plan(sweep(budget_usd=usd, deadline_h=5), CALM, runs=2).estimate for usd in (0.3, 3.0)]
    assert [found.over_budget for found in estimates if found] == [1.0, 0.0]
    assert [found.past_deadline for found in estimates if found] == [0.0, 0.0]
    late = plan(sweep(deadline_h=0.5), CALM, runs=2).estimate
    assert late is not None
    assert late.past_deadline == 1.0


def test_without_a_measured_speed_there_are_prices_and_no_duration() -> None:
    found = plan(sweep(steps_per_hour={}), CALM)
    assert found.estimate is None
    assert not found.offers
    assert "not measured" in found.notes[0]
    assert [quote.usd_per_hour for quote in found.quotes] == [0.10, 0.36]


def test_what_cannot_be_checkpointed_and_is_too_long_is_refused_with_the_arithmetic() -> None:
    """Every three hours the price is above the list price for one: nothing lives for ten."""
    points = [point for n in range(80) for point in ((n * 14_400.0, 0.1), (n * 14_400.0 + 10_800.0, 5.0))]
    prices = history({C3: points}, hours=14 * 24.0)
    long = sweep(checkpoint=None, max_trial_steps=36_000, billing="ec2-second")
    with pytest.raises(InputError, match=r"36000 steps / 3600 an hour \+ 2 min to start = 10.0 h.*chance of 0%"):
        plan(long, prices)
    with pytest.raises(InputError, match="no machine lives longer than 24 h under gcp-preemptible"):
        plan(sweep(checkpoint=None, max_trial_steps=108_000, billing="gcp-preemptible"), prices)
    short = plan(sweep(checkpoint=None, max_trial_steps=1_800, billing="ec2-second"), prices, runs=3)
    assert short.estimate is not None


def test_a_checkpoint_too_large_for_the_notice_is_saved_periodically_and_said() -> None:
    large = {"size_bytes": 20_000_000_000, "by_machine": True}
    found = plan(sweep(checkpoint=large, billing="ec2-second"), CALM, runs=2)
    assert "longer than the notice of 120 s leaves: trials are saved every" in found.notes[0]
    assert not plan(sweep(billing="ec2-second"), CALM, runs=2).notes


def test_the_policy_of_a_sweep_keeps_its_budget() -> None:
    capped = sweep(budget_usd=0.2)
    policy = policy_for(capped, DEFAULT_NAME)
    assert isinstance(policy, WithinBudget)
    prices = eb.generate_prices(days=5, seed=1, kind="auction")
    result = eb.backtest(capped.jobs(), [policy], prices, starts=5, seed=1)
    assert all(outcome.cost_usd <= 0.2 for outcome in result.outcomes[policy.name])
    assert policy_for(sweep(), DEFAULT_NAME).name == DEFAULT_NAME


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = sweep(budget_usd=5.0, other_steps_per_hour_per_vcpu=900.0).model_dump(mode="json", exclude_none=True)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    for name in ("one", "two"):
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "plan",
                    str(tmp_path / "sweep.yaml"),
                    "--generate",
                    "6",
                    "--runs",
                    "3",
                    "--days",
                    "5",
                    "--json",
                    str(tmp_path / f"{name}.json"),
                ]
            )
        assert not ended.value.code
    told = capsys.readouterr().out
    assert "cost: " in told
    assert "budget: 5 USD is passed in" in told
    found = json.loads((tmp_path / "one.json").read_text())
    assert found["estimate"]["runs"] == 3
    assert np.isfinite(found["estimate"]["cost_usd"]["mean"])
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_where_capacity_decides_the_plan_draws_it_and_is_never_late() -> None:
    with pytest.raises(ValueError, match="capacity needs a deadline_h"):
        sweep(decides="capacity")
    wanted = sweep(decides="capacity", deadline_h=6.0, budget_usd=50.0)
    found = plan(wanted, CALM, runs=4)
    assert found.estimate is not None
    assert found.estimate.past_deadline == 0.0
    assert found.estimate.over_budget == 0.0
    assert found.estimate.duration_h.high <= 6.0
    assert any("drawn from models of its spells" in note for note in found.notes)
    assert found.offers == ()
    # A zone that is always there, on record, costs the spot price and no more.
    always = Availability(
        {market: CapacitySeries(np.array([CALM.start_s]), np.array([99]), CALM.end_s) for market in CALM}
    )
    sure = plan(wanted, CALM, runs=4, availability=always)
    assert sure.estimate is not None
    assert sure.estimate.cost_usd.mean < found.estimate.cost_usd.mean
    # Saving takes as long as the notice is: how often it is done follows from how long spells last, not from prices.
    assert [note for note in sure.notes if "drawn" in note] == []
    usual = plan(wanted, CALM, runs=4, availability=always, spells=default_spell_models())
    every_min, usual_min = (float(one.notes[0].split("saved every ")[1].split(" min")[0]) for one in (sure, usual))
    assert 5 < usual_min < 60
    # By the record itself, which shows no loss, it is done less often.
    assert every_min > usual_min


@pytest.mark.long
@pytest.mark.parametrize("machines", [4, {"min": 2, "max": 4}])
def test_machines_that_work_as_one_are_planned_for_as_they_are_replayed(machines: object) -> None:
    """Four machines that are always there cost four spot machines; drawn capacity has all four, too."""
    wanted = sweep(
        grid={"lr": [0.1]}, machines=machines, max_trial_steps=4 * 14_400, decides="capacity", deadline_h=10.0
    )
    always = Availability(
        {market: CapacitySeries(np.array([CALM.start_s]), np.array([4]), CALM.end_s) for market in CALM}
    )
    sure = plan(wanted, CALM, runs=4, availability=always)
    assert sure.estimate is not None
    assert sure.estimate.cost_usd.mean == pytest.approx(4 * 8.0 * 0.10, rel=0.05)
    drawn = plan(wanted, CALM, runs=4)
    assert drawn.estimate is not None
    assert drawn.estimate.past_deadline == 0.0
    listed = eb.default_catalogue().on_demand_usd_per_hour(R3, CALM.start_s)
    assert listed is not None
    assert drawn.estimate.cost_usd.mean < 0.95 * 4 * 8.0 * listed
    # Three of four are no gang.
    three = Availability(
        {market: CapacitySeries(np.array([CALM.start_s]), np.array([3]), CALM.end_s) for market in CALM}
    )
    few = plan(wanted, CALM, runs=2, availability=three)
    assert few.estimate is not None
    assert (few.estimate.cost_usd.mean > 4 * 8.0 * listed) == isinstance(machines, int)


@pytest.mark.usefixtures("in_project")
def test_a_plan_by_morning_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "spells.json"
    default_spell_models().write(models)
    words = ["plan", "examples/deadline.yaml", "--generate", "10", "--runs", "1", "--spells", str(models)]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, None)
    told = capsys.readouterr().out
    assert "deadline: 18 h is missed in 0 of 1 backtests" in told
    assert "budget: 60 USD is passed in 0 of 1 backtests" in told


def test_no_max_price_is_below_the_price_now() -> None:
    """A price that is set at the last moment of the record is the price now, for quotes and for offers."""
    prices = history({C3: [(0, 0.36), (14 * 24 * 3600.0, 0.37)], R3: [(0, 0.10)]}, hours=14 * 24.0)
    found = plan(sweep(billing="ec2-second"), prices, runs=1)
    quotes = {quote.market: quote.usd_per_hour for quote in found.quotes}
    assert quotes[C3] == 0.37
    for offer in found.offers:
        assert offer.max_price_usd_per_hour >= quotes[offer.market]


@pytest.mark.long
def test_what_is_feasible_says_so_and_what_is_not_says_the_least_that_would_do() -> None:
    fine = plan(sweep(budget_usd=3.0, deadline_h=6), CALM, runs=4)
    assert fine.feasibility is not None
    assert fine.feasibility.feasible
    assert fine.to_dict()["least_budget_usd"] is None
    # 3600 steps on the fastest machine, and two minutes to start.
    assert fine.feasibility.fastest_h == pytest.approx(1.0 + 2 / 60)
    assert fine.feasibility.fastest_on == C3
    found = plan(sweep(budget_usd=0.2, deadline_h=0.5), CALM, runs=4)
    least = found.feasibility
    assert least is not None
    assert not least.feasible
    assert set(found.to_dict()) == set(fine.to_dict())
    assert least.least_deadline_h is not None
    assert least.least_budget_usd is not None
    assert least.least_deadline_costs_usd is not None
    assert least.fastest_h < least.least_deadline_h < 1.5
    assert 0.5 < least.least_budget_usd < 1.0
    assert least.least_deadline_costs_usd > least.least_budget_usd
    # What is told does, with the cap in force.
    jobs = sweep().jobs()
    pairs = [
        (least.least_budget_usd, None),
        (least.least_deadline_costs_usd, least.least_deadline_h),
    ]
    for usd, hours in pairs:
        told = plan(sweep(budget_usd=usd, deadline_h=hours), CALM, runs=4)
        assert told.feasibility is not None
        assert told.feasibility.feasible
        outcomes = eb.backtest(
            jobs,
            [policy_for(sweep(budget_usd=usd, deadline_h=hours), DEFAULT_NAME)],
            CALM,
            billing="gcp-spot",
            starts=2,
            curves=stand_in_curves(jobs, maximise=False),
        ).outcomes[DEFAULT_NAME]
        assert all(outcome.finished for outcome in outcomes)


def test_a_budget_alone_that_is_too_small_keeps_the_deadline_in_its_answer() -> None:
    least = plan(sweep(budget_usd=0.3, deadline_h=5), CALM, runs=3).feasibility
    assert least is not None
    assert not least.feasible
    assert least.least_budget_takes_h is not None
    assert least.least_budget_takes_h <= 5


def test_where_capacity_decides_an_impossible_deadline_is_answered_too() -> None:
    least = plan(sweep(decides="capacity", deadline_h=0.5), CALM, runs=3).feasibility
    assert least is not None
    assert not least.feasible
    assert least.least_deadline_h is not None
    assert least.least_deadline_h > least.fastest_h
    assert least.least_budget_usd == least.least_deadline_costs_usd


def test_rivals_end_trials_early_as_ours_does() -> None:
    """r3 at 0.10 an hour: four trials of two hours, three of them ended at 0.7."""
    found = plan(sweep(), CALM, runs=2).estimate
    assert found is not None
    early, whole = found.rivals_stopping_early_usd, found.rivals_usd
    assert early["cheapest-spot"] == pytest.approx(0.10 * 2 * (1 + 3 * 0.7), rel=0.05)
    assert whole["cheapest-spot"] == pytest.approx(0.10 * 2 * 4, rel=0.05)
    all_trained = plan(sweep(theta=1.0), CALM, runs=1).estimate
    assert all_trained is not None
    assert all_trained.rivals_stopping_early_usd == {}


def test_a_plan_that_is_not_feasible_ends_with_code_3_and_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = sweep(budget_usd=0.01, deadline_h=0.1, other_steps_per_hour_per_vcpu=900.0, max_trial_steps=1800)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content.model_dump(mode="json", exclude_none=True)))
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "plan",
                str(tmp_path / "sweep.yaml"),
                "--generate",
                "6",
                "--runs",
                "2",
                "--days",
                "5",
                "--json",
                str(tmp_path / "plan.json"),
            ]
        )
    assert ended.value.code == 3
    told = capsys.readouterr().out
    for part in (
        "lowest feasible budget without a deadline: ",
        "lowest feasible deadline: ",
        "nothing ends sooner than ",
        "with the same early stopping (theta 0.7, mcnt 1): cheapest-spot",
        "expected $/1000 steps: refunds",
        "wrote ",
    ):
        assert part in told
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["feasible"] is False
    assert 0.01 < found["least_budget_usd"] < 5
    assert 0.1 < found["least_deadline_h"] < 20


def test_why_a_market_that_is_often_revoked_comes_first_is_explained() -> None:
    """Every hour the price leaps for a while: at a low max price the machine is free."""
    points = [point for n in range(14 * 24) for point in ((n * 3600.0, 0.1), (n * 3600.0 + 2700.0, 5.0))]
    prices = history({C3: points[:-1]}, hours=14 * 24.0)
    found = plan(sweep(billing="ec2-second"), prices, runs=1)
    assert found.offers[0].revoked > 0.5
    assert any("often revoked can be the best: under ec2-second" in note for note in found.notes)


def test_in_a_pipe_no_heading_and_no_market_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(sweep().model_dump(mode="json", exclude_none=True)))
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "plan",
                str(tmp_path / "s.yaml"),
                "--generate",
                "6",
                "--kind",
                "auction",
                "--runs",
                "1",
                "--days",
                "5",
            ]
        )
    assert not ended.value.code
    told = capsys.readouterr().out
    assert "…" not in told
    assert any("expected $/1000 steps" in line for line in told.splitlines())
    assert "us-east-1a c3.xlarge" in told
