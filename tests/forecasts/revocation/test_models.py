"""The models: learning, the same by seed, honest where there is nothing to learn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.markets import C3, R3, history

import ebbtide as eb
from ebbtide.errors import InputError
from ebbtide.forecasts.revocation.evaluation import DELTAS, Protocol, asked_max_prices, evaluate, exceeded
from ebbtide.forecasts.revocation.inputs import prices_of
from ebbtide.forecasts.revocation.minutes import Minutes, minutes_of
from ebbtide.forecasts.revocation.models import MODELS, BaseRate, revpred
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.scores import score
from ebbtide.forecasts.revocation.splits import Samples, Split, split_at
from ebbtide.forecasts.revocation.storage import load_model, model_card, save_model
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory


def quick(seed: int = 0, **changes) -> NetworkModel:
    """RevPred, small."""
    model = revpred(seed)
    return replace(model, hidden=8, training=replace(model.training, epochs=4, per_sample=6), **changes)


@pytest.fixture(scope="module")
def fitted(minutes: Minutes, split: Split) -> NetworkModel:
    model = quick()
    model.fit(minutes, split.train, split.validation)
    return model


def answers(model, minutes: Minutes, split: Split) -> np.ndarray:
    return model.probabilities(minutes, split.test, asked_max_prices(minutes, split.test, [1]))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_probabilities_for_each_max_price(minutes: Minutes, split: Split, name: str) -> None:
    model = MODELS[name](0)
    if isinstance(model, NetworkModel):
        model = replace(model, hidden=4, training=replace(model.training, epochs=1))
    model.fit(minutes, split.train, split.validation)
    found = answers(model, minutes, split)
    assert found.shape == (len(split.test), len(DELTAS))
    assert ((found >= 0) & (found <= 1)).all()


def test_the_base_rate_is_the_past_frequency_of_such_a_rise() -> None:
    # The price doubles for a minute once every four hours: in a quarter of all minutes it will within the hour.
    points = [
        point
        for n in range(60)
        for point in ((14_400.0 * n, 0.1), (14_400.0 * n + 7200, 0.2), (14_400.0 * n + 7260, 0.1))
    ]
    laid = minutes_of(history({C3: points}, hours=240))
    split = split_at(laid, 60, 6, 2, stride=1)
    model = BaseRate()
    model.fit(laid, split.train, split.validation)
    low = np.flatnonzero(laid.prices[0, split.test.minute] == 0.1)[:1]
    one = Samples(split.test.market[low], split.test.minute[low])
    found = model.probabilities(laid, one, np.array([[0.15, 0.2, 0.1, 0.05]]))[0]
    assert found[:3] == pytest.approx([0.25, 0.0, 0.25], abs=0.02)
    assert found[3] == 1.0


@pytest.mark.long
def test_revpred_learns_what_the_base_rate_cannot_know() -> None:
    """A market that warns: it ripples in the hour before each spike. Only who reads the hour can tell."""
    points: list[tuple[float, float]] = []
    random = np.random.default_rng(0)
    at = 0.0
    while at < 12 * 86_400:
        points.append((at, 0.1))
        at += float(random.uniform(3, 8)) * 3600
        points += [(at + 240 * n, 0.1 + 0.002 * (n % 2)) for n in range(10)]
        at += 2400
        points.append((at, 0.5))
        at += 600
    laid = minutes_of(history({C3: points}, hours=12 * 24))
    split = split_at(laid, 60, 9, 2, stride=4)
    scores = {}
    for name, model in {"revpred": quick(), "base-rate": BaseRate()}.items():
        model.fit(laid, split.train, split.validation)
        asked = prices_of(laid, split.test)[:, None] * 1.1
        said, truth = model.probabilities(laid, split.test, asked), exceeded(laid, split.test, asked)
        scores[name] = score(truth[:, 0], said[:, 0], said[:, 0] > 0.5)
    assert (scores["revpred"].auc or 0.0) > 0.8
    assert scores["revpred"].brier < 0.8 * scores["base-rate"].brier


@pytest.mark.long
def test_the_same_seed_gives_the_same_model(minutes: Minutes, split: Split, fitted: NetworkModel) -> None:
    again, other = quick(), quick(seed=1)
    for model in (again, other):
        model.fit(minutes, split.train, split.validation)
    np.testing.assert_array_equal(answers(again, minutes, split), answers(fitted, minutes, split))
    assert not np.array_equal(answers(other, minutes, split), answers(fitted, minutes, split))


def test_later_data_leaves_the_model_untouched(
    lively: eb.PriceHistory, minutes: Minutes, split: Split, fitted: NetworkModel
) -> None:
    """Prices after validation's last label are replaced; the fitted model must answer the same."""
    known_s = minutes.times_s[split.validation.minute.max()] + 3660
    changed = {}
    for market, series in lively.items():
        keep = series.times_s <= known_s
        changed[market] = PriceSeries(
            np.append(series.times_s[keep], known_s + 60), np.append(series.prices[keep], 7.0)
        )
    other = minutes_of(PriceHistory(changed, start_s=lively.start_s, end_s=lively.end_s))
    model = quick()
    model.fit(other, split.train, split.validation)
    np.testing.assert_array_equal(answers(model, minutes, split), answers(fitted, minutes, split))


