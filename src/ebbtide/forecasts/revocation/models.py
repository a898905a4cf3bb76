"""The predictors by name, as they are compared (SpotTune IV-D)."""

from __future__ import annotations

from collections.abc import Callable

from ebbtide.forecasts.revocation.base_rate import BaseRate
from ebbtide.forecasts.revocation.correction import Correction
from ebbtide.forecasts.revocation.logistic import Logistic
from ebbtide.forecasts.revocation.max_prices import MaxPrices
from ebbtide.forecasts.revocation.network_model import NetworkModel
from ebbtide.forecasts.revocation.predictions import RevocationModel
from ebbtide.forecasts.revocation.training import Training


def revpred(seed: int = 0) -> NetworkModel:
    """RevPred as Ebbtide uses it: networks tuned to each market from a shared one, max prices of every size."""
    return NetworkModel("revpred", "revpred", shared=True, training=Training(seed=seed))


def revpred_published(seed: int = 0) -> NetworkModel:
    """RevPred as printed: one network per market, max prices of Algorithm 2, Eq. 3 as printed, no calibration."""
    training = Training(max_prices=MaxPrices.BORDER, per_sample=1, seed=seed)
    return NetworkModel(
        "revpred-published", "revpred", correction=Correction.PRINTED, calibrate=False, training=training
    )


def tributary(seed: int = 0) -> NetworkModel:
    """Tributary Predict: one LSTM over all inputs, one network per market, the published deltas."""
    training = Training(max_prices=MaxPrices.PUBLISHED, per_sample=1, class_weights=False, seed=seed)
    return NetworkModel("tributary", "tributary", calibrate=False, training=training)


MODELS: dict[str, Callable[[int], RevocationModel]] = {
    "revpred": revpred,
    "revpred-published": revpred_published,
    "tributary": tributary,
    "logistic": Logistic,
    "base-rate": lambda _seed: BaseRate(),
}
