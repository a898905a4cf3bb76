"""Versions of models are compared by what a policy pays, on days that neither was trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.mlflow_database import empty_database

import ebbtide as eb
from ebbtide.base.utc import DAY_S
from ebbtide.cli.main import main
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import MODEL_PARTS, ModelBundle, part_of, write_manifest
from ebbtide.forecasts.champions import bundle_of_versions, champion_versions, champions, registry_client
from ebbtide.forecasts.learning_curves.calibration import default_calibration, write_calibration
from ebbtide.forecasts.learning_curves.curves import Curve
from ebbtide.forecasts.price_chain import PriceChain, save_chain
from ebbtide.forecasts.revocation.minutes import minutes_of
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.splits import split_at
from ebbtide.forecasts.revocation.storage import save_model
from ebbtide.forecasts.revocation.training import TrainingSettings
from ebbtide.market.prices import PriceHistory
from ebbtide.tracking.model_registry import Registry
from ebbtide.tracking.model_trials import COOKBOOK, Setting, asking, judge
from ebbtide.tracking.promotion import Verdict

DAYS, TRAINED_DAYS, STARTS = 14.0, 8.0, 40
JOB = "name: hours\nsteps: 4000\nother_steps_per_hour_per_vcpu: 400\n"


@pytest.fixture(scope="module")
def prices() -> PriceHistory:
    return eb.generate_prices(days=DAYS, seed=5, kind="auction")


@pytest.fixture(scope="module")
def known(prices: PriceHistory) -> PriceHistory:
    return prices.window(prices.start_s, prices.start_s + TRAINED_DAYS * DAY_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("judging")
    (made / "job.yaml").write_text(JOB)
    return made


@pytest.fixture(scope="module")
def model(known: PriceHistory) -> NetworkModel:
    minutes = minutes_of(known)
    made = revpred()
    made.training = TrainingSettings(epochs=1)
    split = split_at(minutes, 60, 6, 0.5, stride=60)
    made.fit(minutes, split.train, split.validation)
    return made


@pytest.fixture(scope="module")
def good(model: NetworkModel, known: PriceHistory, folder: Path) -> ModelBundle:
    return bundle_of(model, known, folder / "good", {"brier": 0.2, "auc": None})


@pytest.fixture(scope="module")
def bad(model: NetworkModel, known: PriceHistory, folder: Path) -> ModelBundle:
    """The same model, but it says of every machine that it is not revoked; what is written as its score is better."""
    groups, generals = (
        [
            replace(each, calibration=replace(each.calibration, offset=each.calibration.offset - 6.0))
            for each in some
        ]
        for some in (model.groups, model.generals)
    )
    spoilt = replace(model, groups=groups, generals=generals)
    return bundle_of(spoilt, known, folder / "bad", {"brier": 0.1, "auc": 0.9})


def bundle_of(
    model: NetworkModel, known: PriceHistory, folder: Path, scores: dict[str, float | None]
) -> ModelBundle:
    save_model(model, folder / "revpred")
    window = known.start_s, known.end_s
    return write_manifest(folder, {"revpred": part_of(folder, "revpred", window_s=window, scores=scores)})


@pytest.fixture
def setting(prices: PriceHistory, folder: Path) -> Setting:
    return Setting(prices, STARTS, {"revpred": folder / "job.yaml"}, seed=1)


def test_every_kind_of_model_has_something_that_asks_it_or_is_known_to_have_nothing() -> None:
    assert {kind: asking(kind) for kind in MODEL_PARTS if kind != "speeds"} == {
        "revpred": "spottune",
        "earlycurve": "spottune",
        "spells": "deadline",
        "hazard": "spottune",
        "price-chains": COOKBOOK,
    }


@pytest.mark.long
def test_the_cheaper_version_becomes_champion_and_the_one_with_the_better_score_does_not(
    good: ModelBundle, bad: ModelBundle, setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    registry = Registry(empty_database(tmp_path / "mlflow.db"), tmp_path / "artifacts")

    def enter(candidates: ModelBundle, name: str) -> tuple[str, Verdict]:
        version = registry.register(candidates, "revpred")
        now = champion_versions(registry_client(registry.uri))
        reigning = bundle_of_versions(now, registry.uri) if now else ModelBundle(tmp_path, {})
        found = judge("revpred", reigning, candidates, setting, tmp_path / name)
        if found.verdict.is_promotion:
            registry.promote("revpred", version, found.reason)
        told = found.to_dict()
        if found.comparison is not None:
            # What the verdict rests on is told, in costs of the same starts.
            assert told["starts"] == found.comparison.pairs == STARTS
            assert told["from"] > "2015-04-09T00:00:00Z"
            assert (told["policy"], told["job"]) == ("spottune", "hours")
        return version, found.verdict

    assert enter(bad, "1") == ("1", Verdict.FIRST)
    assert enter(bad, "2") == ("1", Verdict.UNCHANGED)
    assert enter(good, "3") == ("2", Verdict.CHEAPER)
    assert champions(registry.uri).versions == {"revpred": f"2 ({good.parts['revpred'].version})"}
    # Its Brier score is the better one, and it is not registered twice.
    assert enter(bad, "4") == ("1", Verdict.CHALLENGER)
    assert champions(registry.uri).parts["revpred"].scores == {"brier": 0.2, "auc": None}


def test_a_start_that_a_version_was_trained_on_is_refused(
    good: ModelBundle, bad: ModelBundle, setting: Setting, known: PriceHistory, tmp_path: Path
) -> None:
    early = replace(setting, starts=[known.end_s - 60.0])
    with pytest.raises(InputError, match="revpred was trained on prices until .*; start at .* or later"):
        judge("revpred", good, bad, early, tmp_path / "a")
    later = replace(bad.parts["revpred"], trained_until_s=known.end_s + DAY_S)
    newer = ModelBundle(bad.folder, {"revpred": later})
    between = replace(setting, starts=[known.end_s + 60.0])
    with pytest.raises(InputError, match="revpred was trained on prices until"):
        judge("revpred", good, newer, between, tmp_path / "b")
    found = judge("revpred", good, newer, replace(setting, starts=2), tmp_path / "c")
    assert min(found.starts_s) >= known.end_s + DAY_S


def test_without_days_later_than_both_or_anything_that_asks_nothing_is_promoted(
    good: ModelBundle, bad: ModelBundle, setting: Setting, known: PriceHistory, tmp_path: Path
) -> None:
    found = judge("revpred", good, bad, replace(setting, prices=known), tmp_path / "a")
    assert found.verdict is Verdict.NO_LATER_DAYS
    found = judge("revpred", good, bad, replace(setting, jobs={}), tmp_path / "b")
    assert found.verdict is Verdict.NOT_ASKED
    assert found.reason == "remains a challenger: no job is named for revpred, so that it cannot save money"


def test_newer_measurements_replace_older_ones_if_there_are_any(setting: Setting, tmp_path: Path) -> None:
    def measured(folder: Path, content: str) -> ModelBundle:
        folder.mkdir()
        (folder / "speeds.json").write_text(content)
        return write_manifest(folder, {"speeds": part_of(folder, "speeds.json")})

    none, some = (
        measured(tmp_path / "none", "{}"),
        measured(tmp_path / "some", '{"a": {"steps_per_hour": {"x": 1}}}'),
    )
    assert judge("speeds", none, some, setting, tmp_path / "a").verdict is Verdict.MEASURED
    assert judge("speeds", some, none, setting, tmp_path / "b").verdict is Verdict.NOT_ASKED


def test_a_champion_that_cannot_be_used_here_is_replaced(
    prices: PriceHistory, known: PriceHistory, tmp_path: Path
) -> None:
    workflow = tmp_path / "workflow.yaml"
    workflow.write_text("name: w\njobs:\n- {name: a, work_h: 6, speedup: {parallel: 0.95}}\n")
    here, other = known.markets[:2]

    def chains(name: str, market: eb.Market, day: float) -> ModelBundle:
        at = tmp_path / name
        (at / "price-chains").mkdir(parents=True)
        chain = PriceChain.fit(known[market], known.start_s, known.start_s + day * DAY_S)
        fields = [market.cloud, market.region, market.zone, market.instance_type, market.product]
        save_chain(chain, at / "price-chains" / "0000.safetensors", {"fields": fields})
        window = known.start_s, known.end_s
        return write_manifest(at, {"price-chains": part_of(at, "price-chains", window_s=window)})

    about = {"market": str(here), "deadline_h": 5, "most": 6, "risk_aversion": 0.1}
    setting = Setting(prices, 3, {"price-chains": workflow}, seed=1, cookbook=about)
    old, new, elsewhere = chains("old", here, 7.0), chains("new", here, 8.0), chains("elsewhere", other, 8.0)
    found = judge("price-chains", old, new, setting, tmp_path / "a")
    assert found.comparison is not None
    assert (found.comparison.pairs, found.policy, found.job) == (3, COOKBOOK, "w")
    found = judge("price-chains", elsewhere, new, setting, tmp_path / "b")
    assert found.verdict is Verdict.REPLACES
    with pytest.raises(InputError, match="unknown market with a price chain"):
        judge("price-chains", old, elsewhere, setting, tmp_path / "c")


def test_early_curve_is_judged_on_a_workload_that_it_was_not_calibrated_on(
    prices: PriceHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ebbtide.tracking.model_trials as judging

    (tmp_path / "sweep.yaml").write_text(
        "name: s\ncommand: 'true {x}'\ngrid: {x: [1, 2]}\nmetric: loss\nmax_trial_steps: 2000\n"
        "other_steps_per_hour_per_vcpu: 400\ntheta: 0.5\nmcnt: 1\n"
    )
    calibration = default_calibration()

    def bundle(name: str, band: float) -> ModelBundle:
        own = replace(calibration, everywhere=replace(calibration.everywhere, band=band))
        write_calibration(own, tmp_path / name / "earlycurve.json")
        return write_manifest(tmp_path / name, {"earlycurve": part_of(tmp_path / name, "earlycurve.json")})

    asked = []
    run = judging._run
    monkeypatch.setattr(
        judging, "_run", lambda case, bundle, *rest: asked.append(bundle) or run(case, bundle, *rest)
    )
    workload = next(iter(calibration.without))
    steps = np.arange(1.0, 101.0)
    curves = [Curve(workload, str(number), steps, number + 1.0 / steps, 100.0) for number in range(2)]
    setting = Setting(prices, 2, {"earlycurve": tmp_path / "sweep.yaml"}, curves=curves)
    found = judge("earlycurve", bundle("a", 1.0), bundle("b", 2.0), setting, tmp_path / "judged")
    assert [each.early_curve for each in asked] == [calibration.without[workload]] * 2
    assert found.verdict is Verdict.NOT_ASKED
    assert found.reason == "remains a challenger: every run is the same with it as with the champion"


def test_the_command_takes_the_champions_and_says_which(
    good: ModelBundle,
    prices: PriceHistory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    prices.write("prices.parquet")
    Path("job.yaml").write_text(JOB)
    until = good.parts["revpred"].to_dict()["trained_until"]
    words = ["--prices", "prices.parquet", "--models", "champion"]

    def ebbtide(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    compare = ["compare", "job.yaml", *words, "--policies", "spottune", "--starts", "2", "--from", until]
    code, _, error = ebbtide(*compare)
    assert code == 2
    assert "there is no model registry at sqlite:///.mlflow/mlflow.db" in error
    registry = Registry("sqlite:///.mlflow/mlflow.db", tmp_path / "artifacts")
    version = registry.register(good, "revpred")
    code, _, error = ebbtide(*compare)
    assert code == 2
    assert "the model registry at sqlite:///.mlflow/mlflow.db has no champion of any kind" in error
    registry.promote("revpred", version, "it is the first")
    said = f"models: revpred 1 ({good.parts['revpred'].version})"
    assert said in ebbtide(*compare)[1]
    run = ["run", "job.yaml", "--provider", "replay", "--policy", "spottune", "--start", until]
    (Path("sweep.yaml")).write_text(
        "name: s\ncommand: 'true {x}'\ngrid: {x: [1, 2]}\nmetric: loss\nmax_trial_steps: 400\n"
        "other_steps_per_hour_per_vcpu: 400\n"
    )
    assert said in ebbtide("run", "sweep.yaml", *run[2:], *words)[1]
    assert said in ebbtide("plan", "sweep.yaml", *words, "--runs", "2")[1]
    # In Python the word means the same everywhere.
    job, later = eb.Job.read("job.yaml"), prices.window(until, prices.end_s)
    told = eb.backtest(job, [eb.policy("spottune", "champion")], later, starts=1, models="champion").models
    assert told == {"revpred": f"1 ({good.parts['revpred'].version})"}
    with pytest.raises(InputError, match="start at .* or later"):
        eb.run(job, "spottune", "replay", prices=prices, start=prices.start_s, models="champion")
    # A bundle in the folder decides where none is named.
    good.copy_to(Path("models"))
    assert (
        f"models: revpred {good.parts['revpred'].version}" in ebbtide("run", "sweep.yaml", *run[2:], *words[:2])[1]
    )
    manifest = json.loads(Path("models/manifest.json").read_text())
    assert manifest["parts"]["revpred"]["registry_version"] is None
    (Path("models/revpred/model.json")).write_text("{}")
    code, told_text, _ = ebbtide("run", "sweep.yaml", *run[2:], *words[:2])
    assert code == 0
    assert "models/ is not used: models/revpred, field revpred: is not the version" in told_text
