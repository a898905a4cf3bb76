from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.markets import C3, R3, START_S, history, job

import ebbtide as eb
from ebbtide.backtesting.record import BacktestRecord
from ebbtide.base.utc import to_epoch_s
from ebbtide.errors import InputError
from ebbtide.market.catalogue import default_catalogue
from ebbtide.policies.registry import policies
from ebbtide.replay.starts import draw_starts

ALL = "on-demand,cheapest-spot,fastest-spot,reactive"


@pytest.fixture(scope="module")
def prices() -> eb.PriceHistory:
    return eb.generate_prices(days=20, seed=5, kind="auction")


@pytest.fixture(scope="module")
def result(prices: eb.PriceHistory, one_day: eb.Job) -> eb.types.BacktestResult:
    return eb.backtest(one_day, policies(ALL), prices, billing="ec2-hourly", starts=12, seed=1)


def test_statistics_are_those_of_the_outcomes(result: eb.types.BacktestResult) -> None:
    costs = np.array([outcome.cost_usd for outcome in result.outcomes["reactive"]])
    told = result.summary()["reactive"]["cost_usd"]
    assert told == {
        "mean": pytest.approx(costs.mean()),
        "std": pytest.approx(costs.std(ddof=1)),
        "p95": pytest.approx(np.quantile(costs, 0.95)),
    }


def test_the_json_is_as_promised(result: eb.types.BacktestResult, tmp_path: Path) -> None:
    result.write_json(tmp_path / "out.json")
    told = json.loads((tmp_path / "out.json").read_text())
    assert list(told["policies"]) == ALL.split(",")
    assert (told["starts"], told["seed"]) == (12, 1)
    for row in told["policies"].values():
        assert isinstance(row["unfinished"], int)
        for metric in ("cost_usd", "makespan_h", "revocations", "refund_usd", "checkpoints"):
            assert set(row[metric]) == {"mean", "std", "p95"}


def test_the_same_seed_gives_the_same_bytes_and_another_others(prices: eb.PriceHistory, one_day: eb.Job) -> None:
    texts = [
        eb.backtest(one_day, policies("reactive"), prices, starts=5, seed=seed).to_json() for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_policies_do_not_see_each_other(
    result: eb.types.BacktestResult, prices: eb.PriceHistory, one_day: eb.Job
) -> None:
    alone = eb.backtest(one_day, [eb.policies.Reactive()], prices, billing="ec2-hourly", starts=12, seed=1)
    assert alone.summary()["reactive"] == result.summary()["reactive"]


def test_starts_leave_room_and_begin_when_half_the_markets_have() -> None:
    late = eb.Market("aws", "us-east-1", "us-east-1e", "c3.xlarge")
    prices = history({C3: [(0, 0.1)], R3: [(3600, 0.1)], late: [(90_000, 0.1)]}, hours=100)
    starts = draw_starts(job(3600 * 20), prices, 500, 0, default_catalogue())
    assert min(starts) >= START_S + 3600
    # r3.large takes 40 h; one and a half times that is more than half of the history, so c3.xlarge's 20 h count.
    assert max(starts) <= prices.end_s - 1.5 * 20 * 3600
    assert max(starts) > prices.end_s - 1.5 * 20 * 3600 - 3600
    assert all(start == math.floor(start) for start in starts)


def test_starts_can_be_named(prices: eb.PriceHistory, one_day: eb.Job) -> None:
    result = eb.backtest(one_day, [eb.policies.Reactive()], prices, starts=["2015-04-03T00:00:00Z"])
    assert result.starts_s == (to_epoch_s("2015-04-03T00:00:00Z"),)
    with pytest.raises(InputError, match="outside the history"):
        eb.backtest(one_day, [eb.policies.Reactive()], prices, starts=["2012-04-03T00:00:00Z"])


def test_runs_cut_off_by_the_end_are_counted_and_left_out_of_the_statistics() -> None:
    prices = history({C3: [(0, 0.1)], R3: [(0, 0.01)]}, hours=10)
    starts = [START_S, START_S + 8 * 3600]
    result = eb.backtest(
        job(6 * 3600), [eb.policies.FastestSpot(), eb.policies.CheapestSpot()], prices, starts=starts
    )
    row = result.summary()["fastest-spot"]
    assert row["unfinished"] == 1
    assert row["makespan_h"]["mean"] == pytest.approx(6, abs=0.1)
    assert result.summary()["cheapest-spot"] | {"unfinished": 2} == {
        name: {"mean": None, "std": None, "p95": None} for name in row if name != "unfinished"
    } | {"unfinished": 2}
    assert "-" in str(result)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"billing": "ec2"}, "unknown billing preset 'ec2'"),
        ({"starts": 0}, "starts is 0; at least 1 is needed"),
        ({"policies": []}, "no policy to backtest"),
        ({"policies": [eb.policies.Reactive(), eb.policies.Reactive(0.5)]}, "two policies are named 'reactive'"),
        ({"job": []}, "no job to run"),
        ({"job": job(10**9)}, "can never finish: 1000000000 steps take .* and the history covers"),
        ({"job": eb.Job(name="x", steps=9, steps_per_hour={"p3.2xlarge": 1})}, "can never finish: it has no rate"),
        (
            {"job": job(3600 * 25, checkpoint=None), "billing": "gcp-preemptible"},
            "cannot be checkpointed, takes 25.0 h on c3.xlarge, .* no machine lives longer than 24.0 h",
        ),
    ],
)
def test_what_makes_no_sense_is_told(prices: eb.PriceHistory, one_day: eb.Job, change: dict, problem: str) -> None:
    arguments = {"policies": [eb.policies.Reactive()], "job": one_day, "prices": prices, "starts": 1} | change
    with pytest.raises(InputError, match=problem):
        eb.backtest(**arguments)


