"""Networks fitted in processes of their own: the same weights as in this one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ebbtide.forecasts.revocation import training
from ebbtide.forecasts.revocation.minutes import Minutes
from ebbtide.forecasts.revocation.models import revpred
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.splits import Split


def fitted(minutes: Minutes, split: Split, *, shared: bool = True) -> NetworkModel:
    model = revpred(1)
    model = replace(model, shared=shared, hidden=4, training=replace(model.training, epochs=2, per_sample=4))
    model.fit(minutes, split.train, split.validation)
    return model


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_the_same_weights_whatever_the_number_of_processes(
    minutes: Minutes, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fitted(minutes, split, shared=False)
    # With this limit even little work gets a process of its own.
    monkeypatch.setattr(training, "_SAMPLES_WORTH_A_PROCESS", 0)
    elsewhere = fitted(minutes, split, shared=False)
    assert len(here.groups) == len(elsewhere.groups) == len(minutes.markets)
    for one, other in zip(here.groups, elsewhere.groups, strict=True):
        assert np.array_equal(one.markets, other.markets)
        assert (one.fitted, one.calibration) == (other.fitted, other.calibration)
        states = zip(one.network.state_dict().values(), other.network.state_dict().values(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in states)


def test_a_market_that_is_not_tuned_has_the_common_start(minutes: Minutes, split: Split) -> None:
    model = fitted(minutes, split)
    assert [group.markets.tolist() for group in model.groups] == [[row] for row in range(len(minutes.markets))]
    assert model.common is not None
