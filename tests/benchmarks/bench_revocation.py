"""How fast the revocation model trains and answers, beside the bare LSTM of the same shape."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from tests.benchmarks.floors import tell
from torch import nn

import ebbtide as eb
from ebbtide.forecasts.revocation.inputs import fit_scaling, transformed
from ebbtide.forecasts.revocation.minutes import FEATURES, WINDOW, minutes_of
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.serving import PricesAt, Served
from ebbtide.forecasts.revocation.splits import Samples, split_at
from ebbtide.forecasts.revocation.training import Batch, train


def bare_lstm_samples_per_s(model: NetworkModel, samples: int) -> float:
    """Forward and backward through nothing but the LSTM, batch after batch."""
    lstm = nn.LSTM(len(FEATURES), model.hidden, num_layers=3, batch_first=True)
    batch = torch.randn(model.training.batch, WINDOW - 1, len(FEATURES))
    rounds = max(samples // model.training.batch, 1)
    began = time.perf_counter()
    for _ in range(rounds):
        outputs, _ = lstm(batch)
        torch.autograd.backward(outputs[:, -1].sum())
    return rounds * model.training.batch / (time.perf_counter() - began)


@pytest.mark.real_traces
def test_training_thirteen_markets_on_nine_days(benchmark, auction_2015: eb.PriceHistory) -> None:
    minutes = minutes_of(auction_2015)
    split = split_at(minutes, 30 * 24 * 60, 9, 3, stride=5)
    model = revpred()
    benchmark.pedantic(lambda: model.fit(minutes, split.train, split.validation), rounds=1)
    tuned = sum(group.fitted.epochs * group.fitted.samples for group in model.groups)
    common = model.common.epochs * model.common.samples if model.common else 0
    bare = bare_lstm_samples_per_s(model, len(split.train) // 3)
    told = f"{common:,} samples in common, {tuned:,} in tuning; target 600 s"
    tell("train 13 markets on 9 days", told, benchmark.stats.stats.median, (common + tuned) / bare)


@pytest.mark.real_traces
def test_samples_a_second(benchmark, auction_2015: eb.PriceHistory) -> None:
    """One epoch of training alone: what the loop adds to the bare LSTM."""
    minutes = minutes_of(auction_2015)
    split = split_at(minutes, 30 * 24 * 60, 9, 3, stride=15)
    table = transformed(minutes.features)
    scaling = fit_scaling(table, split.train, len(minutes.markets))
    model = revpred()
    training = type(model.training)(**{**vars(model.training), "epochs": 1})
    own = Batch.of(minutes, table, split.train, scaling)
    few = Batch.of(minutes, table, Samples(split.validation.market[:64], split.validation.minute[:64]), scaling)
    benchmark.pedantic(lambda: train(model.shape.network(), training, own, few), rounds=3)
    ours = len(own) / benchmark.stats.stats.median
    bare = bare_lstm_samples_per_s(model, len(own))
    tell(
        "one epoch",
        f"{ours:,.0f} of {bare:,.0f} samples/s, {ours / bare:.0%}; target 70%",
        len(own) / ours,
        len(own) / bare,
    )


def test_one_batch_for_a_hundred_markets(benchmark) -> None:
    markets = [
        eb.Market("aws", "us-east-1", f"us-east-1{chr(97 + n % 26)}{n // 26}", "c3.xlarge") for n in range(100)
    ]
    prices = eb.generate_prices(markets, days=3, seed=1, kind="auction")
    minutes = minutes_of(prices)
    split = split_at(minutes, 60, 2, 0.5, stride=30)
    model = revpred()
    model.training = type(model.training)(**{**vars(model.training), "epochs": 1})
    model.fit(minutes, split.train, split.validation)
    # A market that gets a constant is no work: what is timed has to be networks.
    assert len(model.groups) >= 0.95 * len(markets)
    time_s = prices.start_s + 2.5 * 86_400
    view = PricesAt(prices, time_s)
    asked = np.array([view.price(market) * 1.05 for market in markets])
    # A forecast that keeps nothing: what is timed has to be features and networks.
    benchmark(lambda: Served(model).probabilities(view, markets, asked))
    network = model.groups[0].network
    records = torch.randn(100, WINDOW, len(FEATURES))
    with torch.inference_mode():
        began = time.perf_counter()
        network(records, records[:, -1], torch.randn(100, 1, 2))
        floor_s = time.perf_counter() - began
    tell("100 markets in one batch", "target 0.020 s", benchmark.stats.stats.median, floor_s)
