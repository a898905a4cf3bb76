"""Where a plan would train: expected costs by hand, and the picture."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.forecasts.hazard.chances import chance_text, evidence_of
from ebbtide.forecasts.hazard.evidence import Evidence
from ebbtide.forecasts.hazard.model import default_hazard
from ebbtide.forecasts.hazard.observations import MarketObservations
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide.planning.plan import Estimate, Plan, PlanSpread
from ebbtide.planning.plan_picture import check_picture, plan_picture, write_plan_picture
from ebbtide.planning.plan_places import PlanPlace, plan_places

HERE = Path(__file__).parents[2]
TOKYO = Market("gcp", "asia-northeast1", "asia-northeast1-b", "a3-highgpu-8g")
VIRGINIA = Market("aws", "us-east-1", "us-east-1a", "p5.48xlarge")
AT_S = 1_771_000_000.0
places = partial(plan_places, hazard=default_hazard(), evidence=Evidence())


def spells(down_per_hour: float, up_per_hour: float) -> SpellModel:
    return SpellModel(np.stack([np.full(len(AGE_BINS_S), rate) for rate in (down_per_hour, up_per_hour)]))


def prices() -> PriceHistory:
    series = {
        market: PriceSeries(np.array([AT_S]), np.array([usd])) for market, usd in ((TOKYO, 20.0), (VIRGINIA, 30.0))
    }
    return PriceHistory(series, start_s=AT_S, end_s=AT_S + 86_400.0)


def job() -> eb.Job:
    sweep = Sweep.model_validate(
        {
            "name": "fine-tune",
            "command": "train",
            "max_trial_steps": 4_000,
            "steps_per_hour": {"a3-highgpu-8g": 400, "p5.48xlarge": 500},
            "checkpoint": {"size_bytes": 1_000, "save_s": 1, "restore_s": 0},
        }
    )
    return sweep.jobs()[0]


def test_a_market_that_always_has_machines_costs_its_price_times_the_work() -> None:
    models = SpellModels(spells(1e3, 1e-9))
    found = places(job(), prices(), eb.default_catalogue(), models, deadline_h=24.0, start_s=0.0, outcomes=())
    # Ten hours at 20 USD against eight at 30.
    assert [place.market for place in found] == [TOKYO, VIRGINIA]
    assert [place.alone_usd for place in found] == [pytest.approx(200.0, rel=0.01), pytest.approx(240.0, rel=0.01)]
    assert [place.work_h for place in found] == [10.0, 8.0]
    assert found[0].available == pytest.approx(1.0)
    assert found[0].share == 0.0


def test_a_market_that_never_has_one_costs_on_demand_and_too_slow_a_one_is_not_priced() -> None:
    never = SpellModels(spells(1e-9, 1e3))
    found = places(job(), prices(), eb.default_catalogue(), never, deadline_h=9.0, start_s=0.0, outcomes=())
    by_market = {place.market: place for place in found}
    listed = by_market[VIRGINIA].on_demand_usd_per_hour
    assert listed is not None
    assert by_market[VIRGINIA].alone_usd == pytest.approx(8.0 * listed, rel=0.02)
    # Ten hours of work in nine.
    assert by_market[TOKYO].alone_usd is None
    without = places(job(), prices(), eb.default_catalogue(), never, deadline_h=None, start_s=0.0, outcomes=())
    assert {place.alone_usd for place in without} == {None}


def test_saves_while_it_trains_are_work() -> None:
    each = job()
    assert each.checkpoint is not None
    # Of every ten seconds one goes into a save: ten hours take eleven and a ninth.
    saved = each.model_copy(update={"checkpoint": each.checkpoint.model_copy(update={"interval_s": 10.0})})
    models = SpellModels(spells(1e3, 1e-9))
    found = places(saved, prices(), eb.default_catalogue(), models, deadline_h=24.0, start_s=0.0, outcomes=())
    assert [place.work_h for place in found] == [
        pytest.approx(10 / 0.9, rel=1e-3),
        pytest.approx(8 / 0.9, rel=1e-3),
    ]
    assert found[0].alone_usd == pytest.approx(20 * 10 / 0.9, rel=0.01)


def a_plan(places: tuple[PlanPlace, ...]) -> Plan:
    spread = PlanSpread(200.0, 190.0, 210.0)
    estimate = Estimate(3, 0, spread, spread, 0.0, 0.0, {}, {}, (190.0, 200.0, 210.0), (10.0, 10.5, 12.0))
    return Plan("fine-tune", 1, AT_S, (), (), estimate, (), None, places)


def test_chances_are_those_of_the_hazard_and_of_what_was_seen() -> None:
    models, hazard = SpellModels(spells(0.1, 1.0)), default_hazard()
    now_s = prices().end_s
    times_s = np.arange(now_s - 6 * 3600.0, now_s, 600.0)
    seen = {
        is_up: evidence_of(
            hazard, [MarketObservations(TOKYO, times_s, np.full(len(times_s), is_up), 900.0)], now_s
        )
        for is_up in (True, False)
    }
    found = {
        is_up: {
            place.market: place
            for place in plan_places(
                job(),
                prices(),
                eb.default_catalogue(),
                models,
                hazard=hazard,
                evidence=evidence,
                deadline_h=24.0,
                start_s=0.0,
                outcomes=(),
            )
        }
        for is_up, evidence in seen.items()
    }
    tokyo = found[True][TOKYO]
    assert tokyo.granted == 1.0 - hazard.refused(seen[True], TOKYO, now_s).value
    assert tokyo.kept_1h == hazard.kept(seen[True], TOKYO, now_s, 3600.0).value
    # Ten hours of work.
    assert tokyo.kept == hazard.kept(seen[True], TOKYO, now_s, 36_000.0).value < tokyo.kept_1h
    # Where no machine was available all night, none is likely to be granted.
    assert found[False][TOKYO].granted < 0.5 < tokyo.granted


@pytest.mark.parametrize(
    ("chance", "text"),
    [(0.0, "<1%"), (0.004, "<1%"), (0.006, "1%"), (0.5, "50%"), (0.994, "99%"), (0.996, ">99%")],
)
def test_no_chance_is_told_as_sure(chance: float, text: str) -> None:
    assert chance_text(chance) == text


def test_the_picture_has_every_market_and_both_limits(tmp_path: Path) -> None:
    place = PlanPlace(TOKYO, 20.0, 126.0, 10.0, 0.9, 5.0, 0.9, 0.8, 0.3, 205.0, 0.6)
    figure = plan_picture(a_plan((place,)), budget_usd=300.0, deadline_h=72.0)
    labels = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert "asia-northeast1-b\na3-highgpu-8g" in labels
    told = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert any("20.00 USD/h" in text and "90%" in text for text in told)
    assert any("budget 300" in text for text in told)
    write_plan_picture(figure, tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.svg"]


def test_a_picture_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'\.doc'; a picture is one of \.svg, \.png, \.pdf"):
        check_picture(tmp_path / "plan.doc")
    with pytest.raises(InputError, match="plan: has no ending; a picture is one of"):
        check_picture(tmp_path / "plan")
    check_picture(tmp_path / "plan.SVG")
    with pytest.raises(InputError, match="there is no picture of this plan"):
        plan_picture(a_plan(()), budget_usd=None, deadline_h=None)


def test_a_picture_that_cannot_be_is_refused_before_anything_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "plan.json"
    asked = ["--picture", str(tmp_path / "plan.svg"), "--json", str(told), "--runs", "2", "--kind", "gpu"]
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(HERE / "examples" / "sweep.yaml"), *asked])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "there is no picture of this plan" in said.err
    assert "generated" not in said.err
    assert not told.exists()


def test_a_plan_names_the_kind_of_market_that_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", str(HERE / "examples" / "h100.yaml"), "--kind", "gpu"])
    said = capsys.readouterr().err
    assert "30 days of a market of kind gpu are generated" in said
    assert "today" not in said


@pytest.mark.long
def test_the_example_plans_where_to_train_on_a_market_of_today(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command as its first lines say, with fewer backtests."""
    picture = tmp_path / "plan.png"
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(HERE / "examples" / "h100.yaml"), "--picture", str(picture), "--runs", "1"])
    said = capsys.readouterr()
    assert ended.value.code in (0, None)
    assert "days of a market like today's are generated" in said.err
    assert "where it would train" in said.out
    rows = [line.split() for line in said.out.splitlines() if "p5.48xlarge" in line or "a3-highgpu-8g" in line]
    expected = [float(row[-2]) for row in rows if len(row) == 12 and row[-2] != "-"]
    assert len(expected) >= 8
    assert expected == sorted(expected)
    # Prices of the same machine differ several-fold by region.
    assert expected[-1] > 2 * expected[0]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not math.isnan(expected[0])
