"""Scores of spell models on later probes: how well they foresee that a market's capacity goes within the hour."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import UP, SpellModel
from ebbtide.forecasts.capacity.models import SpellModels, probed_markets
from ebbtide.market.price_series import Floats

if TYPE_CHECKING:
    import pandas as pd


def spell_scores(models: SpellModels, probes: pd.DataFrame, within_s: float = HOUR_S) -> dict[str, float]:
    """Score the chance that capacity which is there goes within some time, at every probe that found it.

    Only probes whose spell begins within the record count, since their age is known, and whose outcome is known.

    Args:
        models: The models to score, fitted to earlier probes.
        probes: Later probes; see `fit_market_spells`.
        within_s: The time, seconds.

    Returns:
        `brier`: mean squared error of the chance; `brier_of_a_constant`: that of the probes' own mean, which no
        forecast without the age could beat; `probes`: how many were scored.

    Raises:
        InputError: A column is missing, or no probe can be scored.
    """
    chances, goes = [], []
    for market, (times_s, available, _) in probed_markets(probes).items():
        chance, gone = _asked(models.of(market), times_s, available, within_s)
        chances.append(chance)
        goes.append(gone)
    foreseen, truth = np.concatenate([*chances, []]), np.concatenate([*goes, []])
    if not len(truth):
        raise InputError("there is no probe of capacity whose spell and outcome are known")
    return {
        "brier": float(np.mean((foreseen - truth) ** 2)),
        "brier_of_a_constant": float(np.mean((truth.mean() - truth) ** 2)),
        "probes": float(len(truth)),
    }


def _asked(model: SpellModel, times_s: Floats, available: np.ndarray, within_s: float) -> tuple[Floats, Floats]:
    """The chance at each probe of one market that can be scored, and whether capacity went; shapes (n,)."""
    changes = np.flatnonzero(np.diff(available)) + 1
    first = changes[0] if len(changes) else len(times_s)
    last_s = times_s[-1] - within_s
    asked = np.flatnonzero(available & (np.arange(len(times_s)) >= first) & (times_s <= last_s))
    began = changes[np.searchsorted(changes, asked, side="right") - 1]
    following = np.searchsorted(changes, asked, side="right")
    ends_s = np.append(times_s[changes], math.inf)[following]
    ages_s = times_s[asked] - times_s[began]
    ages, place = np.unique(ages_s, return_inverse=True)
    by_age = np.array([model.ends_within(UP, float(age_s), within_s) for age_s in ages])
    return by_age[place] if len(ages) else ages, (ends_s - times_s[asked] <= within_s).astype(np.float64)
