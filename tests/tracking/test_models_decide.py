"""What was trained decides: backtests, comparisons and live runs ask a model bundle, and say which."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.harness.parity.tapes import small_bundle

import ebbtide as eb
from ebbtide.base.utc import DAY_S, iso
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import ModelBundle
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.serving import Served
from ebbtide.jobs.sweep import Sweep
from ebbtide.policies.for_job import policies_for, policy_for
from ebbtide.policies.spottune.offers import StepCost
from ebbtide.policies.spottune.policy import SpotTune
from ebbtide.runs.handle import Run
from ebbtide.runs.run import begin

DAYS, TRAINED_DAYS = 14.0, 8.0
JOB = eb.Job(name="hours", steps=4000, other_steps_per_hour_per_vcpu=400.0)


@pytest.fixture(scope="module")
def prices() -> eb.PriceHistory:
    return eb.generate_prices(days=DAYS, seed=5, kind="auction")


@pytest.fixture(scope="module")
def bundle(prices: eb.PriceHistory, tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    known = prices.window(prices.start_s, prices.start_s + TRAINED_DAYS * DAY_S)
    return small_bundle(known, tmp_path_factory.mktemp("bundle") / "models")


@pytest.fixture
def later(prices: eb.PriceHistory, bundle: ModelBundle) -> eb.PriceHistory:
    return prices.window(bundle.trained_until_s, prices.end_s)


def test_a_backtest_asks_the_models_and_says_which(
    bundle: ModelBundle, later: eb.PriceHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    answer = NetworkModel.probabilities
    monkeypatch.setattr(NetworkModel, "probabilities", lambda *a: asked.append(1) or answer(*a))
    with_models = eb.backtest(JOB, [eb.policy("spottune", bundle)], later, starts=3, models=bundle)
    assert asked
    assert with_models.models == bundle.versions
    said = f"models: revpred {bundle.versions['revpred']}"
    assert said in str(with_models)
    assert json.loads(with_models.to_json())["models"] == bundle.versions
    assert with_models.record().to_dict()["models"] == bundle.versions
    asked.clear()
    without = eb.backtest(JOB, [eb.policy("spottune")], later, starts=3)
    assert not asked
    assert "models" not in without.to_dict()
    assert "models:" not in str(without)
    compared = eb.compare(JOB, [eb.policy("spottune", bundle)], later, starts=2, models=bundle)
    assert said in compared.notes


@pytest.mark.parametrize("verb", ["backtest", "compare"])
def test_days_that_a_model_was_trained_on_are_refused(
    prices: eb.PriceHistory, bundle: ModelBundle, verb: str
) -> None:
    with pytest.raises(InputError, match=r"revpred was trained on prices until .*; start at .* or later"):
        getattr(eb, verb)(JOB, [eb.policy("spottune", bundle)], prices, starts=20, models=bundle)


def test_a_replay_and_a_live_run_refuse_a_start_within_the_training_days(
    prices: eb.PriceHistory, bundle: ModelBundle, tmp_path: Path
) -> None:
    early = bundle.trained_until_s - 60.0
    with pytest.raises(InputError, match="start at .* or later"):
        eb.run(JOB, "spottune", "replay", prices=prices, start=early, models=bundle)
    sweep = Sweep(name="s", command="true {x}", grid={"x": [1, 2]}, metric="loss", max_trial_steps=100)
    with pytest.raises(InputError, match="start at .* or later"):
        begin(sweep, tmp_path, "spottune", "local", {"prices": prices, "start": early, "models": bundle})
    eb.run(JOB, "spottune", "replay", prices=prices, start=bundle.trained_until_s, models=bundle.folder)


def forecast_of(policy: Any) -> Any:
    assert isinstance(policy, SpotTune)
    assert isinstance(policy.provisioner, StepCost)
    return policy.provisioner.forecast


def test_a_live_run_keeps_its_models_and_goes_on_with_them(
    prices: eb.PriceHistory, bundle: ModelBundle, tmp_path: Path
) -> None:
    sweep = Sweep(name="s", command="true {x}", grid={"x": [1, 2]}, metric="loss", max_trial_steps=100)
    run = begin(
        sweep,
        tmp_path,
        "spottune",
        "local",
        {"prices": prices, "start": bundle.trained_until_s, "models": bundle, "runs": tmp_path / "runs"},
    )
    assert isinstance(forecast_of(run.policy), Served)
    again = Run(run.kept)
    assert isinstance(forecast_of(again.policy), Served)
    kept = ModelBundle.read(run.folder / "models")
    assert kept.parts == bundle.parts


def test_a_name_is_one_policy_in_every_verb(bundle: ModelBundle) -> None:
    sweep = Sweep(
        name="s", command="true {x}", grid={"x": [1, 2]}, metric="loss", max_trial_steps=100, theta=0.4, mcnt=1
    )
    (replayed,) = policies_for("spottune", sweep, bundle)
    live = policy_for(sweep, "spottune", models=bundle)
    assert replayed == live
    assert isinstance(live, SpotTune)
    assert (live.theta, live.mcnt) == (0.4, 1)


def ebbtide(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def test_the_command_takes_a_bundle_and_finds_that_of_the_folder(
    prices: eb.PriceHistory,
    bundle: ModelBundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    prices.write("prices.parquet")
    Path("job.yaml").write_text("name: hours\nsteps: 4000\nother_steps_per_hour_per_vcpu: 400\n")
    common = ["compare", "job.yaml", "--prices", "prices.parquet", "--policies", "spottune", "--starts", 2]
    until = iso(bundle.trained_until_s)
    code, told, error = ebbtide(capsys, *common, "--models", bundle.folder)
    assert (code, told) == (2, "")
    assert f"start at {until} or later" in error
    code, told, _ = ebbtide(capsys, *common, "--models", bundle.folder, "--from", until)
    assert code == 0
    assert f"models: revpred {bundle.versions['revpred']}" in told
    assert "models:" not in ebbtide(capsys, *common, "--from", until)[1]
    bundle.copy_to(Path("models"))
    assert f"models: revpred {bundle.versions['revpred']}" in ebbtide(capsys, *common, "--from", until)[1]
    code, told, _ = ebbtide(capsys, *common)
    assert code == 0
    assert f"models/ is not used: it was trained on prices until {until}" in told
    code, _, error = ebbtide(capsys, *common, "--models", os.devnull)
    assert code == 2
    assert "is no model bundle" in error
