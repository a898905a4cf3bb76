"""The stage `promote`: champions of what the pipeline trains, the same report however often it is begun again."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from flows.parameters import Promote
from flows.promote import verdict_inputs
from mlflow.tracking import MlflowClient
from tests.pipelines.project import Project

import ebbtide as eb
from ebbtide.base.utc import DAY_S
from ebbtide.forecasts.bundle import ModelBundle, part_of, write_manifest
from ebbtide.forecasts.capacity.probes import generated_probes, write_probes
from ebbtide.forecasts.learning_curves.calibration import default_calibration, write_calibration
from ebbtide.forecasts.price_chain import PriceChain, save_chain
from ebbtide.jobs.parsing import validated
from ebbtide.market.price_series import PriceSeries

# `make long`: each stage is a process that starts Prefect and MLflow.
pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.exhaustive]

MARKET = "us-east-1a c3.xlarge"
PATHS = (
    "bundle=models",
    "prices=data/prices.parquet",
    "curves=data/curves.parquet",
    "capacity=data/capacity.parquet",
    "into=reports/promotion.json",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Project:
    """With prices and models as the stages before this one would have left them."""
    made = Project(tmp_path_factory.mktemp("promote") / "main", prefect_server)
    prices = eb.generate_prices(days=16, seed=1, kind="auction")
    prices.write(made.folder / "data" / "prices.parquet")
    write_probes(generated_probes(prices, 1, 600.0), made.folder / "data" / "capacity.parquet")
    curves = "src/ebbtide/forecasts/learning_curves/data/table-two.parquet"
    (made.folder / "data" / "curves.parquet").write_bytes((made.folder / curves).read_bytes())
    small = {"starts": 6, "cookbook.most": 12, "cookbook.market": MARKET, "seed": 2, "billing": "ec2-second"}
    made.set({f"promote.{name}": value for name, value in small.items()})
    return made


def trained(project: Project, score: float, *, backwards: bool = False) -> ModelBundle:
    """A bundle with a price chain of the training days, or of the same prices in the wrong order."""
    prices = eb.PriceHistory.read(project.folder / "data" / "prices.parquet")
    market = next(each for each in prices if str(each) == MARKET)
    own, until_s = prices[market], prices.start_s + 9 * DAY_S
    series = PriceSeries(own.times_s, own.prices[::-1].copy() if backwards else own.prices)
    fitted = PriceChain.fit(series, prices.start_s, until_s)
    models = project.folder / "models"
    (models / "price-chains").mkdir(parents=True, exist_ok=True)
    fields = [market.cloud, market.region, market.zone, market.instance_type, market.product]
    save_chain(fitted, models / "price-chains" / "0000.safetensors", {"fields": fields, "score": score})
    write_calibration(default_calibration(), models / "earlycurve.json")
    window = prices.start_s, until_s
    return write_manifest(
        models,
        {
            "price-chains": part_of(models, "price-chains", window_s=window, scores={"log_likelihood": score}),
            "earlycurve": part_of(models, "earlycurve.json"),
        },
    )


def promoted(project: Project) -> Mapping[str, Any]:
    done = project.run("pipelines", "promote", *PATHS)
    assert done.returncode == 0, done.stderr
    told: Mapping[str, Any] = json.loads((project.folder / "reports" / "promotion.json").read_text())
    return told


def test_the_first_versions_are_champions_without_a_backtest(project: Project) -> None:
    trained(project, 2.0, backwards=True)
    told = promoted(project)
    assert told["promoted"] == ["earlycurve", "price-chains"]
    assert {row["verdict"] for row in told["kinds"].values()} == {"first"}
    assert {row["champion_after"] for row in told["kinds"].values()} == {"1"}
    # Begun again, it is the same report, though there are champions now.
    assert promoted(project) == told


def test_another_version_is_compared_and_a_killed_run_changes_nothing(project: Project) -> None:
    trained(project, 1.0)
    report = project.folder / "reports" / "promotion.json"
    before = report.read_bytes()
    for seconds in (4.0, 7.0, 10.0):
        process = project.start("pipelines", "promote", *PATHS)
        # Wherever it is then.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    report.unlink(missing_ok=True)
    told = promoted(project)
    assert report.read_bytes() != before
    row = told["kinds"]["price-chains"]
    assert (row["version"], row["champion_before"]) == ("2", "1")
    assert (row["policy"], row["job"], row["starts"]) == ("cookbook", "rsvd-1", 6)
    assert row["from"] >= "2015-04-10T00:00:00Z"
    assert row["promoted"] == (row["champion_after"] == "2")
    assert row["scores"] == {"champion": {"log_likelihood": 2.0}, "challenger": {"log_likelihood": 1.0}}
    assert told["kinds"]["earlycurve"]["verdict"] == "unchanged"
    assert promoted(project) == told
    client = MlflowClient(f"sqlite:///{project.folder}/.mlflow/mlflow.db")
    assert len(client.search_model_versions("name = 'price-chains'")) == 2
    champion = client.get_model_version_by_alias("price-chains", "champion")
    assert str(champion.version) == row["champion_after"]


def test_a_start_within_the_training_days_ends_with_one_line(project: Project) -> None:
    trained(project, 3.0)
    project.set({"promote.starts": ["2015-04-03T00:00:00Z"]})
    done = project.run("pipelines", "promote", *PATHS)
    assert done.returncode == 2
    assert "price-chains was trained on prices until" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert Path(project.folder / "reports" / "promotion.json").exists()


def test_verdicts_are_given_anew_where_a_job_has_changed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    content = yaml.safe_load((project.folder / "params.yaml").read_text())["promote"]
    parameters = validated(Promote, content)
    models, job = trained(project, 4.0), tmp_path / "job.yaml"
    job.write_text("steps: 10")
    jobs = parameters.jobs.model_copy(update={"revpred": job})
    parameters = parameters.model_copy(update={"jobs": jobs})
    before = verdict_inputs(models, parameters, [])
    assert verdict_inputs(models, parameters, []) == before
    job.write_text("steps: 11")
    assert verdict_inputs(models, parameters, []) != before
