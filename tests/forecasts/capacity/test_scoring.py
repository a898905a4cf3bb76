"""Scores of spell models on probes that they were not fitted to."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.fitting import AGE_BINS_S, PARTS_OF_DAY, SpellModel
from ebbtide.forecasts.capacity.models import PROBE_COLUMNS, SpellModels, fit_market_spells
from ebbtide.forecasts.capacity.scoring import spell_scores

_TICK_S = 600.0


def _probes(available: list[int] | np.ndarray) -> pd.DataFrame:
    times = pd.Timestamp("2026-01-01", tz="UTC") + pd.to_timedelta(np.arange(len(available)) * _TICK_S, unit="s")
    where = ("aws", "us-east-1", "us-east-1a", "g5.xlarge")
    return pd.DataFrame(
        [(time, *where, int(up)) for time, up in zip(times, available, strict=True)], columns=list(PROBE_COLUMNS)
    )


def _flat(per_hour: float) -> SpellModels:
    bins = len(AGE_BINS_S)
    return SpellModels(SpellModel(np.full((2, bins), per_hour), np.ones((2, PARTS_OF_DAY))))


def test_scores_by_hand() -> None:
    # Up from the third tick to the sixth, then down: of the ticks asked, all go within the hour. The first spell
    # began before the record, and the outcome of the last hour is not known.
    available = [1, 0, 1, 1, 1, 1] + [0] * 12
    scores = spell_scores(_flat(2.0), _probes(available))
    chance = -np.expm1(-2.0)
    assert scores == pytest.approx({"brier": (1 - chance) ** 2, "brier_of_a_constant": 0.0, "probes": 4.0})


def test_a_spell_that_lasts_does_not_end_within_the_hour() -> None:
    scores = spell_scores(_flat(1e-9), _probes([0] + [1] * 20))
    # The hours of the last six ticks reach beyond the record.
    assert scores["probes"] == 14.0
    assert scores["brier"] == pytest.approx(0.0, abs=1e-12)


def test_a_model_of_the_zone_s_own_past_beats_one_that_is_far_off() -> None:
    random = np.random.default_rng(3)
    up = np.repeat(np.arange(400) % 2, random.geometric(np.where(np.arange(400) % 2, 0.05, 0.2)))
    half = len(up) // 2
    fitted = fit_market_spells(_probes(up[:half]))
    own, other = (spell_scores(models, _probes(up[half:])) for models in (fitted, _flat(3.0)))
    assert own["brier"] < other["brier"]
    assert own["brier"] < 1.1 * own["brier_of_a_constant"]


def test_nothing_to_score_is_said() -> None:
    with pytest.raises(InputError, match="no probe of capacity"):
        spell_scores(_flat(1.0), _probes([0] * 10))
