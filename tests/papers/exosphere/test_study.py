"""Portfolios of generated markets and real ones: what must hold of any, and the claims as they come out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.base.utc import DAY_S
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory
from ebbtide_papers.exosphere.claims import _mpi, _region, _region_study, _whole_region
from ebbtide_papers.exosphere.mpi import mpi_study
from ebbtide_papers.exosphere.study import MEDIUM_ALPHA, PortfolioStudy, correlated, portfolio_study

IDS = {
    "saving_vs_on_demand",
    "risk_vs_best_greedy",
    "risk_vs_lowest_cost_fleet",
    "saving_out_of_sample",
    "risk_out_of_sample_vs_best_greedy",
    "packing_cost_reduction",
    "solve_seconds_2500",
    "spark_checkpoint_overhead_high_diversity",
    "spark_checkpoint_overhead_low_diversity",
    "spark_no_checkpoint_overhead_high_diversity",
    "bag_lazy_overhead",
    "bag_restart_overhead",
    "black_swan_spark_batch",
    "black_swan_spark_interactive",
    "mpi_mttr_overhead",
    "mpi_cost_overhead",
    "region_saving_vs_on_demand",
    "region_risk_vs_best_greedy",
    "region_risk_out_of_sample_vs_best_greedy",
}


@pytest.fixture(scope="module")
def study() -> PortfolioStudy:
    return portfolio_study(eb.generate_prices(days=40, seed=3, kind="auction"), eb.default_catalogue())


def test_more_aversion_never_has_more_risk_and_never_saves_more(study: PortfolioStudy) -> None:
    risks = np.array([portfolio.risk for portfolio in study.frontier.values()])
    savings = np.array([portfolio.saving for portfolio in study.frontier.values()])
    assert list(study.frontier) == sorted(study.frontier)
    assert (np.diff(risks) <= 1e-9 * risks[:-1]).all()
    assert (np.diff(savings) <= 1e-9).all()
    assert risks[-1] < risks[0]


def test_no_rival_that_saves_as_much_has_less_risk(study: PortfolioStudy) -> None:
    for rival in study.greedy.values():
        ours = study.as_cheap_as(rival)
        assert ours.saving >= rival.saving - 0.01 - 1e-9
        assert ours.risk <= rival.risk * (1 + 1e-6)
        assert study.against(rival)[0] <= 1 + 1e-6
    assert study.medium is study.frontier[MEDIUM_ALPHA]


def test_later_days_are_judged_at_the_bids_of_the_days_fitted_on(study: PortfolioStudy) -> None:
    assert study.later.candidates.markets == study.fitted.candidates.markets
    assert (study.later.candidates.on_demand_usd == study.fitted.candidates.on_demand_usd).all()
    weights = study.medium.weights
    assert study.later.judge(weights).saving == pytest.approx(float(weights @ study.later.candidates.returns))


def test_correlated_markets_have_the_same_variances() -> None:
    matrix = correlated(np.diag([1.0, 4.0]), 0.5)
    assert matrix.tolist() == [[1.0, 1.0], [1.0, 4.0]]


def test_a_record_of_hours_is_too_short() -> None:
    prices = eb.generate_prices(days=1, seed=0, kind="auction")
    with pytest.raises(InputError, match="too short to fit portfolios on"):
        portfolio_study(prices, eb.default_catalogue())


@pytest.mark.exhaustive
@pytest.mark.real_traces
def test_the_claims_on_real_auctions(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "reproduce",
                "exosphere",
                "--prices",
                str(traces / "ec2-auction-2015.parquet"),
                "--quick",
                "--json",
                str(tmp_path / "e.json"),
                "--plot",
                str(tmp_path / "e.html"),
            ]
        )
    assert not ended.value.code
    content = json.loads((tmp_path / "e.json").read_text())
    rows = {row["id"]: row for row in content["rows"]}
    assert set(rows) == IDS
    assert rows["saving_vs_on_demand"]["ours"] > 0.8
    # One market is both the cheapest and the steadiest: taking it alone is as good, and the claim does not hold.
    assert 0.9 < rows["risk_vs_best_greedy"]["ours"] < 1.1
    assert rows["region_saving_vs_on_demand"]["missing"] == "no region is given (--region)"
    # A fleet takes what is cheapest when it is asked for, and that is seldom the steadiest market, which saves most.
    assert rows["risk_vs_lowest_cost_fleet"]["ours"] < 0.1
    assert "known in hindsight, 0.99" in rows["risk_vs_lowest_cost_fleet"]["note"]
    # Prices leap: next to no revocation is told of by a price that comes near the bid.
    assert content["tables"]["soft_signals"]["0.5"]["warned_of"] < 0.1
    assert (tmp_path / "e.html").stat().st_size > 100_000
    markets = content["tables"]["markets"].values()
    # E[S] over all time is more expensive than on demand in some markets, and never while it is paid.
    assert (
        min(market["saving_over_all_time"] for market in markets)
        < 0
        < min(market["saving_while_paid"] for market in markets)
    )


def _start_above_the_list_price() -> PriceHistory:
    """Every market costs more than on demand for half a day, whenever a run of the MPI job starts."""
    calm = eb.generate_prices(
        days=20,
        seed=5,
        markets=[Market("aws", "us-east-1", f"us-east-1{zone}", "c3.xlarge") for zone in "abc"],
        kind="auction",
    )
    series = {}
    for market in calm:
        days = np.arange(calm.start_s, calm.end_s - 1.0, DAY_S)
        times_s = np.sort(np.concatenate([days, days + DAY_S / 2]))
        first_day_calm = times_s >= calm.start_s + 10 * DAY_S
        prices = np.where((np.arange(len(times_s)) % 2 == 0) & first_day_calm, 1.0, 0.03)
        series[market] = PriceSeries(times_s, prices)
    return PriceHistory(series, start_s=calm.start_s, end_s=calm.end_s)


def test_a_job_that_waits_for_a_market_at_its_start_counts_the_wait() -> None:
    """No machine was asked for at the very start: its first machines came later."""
    prices = _start_above_the_list_price()
    found = mpi_study(prices, prices.start_s + 12 * DAY_S, eb.default_catalogue(), every_s=DAY_S)
    assert found["cost"]["runs"] > 0
    assert found["cost"]["overhead"] > 1.0


def test_claims_that_cannot_be_computed_are_rows_that_do_not_hold() -> None:
    """Six days: portfolios can be fitted on them, and no run of five days is left; a region of hours."""
    week = eb.generate_prices(days=6, seed=2, kind="auction")
    study = portfolio_study(week, eb.default_catalogue())
    found = {row.id: row for row in _mpi(mpi_study(week, study.split_s, eb.default_catalogue()))}
    assert set(found) == {"mpi_mttr_overhead", "mpi_cost_overhead"}
    for row in found.values():
        assert not row.holds
        assert row.ours is None
        assert row.missing.startswith("the days after")
    assert [row.holds for row in _mpi({"not_computed": "no market"})] == [False, False]
    hours = week.window(week.start_s, week.start_s + 3 * 3600.0)
    study_of_region = _region_study("hours", hours, eb.default_catalogue(), lambda _text: None)
    region = _region(study_of_region, len(hours))
    assert "not computed: the record is too short" in region["note"]
    assert region["frontier"] == {}
    for row in _whole_region({"hours": study_of_region}):
        assert not row.holds
        assert "hours: not computed" in row.missing


def test_claims_on_a_region_are_on_the_one_of_most_markets() -> None:
    whole = eb.generate_prices(days=20, seed=4, kind="auction")
    few = whole.select(whole.markets[:3])
    studies = {
        name: _region_study(name, prices, eb.default_catalogue(), lambda _text: None)
        for name, prices in (("few", few), ("whole", whole))
    }
    rows = {row.id: row for row in _whole_region(studies)}
    study = studies["whole"]
    assert isinstance(study, PortfolioStudy)
    assert rows["region_saving_vs_on_demand"].ours == study.medium.saving
    assert rows["region_risk_vs_best_greedy"].ours == study.against(study.best_greedy())[0]
    assert "whole, " in rows["region_risk_vs_best_greedy"].note


def test_one_market_is_its_own_rival() -> None:
    whole = eb.generate_prices(days=20, seed=3, kind="auction")
    study = portfolio_study(whole.select(whole.markets[:1]), eb.default_catalogue())
    assert study.best_greedy() is study.greedy[1]
    assert study.against(study.best_greedy())[0] == pytest.approx(1.0)