def test_a_replay_is_the_run_again_with_its_timeline(result: eb.types.BacktestResult) -> None:
    again = result.replay("reactive", 3)
    assert again.cost_usd == result.outcomes["reactive"][3].cost_usd
    assert len(again.timeline) > 0
    with pytest.raises(InputError, match="unknown policy 'x'"):
        result.replay("x")


def test_a_record_is_written_and_read_whole(result: eb.types.BacktestResult, tmp_path: Path) -> None:
    record = result.record()
    record.write(tmp_path / "record")
    again = BacktestRecord.read(tmp_path / "record")
    assert again.to_dict() == result.to_dict()
    assert again.title == "one-day: 12 starts, billing ec2-hourly"
    total = record.ledger.groupby("policy")["usd"].sum()
    leases = record.leases.groupby("policy")["usd"].sum()
    for name in result.outcomes:
        assert total[name] == pytest.approx(leases[name])
    (tmp_path / "record" / "about.json").unlink()
    with pytest.raises(InputError, match="is not the record of a backtest"):
        BacktestRecord.read(tmp_path / "record")


def test_the_picture_has_prices_leases_costs_and_progress(result: eb.types.BacktestResult, tmp_path: Path) -> None:
    figure = result.plot(tmp_path / "plot.html")
    names = {trace.name for trace in figure.data}
    assert set(ALL.split(",")) <= names
    assert any(trace.type == "box" for trace in figure.data)
    assert "<html>" in (tmp_path / "plot.html").read_text()[:200]


def test_the_table_names_every_policy_with_mean_and_spread(result: eb.types.BacktestResult) -> None:
    text = str(result)
    assert all(name in text for name in result.outcomes)
    assert f"{result.summary()['reactive']['cost_usd']['mean']:.3f} ±" in text


@pytest.mark.long
@pytest.mark.real_traces
def test_the_face_of_the_library_on_real_prices(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first example of the tutorial, word for word."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "tutorial.md").read_text(encoding="utf-8")
    program = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(root / "examples")
    (tmp_path / "prices.parquet").symlink_to(traces / "ec2-auction-2015.parquet")
    names: dict = {}
    exec(compile(program, "tutorial.md", "exec"), names)
    result = names["result"]
    assert len(result.starts_s) == 20
    assert result.summary()["ebbtide"]["cost_usd"]["mean"] < result.summary()["on-demand"]["cost_usd"]["mean"]


@pytest.mark.real_traces
def test_on_real_prices_spot_costs_less_than_on_demand_and_never_revoked_means_never_revoked(
    auction_2015: eb.PriceHistory, one_day: eb.Job
) -> None:
    told = eb.backtest(one_day, policies(ALL), auction_2015, billing="ec2-hourly", starts=60, seed=1).summary()
    assert all(row["unfinished"] == 0 for row in told.values())
    for name in ("cheapest-spot", "fastest-spot"):
        assert told[name]["revocations"]["mean"] == 0
    assert told["reactive"]["cost_usd"]["mean"] < 0.3 * told["on-demand"]["cost_usd"]["mean"]
    assert told["fastest-spot"]["makespan_h"]["mean"] < told["cheapest-spot"]["makespan_h"]["mean"]


@pytest.mark.parametrize("verb", ["backtest", "compare"])
def test_policies_may_stand_first_as_they_did_before(verb: str, one_day: eb.Job) -> None:
    prices = eb.generate_prices(days=15, seed=1, kind="auction")
    given = [eb.policy("on-demand")], one_day, prices
    with pytest.warns(FutureWarning, match="the job stands first now") as told:
        former = getattr(eb, verb)(*given, starts=1)
    assert told[0].filename == __file__
    now = getattr(eb, verb)(one_day, given[0], prices, starts=1)
    assert str(former) == str(now)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(eb, verb)([one_day], given[0], prices, starts=1)