def test_a_higher_max_price_is_mostly_less_likely_exceeded(
    minutes: Minutes, split: Split, fitted: NetworkModel
) -> None:
    found = answers(fitted, minutes, split)
    assert found[:, DELTAS.index("0.1%")].mean() > found[:, DELTAS.index("10%")].mean()


@pytest.mark.parametrize("shared", [True, False])
def test_every_market_has_a_network_of_its_own(minutes: Minutes, split: Split, shared: bool) -> None:
    model = quick(shared=shared)
    model.fit(minutes, split.train, split.validation)
    assert (model.common is not None) == shared
    assert [group.markets.tolist() for group in model.groups] == [[0], [1], [2]]
    assert answers(model, minutes, split).shape == (len(split.test), len(DELTAS))


def test_a_market_that_never_rose_gets_a_constant_and_a_warning(tmp_path: Path) -> None:
    spiky = [point for n in range(200) for point in ((3600.0 * n, 0.1), (3600.0 * n + 1800, 0.3))]
    laid = minutes_of(
        history({C3: spiky, R3: [(0, 0.05)] + [(43_200.0 * n, 0.05) for n in range(1, 16)]}, hours=190)
    )
    split = split_at(laid, 60, 5, 1, stride=20)
    model = quick()
    with pytest.warns(UserWarning, match=r"too few training minutes to learn from; .*us-east-1b r3.large \(0.0"):
        model.fit(laid, split.train, split.validation)
    own = split.test.of(1)
    found = model.probabilities(laid, own, prices_of(laid, own)[:, None] * 1.01)
    assert np.unique(found).tolist() == [pytest.approx(1 / (len(split.train.of(1)) + 2))]
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    np.testing.assert_array_equal(again.probabilities(laid, own, prices_of(laid, own)[:, None] * 1.01), found)
    assert "predicts the constant" in model_card(model, R3, "a test", {})


def test_a_price_that_never_changed_is_not_likely_to_rise() -> None:
    spiky = [point for n in range(200) for point in ((3600.0 * n, 0.1), (3600.0 * n + 1800, 0.3))]
    laid = minutes_of(history({C3: spiky, R3: [(0, 0.05)]}, hours=190))
    split = split_at(laid, 60, 5, 1, stride=20)
    assert len(split.train.of(1)) == 0
    model = quick()
    with pytest.warns(UserWarning, match="too few training minutes"):
        model.fit(laid, split.train, split.validation)
    assert 0.0 < model.constants[1] < 0.001


def test_a_model_of_constants_alone_answers(tmp_path: Path) -> None:
    laid = minutes_of(history({C3: [(43_200.0 * n, 0.1) for n in range(16)], R3: [(0, 0.05)]}, hours=190))
    split = split_at(laid, 60, 5, 1, stride=20)
    model = quick()
    with pytest.warns(UserWarning, match="too few training minutes"):
        model.fit(laid, split.train, split.validation)
    assert model.groups == []
    found = answers(model, laid, split)
    assert ((found >= 0.0) & (found < 0.01)).all()
    save_model(model, tmp_path)
    np.testing.assert_array_equal(answers(load_model(tmp_path), laid, split), found)


def test_a_saved_model_answers_the_same(
    minutes: Minutes, split: Split, fitted: NetworkModel, tmp_path: Path
) -> None:
    save_model(fitted, tmp_path / "model")
    again = load_model(tmp_path / "model")
    np.testing.assert_array_equal(answers(again, minutes, split), answers(fitted, minutes, split))
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}


def test_a_damaged_model_is_told(fitted: NetworkModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with pytest.raises(InputError, match="is not a revocation model"):
        load_model(folder)
    save_model(fitted, folder)
    (folder / "group-0.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match="group-0.safetensors: holds no weights of this model"):
        load_model(folder)
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(InputError, match="is of format 99"):
        load_model(folder)


def test_an_evaluation_scores_every_model_on_the_same_triples(lively: eb.PriceHistory) -> None:
    protocol = Protocol(train_days=4, test_days=1, origins=2, stride=60, test_stride=30)
    told = evaluate(lively, protocol, ["base-rate", "logistic"]).to_dict()
    models = told["models"]
    assert set(models) == {"base-rate", "logistic"}
    keys = {"accuracy", "f1", "precision", "recall", "auc", "brier", "ece", "base_rate"}
    for delta in ("pooled", "0.1%", "1%", "10%"):
        assert keys <= set(models["logistic"][delta])
        for key in ("base_rate", "samples"):
            assert models["logistic"][delta][key] == models["base-rate"][delta][key]
    assert set(models["logistic"]["markets"]) == {str(market) for market in lively}
    assert told["protocol"]["origins"] == 2
    json.dumps(told, allow_nan=False)
    with pytest.raises(InputError, match="unknown model 'oracle'"):
        evaluate(lively, protocol, ["oracle"])


def test_the_truth_scored_against_is_the_prices_own(
    lively: eb.PriceHistory, minutes: Minutes, split: Split
) -> None:
    asked = asked_max_prices(minutes, split.test, [5])
    truth = exceeded(minutes, split.test, asked)
    for number in range(0, len(split.test), 37):
        market = minutes.markets[split.test.market[number]]
        at = minutes.times_s[split.test.minute[number]]
        for column in range(len(DELTAS)):
            first = lively[market].next_above(at, float(asked[number, column]))
            assert truth[number, column] == (first <= at + 3600)
