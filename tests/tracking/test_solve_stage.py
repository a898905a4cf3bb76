"""What the five systems decide at the end of the training days, with expected cost and risk."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from safetensors.numpy import load_file
from tests.tracking.small_bundle import section, solved, trained

from ebbtide.base.utc import iso
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.policies.cookbook.storage import load_cookbook
from ebbtide.tracking.solve_stage import SOLVERS, Known, Solved
from ebbtide.tracking.tracking import log_solved

SETTINGS = section("solve")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return trained(tmp_path_factory.mktemp("solved"))


@pytest.fixture(scope="module")
def found(known: Known) -> dict[str, Solved]:
    folder = known.models.folder
    return {kind: SOLVERS[kind](known, SETTINGS[kind], folder) for kind in SOLVERS}


def content(known: Known, solved: Solved) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((known.models.folder / solved.path).read_text())
    return read


def test_each_system_has_a_part_with_expected_cost_and_risk(known: Known) -> None:
    bundle = solved(known, SETTINGS)
    assert set(SOLVERS) < set(ModelBundle.read(bundle.folder).parts)
    for kind in SOLVERS:
        part = bundle.parts[kind]
        assert part.scores["expected_usd"] > 0.0
        assert part.scores["deviation_usd"] >= 0.0
        assert part.trained_until_s == known.prices.end_s
        assert bundle.solved(kind).is_file()


def test_the_same_models_and_prices_give_the_same_files(known: Known, found: dict[str, Solved]) -> None:
    folder = known.models.folder
    versions = {kind: one.part(folder).version for kind, one in found.items()}
    again = {kind: SOLVERS[kind](known, SETTINGS[kind], folder).part(folder).version for kind in SOLVERS}
    assert again == versions


def test_bids_are_of_both_rules_the_cheapest_step_first(known: Known, found: dict[str, Solved]) -> None:
    told = content(known, found["bids"])
    assert set(told["policies"]) == {"spottune", "spottune-bid"}
    for rule in told["policies"].values():
        costs = [offer["usd_per_step"] for offer in rule["offers"]]
        assert costs == sorted(costs)
        assert rule["best"] == rule["offers"][0]["market"]
        assert len(rule["offers"]) == len(known.prices)
    best = told["policies"]["spottune"]["offers"][0]
    series = next(one for market, one in known.prices.items() if str(market) == best["market"])
    price = series.at(known.prices.end_s)
    assert 1.0001 * price <= best["max_price_usd_per_hour"] <= 1.002 * price
    scores, hours = found["bids"].scores, 24_000 * best["seconds_per_step"] / 3600.0
    mean = series.mean(known.prices.end_s - 3600.0, known.prices.end_s)
    refund = best["revoked_within_the_hour"]
    assert scores["expected_usd"] == pytest.approx(hours * mean * (1.0 - refund))
    # Hours are paid or not, each for itself.
    assert scores["deviation_usd"] == pytest.approx(mean * math.sqrt(hours * refund * (1.0 - refund)))


def test_an_allocation_keeps_its_quotas_and_does_all_work(known: Known, found: dict[str, Solved]) -> None:
    told = content(known, found["allocation"])
    quotas = SETTINGS["allocation"]["quotas"]
    assert all(row["machines"] <= quotas.get(kind, math.inf) + 1e-6 for kind, row in told["types"].items())
    rates = {"c3.xlarge": 5_000, "g2.2xlarge": 13_000, "m3.medium": 1_050, "r3.large": 2_400}
    steps = sum(row["hours"] * rates[kind] for kind, row in told["types"].items())
    assert steps == pytest.approx(16 * 24_000)
    usd = 0.0
    for row in told["types"].values():
        series = next(one for market, one in known.prices.items() if str(market) == row["market"])
        usd += row["hours"] * series.at(known.prices.end_s)
    assert found["allocation"].scores["expected_usd"] == pytest.approx(usd)


def test_a_portfolio_is_spread_by_its_aversion_to_risk(known: Known, tmp_path: Path) -> None:
    careful, careless = (
        SOLVERS["portfolio"](known, SETTINGS["portfolio"] | {"alpha": alpha}, tmp_path) for alpha in (10.0, 0.0)
    )
    assert careless.about["markets"] == 1
    assert careful.about["markets"] > 1
    assert careful.scores["risk"] < careless.scores["risk"]
    assert careful.scores["saving"] < careless.scores["saving"]
    shares = json.loads((tmp_path / careless.path).read_text())["markets"]
    assert sum(row["share"] for row in shares.values()) == pytest.approx(1.0)
    assert all(row["machines"] >= 1 for row in shares.values())


def test_a_deadline_table_costs_less_than_on_demand(known: Known, found: dict[str, Solved]) -> None:
    scores = found["deadline"].scores
    assert 0.0 < scores["expected_usd"] < scores["on_demand_usd"]
    assert 0.0 < scores["spot_available"] <= 1.0
    table = load_file(known.models.folder / found["deadline"].path)["usd"]
    assert np.isfinite(table).all()


def test_the_cookbook_is_for_the_market_of_its_chain(known: Known, found: dict[str, Solved]) -> None:
    book = load_cookbook(known.models.folder / found["cookbook"].path)
    (chain,) = known.models.price_chains.values()
    assert book.problem.market.prices.tolist() == chain.prices.tolist()
    with pytest.raises(InputError, match="unknown market with a price chain 'mars'"):
        SOLVERS["cookbook"](known, SETTINGS["cookbook"] | {"market": "mars"}, known.models.folder)


def test_a_deadline_that_cannot_be_kept_is_told(known: Known, tmp_path: Path) -> None:
    job = tmp_path / "late.yaml"
    job.write_text(Path(SETTINGS["deadline"]["job"]).read_text().replace("deadline_h: 14", "deadline_h: 2"))
    with pytest.raises(InputError, match="cannot be done in 2"):
        SOLVERS["deadline"](known, {"job": str(job)}, tmp_path)


def test_each_is_a_tracked_run_with_its_file(known: Known, found: dict[str, Solved], tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for one in found.values():
        log_solved(one, known.models.folder, uri=uri, artifacts=str(tmp_path / "artifacts"))
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("solved").experiment_id])
    assert {run.data.tags["ebbtide.kind"] for run in runs} == set(SOLVERS)
    for run in runs:
        one = found[run.data.tags["ebbtide.kind"]]
        assert run.data.metrics["expected_usd"] == pytest.approx(one.scores["expected_usd"])
        assert run.data.params["until"] == iso(known.prices.end_s)
        assert [file.path for file in client.list_artifacts(run.info.run_id)] == [Path(one.path).name]
