"""Many networks asked at once say what each says alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ebbtide.forecasts.revocation.inputs import PRESENT_INPUTS, fit_scaling, transformed
from ebbtide.forecasts.revocation.minutes import FEATURES, WINDOW, Minutes
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.networks import RevPredNetwork, ask_each, stack
from ebbtide.forecasts.revocation.splits import Samples, Split
from ebbtide.forecasts.revocation.training import TrainingSettings


def test_stacked_networks_say_what_each_says_alone() -> None:
    torch.manual_seed(1)
    networks = [RevPredNetwork(8, 0.3).eval() for _ in range(5)]
    records = torch.randn(5, 3, WINDOW, len(FEATURES))
    present, max_prices = torch.randn(5, 3, len(FEATURES)), torch.randn(5, 3, 2, PRESENT_INPUTS - len(FEATURES))
    with torch.inference_mode():
        alone = torch.stack(
            [net(*part) for net, *part in zip(networks, records, present, max_prices, strict=True)]
        )
        together = ask_each(stack(networks), records, present, max_prices)
    torch.testing.assert_close(together, alone)


@pytest.fixture(scope="module")
def fitted(minutes: Minutes, split: Split) -> NetworkModel:
    model = revpred()
    model.training = TrainingSettings(epochs=1)
    model.fit(minutes, split.train, split.validation)
    return model


def test_few_samples_of_many_markets_are_answered_as_many_of_one(
    fitted: NetworkModel, minutes: Minutes, split: Split
) -> None:
    """Few samples go through the stacked networks, many through each; uneven numbers a market included."""
    chosen = np.concatenate([np.flatnonzero(split.test.market == row)[: 2 + row] for row in range(3)])
    few = Samples(split.test.market[chosen], split.test.minute[chosen])
    prices = minutes.prices[split.test.market, split.test.minute]
    max_prices = prices[:, None] * np.array([1.01, 1.2])
    many = fitted.probabilities(minutes, split.test, max_prices)[chosen]
    np.testing.assert_allclose(fitted.probabilities(minutes, few, max_prices[chosen]), many, rtol=1e-5)


def test_some_markets_alone_get_their_own_networks(fitted: NetworkModel, minutes: Minutes, split: Split) -> None:
    chosen = [int(np.flatnonzero(split.test.market == row)[0]) for row in (0, 2)]
    some = Samples(split.test.market[chosen], split.test.minute[chosen])
    prices = minutes.prices[some.market, some.minute][:, None]
    together = fitted.probabilities(minutes, some, prices * 1.05)
    for place in range(2):
        one = Samples(some.market[place : place + 1], some.minute[place : place + 1])
        alone = fitted.probabilities(minutes, one, prices[place : place + 1] * 1.05)
        np.testing.assert_allclose(together[place : place + 1], alone, rtol=1e-5)


def test_the_fitted_scaling_is_that_of_the_training_part(
    fitted: NetworkModel, minutes: Minutes, split: Split
) -> None:
    """Not of validation too: what comes later must not show in the inputs of what came before."""
    table = transformed(minutes.features)
    own = fit_scaling(table, split.train, len(minutes.markets))
    assert fitted.scaling is not None
    np.testing.assert_array_equal(fitted.scaling.mean, own.mean)
    np.testing.assert_array_equal(fitted.scaling.usual_log_price, own.usual_log_price)
    assert not np.array_equal(own.mean, fit_scaling(table, split.known, len(minutes.markets)).mean)


def test_own_and_general_networks_have_half_of_the_say_each(
    fitted: NetworkModel, minutes: Minutes, split: Split
) -> None:
    few = Samples(split.test.market[:5], split.test.minute[:5])
    prices = minutes.prices[few.market, few.minute][:, None]
    said = fitted.ask(minutes, few, prices * 1.05)
    own = fitted.groups[int(said.group[0])].calibration.log_odds(said.own, fitted.correction)
    (general,), (said_by_general,) = fitted.generals, said.general
    other = general.calibration.log_odds(said_by_general, fitted.correction)
    read = fitted.read(said)
    np.testing.assert_allclose(np.log(read / (1 - read)), (own + other) / 2, rtol=1e-6)


def test_a_market_that_did_not_rise_in_validation_is_not_tuned(minutes: Minutes, split: Split) -> None:
    """Else it would learn to say "never", which no validation of that kind could hold against it."""
    model = revpred()
    model.training = TrainingSettings(epochs=1)
    rises = minutes.highest_next_hour > minutes.prices
    quiet = ~rises[split.validation.market, split.validation.minute] | (split.validation.market != 1)
    validation = Samples(split.validation.market[quiet], split.validation.minute[quiet])
    model.fit(minutes, split.train, validation)
    assert model.common is not None
    assert [group.fitted == model.common for group in model.groups] == [False, True, False]
