"""The pipeline as its users run it: real DVC, Prefect and MLflow, in a project of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.pipelines.project import SMALL, STAGES, Project

import ebbtide as eb
from ebbtide.base.utc import DAY_S
from ebbtide.forecasts.bundle import MODEL_PARTS, ModelBundle
from ebbtide.forecasts.learning_curves.calibration import read_calibration
from ebbtide.forecasts.learning_curves.curves import read_curves
from ebbtide.forecasts.price_chain import load_chain
from ebbtide.policies.cookbook.storage import load_cookbook
from ebbtide.tracking.execute_stage import WITHOUT

JOBS = ("by-friday", "sweep", "by-morning", "array", "workflow")
SOLVED = {"cookbook", "bids", "allocation", "portfolio", "deadline"}

# Each stage is a process that starts Prefect and MLflow; every check has `make demo`, which runs all stages once.
pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Project:
    made = Project(tmp_path_factory.mktemp("project"), prefect_server)
    made.set(SMALL)
    return made


def test_the_pipeline_from_nothing_to_its_report(project: Project) -> None:
    assert project.stages_run() == STAGES
    prices = eb.PriceHistory.read(project.folder / "data" / "prices.parquet")
    grid = eb.PriceHistory.read(project.folder / "data" / "price-grid.parquet")
    assert prices.markets == grid.markets
    told = json.loads((project.folder / "reports" / "metrics.json").read_text())
    bundle = ModelBundle.read(project.folder / "models")
    assert set(bundle.parts) == set(MODEL_PARTS) | SOLVED
    assert all(bundle.parts[name].scores["expected_usd"] > 0 for name in SOLVED)
    assert bundle.trained_until_s == prices.end_s - 9 * DAY_S
    parameters = yaml.safe_load((project.folder / "params.yaml").read_text())["execute"]["runs"]
    assert list(told["jobs"]) == list(parameters) == list(JOBS)
    for name, job in told["jobs"].items():
        named = [policy for policy in job["policies"] if not policy.endswith(WITHOUT)]
        assert named == parameters[name]["policies"]
        assert named[0] == "ebbtide"
    asked = set(MODEL_PARTS) | {"cookbook"}
    assert told["models"] == {name: version for name, version in bundle.versions.items() if name in asked}
    page = (project.folder / "reports" / "report.html").read_text()
    assert "<!doctype html>" in page[:20]
    assert len(page.encode()) <= 1_500_000
    assert all(f'<section id="job-{name}">' in page for name in JOBS)
    assert all(f"<li>{name}: " in page for name in JOBS)


def test_a_second_time_nothing_runs(project: Project) -> None:
    assert project.stages_run() == []


EXECUTED = [f"execute@{name}" for name in JOBS]
MODELS_ON = ["bundle", *(f"solve@{kind}" for kind in ("cookbook", "bids", "allocation", "portfolio", "deadline"))]


@pytest.mark.parametrize(
    ("changes", "rerun"),
    [
        ({"execute.runs.array.starts": 3}, ["execute@array", "evaluate"]),
        # The portfolio is solved alone; what does not ask it is not run again.
        ({"solve.portfolio.alpha": 3.0}, ["solve@portfolio", "evaluate"]),
        ({"solve.cookbook.risk_aversion": 1.0}, ["solve@cookbook", *EXECUTED, "evaluate"]),
        ({"train_revpred.seed": 7}, ["train_revpred", *MODELS_ON, "promote", *EXECUTED, "evaluate"]),
        (
            {"interpolate.method": "linear"},
            ["interpolate", "train_revpred", *MODELS_ON, "promote", *EXECUTED, "evaluate"],
        ),
        ({"tracking.uri": "sqlite:///.mlflow/other.db"}, []),
    ],
)
def test_a_changed_number_reruns_only_what_depends_on_it(
    project: Project, changes: dict[str, Any], rerun: list[str]
) -> None:
    project.set(changes)
    assert project.stages_run() == rerun


def test_a_demonstration_leaves_the_lock_file_as_it_was_and_computes_nothing_in_vain(project: Project) -> None:
    lock = project.folder / "dvc.lock"
    before = lock.read_bytes()
    project.set({"execute.runs.array.starts": 4})
    done = project.run("pipelines", "repro", "--keep-lock")
    assert done.returncode == 0, done.stderr
    assert "Running stage 'execute@array'" in done.stdout
    assert lock.read_bytes() == before
    assert project.stages_run() == []
    assert lock.read_bytes() != before


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"interpolate.step_s": 300}, ["interpolate"]),
        ({"calibrate_earlycurve.changes": [0.1, 0.5]}, ["calibrate_earlycurve"]),
        ({"train_revpred.seed": 8}, ["train_revpred"]),
        ({"fit_spells.test_days": 3}, ["fit_spells"]),
        ({"solve.bids.billing": "ec2-second"}, ["solve@bids"]),
        ({"promote.starts": 3}, ["promote"]),
        ({"execute.runs.workflow.policies": ["ebbtide", "on-demand"]}, ["execute@workflow", "evaluate"]),
        ({"execute.seed": 2}, EXECUTED),
        ({"evaluate.experiment": "others"}, ["evaluate"]),
        ({"held_back.days": 8}, ["train_revpred", "fit_price_model", "fit_spells", *MODELS_ON[1:]]),
        ({"nightly.push": False}, []),
    ],
)
def test_a_number_belongs_to_one_stage(project: Project, changes: dict[str, Any], changed: list[str]) -> None:
    parameters = (project.folder / "params.yaml").read_text()
    project.set(changes)
    assert project.stages_changed() == changed
    (project.folder / "params.yaml").write_text(parameters)


def test_each_evaluation_left_runs_that_can_be_compared(project: Project) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{project.folder}/.mlflow/mlflow.db")
    home = client.get_experiment_by_name("backtests").experiment_id
    runs = client.search_runs([home], filter_string="tags.`ebbtide.kind` = 'policy'")
    evaluations = project.times_run["evaluate"]
    assert evaluations >= 3
    assert {run.data.params["job"] for run in runs} == set(JOBS)
    assert len(runs) % evaluations == 0
    assert {run.data.params["starts"] for run in runs if run.data.params["job"] == "array"} >= {"2", "3"}
    jobs = client.search_runs([home], filter_string="tags.`ebbtide.kind` = 'backtest'")
    assert {run.info.run_name for run in jobs} == set(JOBS)
    assert all(run.data.params["model revpred"] for run in jobs)
    assert all(run.data.metrics["on_demand_usd"] > 0.0 for run in jobs)
    assert all({"cost_usd_mean", "makespan_h_mean", "refund_usd_mean"} <= set(run.data.metrics) for run in runs)


def test_each_artifact_is_a_run_with_its_file(project: Project) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{project.folder}/.mlflow/mlflow.db")
    home = client.get_experiment_by_name("solved").experiment_id
    runs = client.search_runs([home])
    assert {run.data.tags["ebbtide.kind"] for run in runs} == SOLVED
    assert all({"expected_usd", "deviation_usd"} <= set(run.data.metrics) for run in runs)
    books = [run for run in runs if run.data.tags["ebbtide.kind"] == "cookbook"]
    assert {run.data.params["risk_aversion"] for run in books} == {"0.1", "1.0"}
    latest = next(run for run in books if run.data.params["risk_aversion"] == "1.0")
    book = load_cookbook(project.folder / "models" / "solved" / "cookbook" / "cookbook.safetensors")
    assert latest.data.metrics["expected_usd"] == pytest.approx(
        float(book.mean_usd[0, -1, 0, len(book.problem.market.prices) // 2])
    )
    assert [file.path for file in client.list_artifacts(latest.info.run_id)] == ["cookbook.safetensors"]
    chains = client.get_experiment_by_name("price-chains").experiment_id
    (chain,) = client.search_runs([chains], filter_string="tags.`ebbtide.kind` = 'price-chain'")
    told = json.loads((project.folder / "reports" / "price-chains.json").read_text())
    assert chain.data.metrics == told["markets"]["us-east-1a g6.2xlarge"]
    load_chain(project.folder / "models" / "price-chains" / "0000.safetensors")


@pytest.mark.parametrize("kind", ["threads", "dask", "ray"])
def test_wherever_tasks_run_the_outcomes_are_the_same(project: Project, kind: str) -> None:
    if kind != "threads":
        pytest.importorskip(f"prefect_{kind}")
        pytest.importorskip("distributed" if kind == "dask" else "ray")
    assert project.run("dvc", "repro", "execute@array").returncode == 0
    before = project.outputs()["data/record/array"]
    done = project.run("dvc", "repro", "--force", "--single-item", "execute@array", EBBTIDE_TASK_RUNNER=kind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.outputs()["data/record/array"] == before


def test_a_task_runner_that_there_is_not_is_told(project: Project) -> None:
    paths = ("prices=data/prices.parquet", "capacity=data/capacity.parquet", "bundle=models", "into=data/none")
    done = project.run("pipelines", "execute", "name=array", *paths, EBBTIDE_TASK_RUNNER="thread")
    assert done.returncode == 2
    assert (
        done.stderr
        == "ebbtide: unknown task runner 'thread' (did you mean 'threads'?); known: dask, processes, ray, threads\n"
    )


def test_each_training_left_its_curve(project: Project) -> None:
    from mlflow.tracking import MlflowClient

    curves = read_curves(project.folder / "data" / "curves.parquet")
    assert [(curve.workload, curve.name) for curve in curves] == [
        ("linear-regression", "01"),
        ("linear-regression", "03"),
        ("gbt-regression", "01"),
        ("gbt-regression", "03"),
    ]
    client = MlflowClient(f"sqlite:///{project.folder}/.mlflow/mlflow.db")
    home = client.get_experiment_by_name("learning-curves").experiment_id
    runs = client.search_runs([home], filter_string="tags.`ebbtide.kind` = 'learning-curve'")
    assert len(runs) == 4
    logged = next(run for run in runs if run.info.run_name == "linear-regression-03")
    history = client.get_metric_history(logged.info.run_id, "metric")
    assert [point.value for point in history] == curves[1].metric.tolist()
    assert logged.data.params["bs"] == "128"
    assert logged.data.metrics["step_time_cv"] > 0
    methods = client.search_runs([home], filter_string="tags.`ebbtide.kind` = 'curve-predictor'")
    assert {run.data.params["method"] for run in methods} >= {"earlycurve", "slaq"}
    told = json.loads((project.folder / "reports" / "earlycurve.json").read_text())
    assert "relative_error_mean" in told["methods"]["earlycurve"]["0.7"]
    assert read_calibration(project.folder / "models" / "earlycurve.json").everywhere.band > 0


def test_bad_parameters_end_in_one_line_and_leave_the_outputs_alone(project: Project) -> None:
    before = (project.folder / "reports" / "metrics.json").read_bytes()
    project.set({"execute.billing": "ec2-minutely"})
    done = project.repro()
    assert done.returncode != 0
    assert "params.yaml, field execute.billing: unknown billing preset 'ec2-minutely'" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert (project.folder / "reports" / "metrics.json").read_bytes() == before
