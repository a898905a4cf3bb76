from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from ebbtide.forecasts.revocation.calibration import Correction, corrected
from ebbtide.forecasts.revocation.scores import (
    auc,
    best_f1_threshold,
    calibration_error,
    reliability,
    score,
)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=2, max_size=60))
def test_scores_agree_with_scikit_learns(rows: list[tuple[bool, int]]) -> None:
    labels = np.array([label for label, _ in rows])
    probabilities = np.array([place / 20 for _, place in rows])
    decided = probabilities >= 0.5
    told = score(labels, probabilities, decided)
    assert told.accuracy == pytest.approx(metrics.accuracy_score(labels, decided))
    assert told.brier == pytest.approx(metrics.brier_score_loss(labels, probabilities, pos_label=True))
    if labels.any() or decided.any():
        assert told.f1 == pytest.approx(metrics.f1_score(labels, decided, zero_division=0))
    else:
        assert told.f1 is None
    if labels.any() and not labels.all():
        assert told.auc == pytest.approx(metrics.roc_auc_score(labels, probabilities))
    else:
        assert told.auc is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=40))
def test_no_threshold_gives_a_better_f1(rows: list[tuple[bool, int]]) -> None:
    labels = np.array([label for label, _ in rows])
    probabilities = np.array([place / 8 for _, place in rows])
    chosen = best_f1_threshold(labels, probabilities)
    if not labels.any():
        assert not (probabilities >= chosen).any()
        return
    best = max(metrics.f1_score(labels, probabilities >= at, zero_division=0) for at in np.unique(probabilities))
    assert metrics.f1_score(labels, probabilities >= chosen) == pytest.approx(best)


def test_perfect_and_useless_predictions() -> None:
    labels = np.array([True, False, True, False])
    assert auc(labels, np.array([0.9, 0.1, 0.8, 0.2])) == 1.0
    assert auc(labels, np.array([0.1, 0.9, 0.2, 0.8])) == 0.0
    assert auc(labels, np.full(4, 0.3)) == 0.5
    assert calibration_error(labels, np.full(4, 0.5)) == pytest.approx(0.0)
    assert calibration_error(labels, np.full(4, 0.25)) == pytest.approx(0.25)
    predicted, observed, share = reliability(labels, np.array([0.05, 0.05, 0.95, 0.95]))
    assert (predicted[0], observed[0], share[0]) == (pytest.approx(0.05), 0.5, 0.5)
    assert np.isnan(observed[5])


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
def test_the_derived_direction_of_eq_3_undoes_class_weights_and_the_printed_doubles_them(share: float) -> None:
    """A model that learns the weighted odds exactly; the truth is known."""
    truth = np.linspace(0.01, 0.99, 50)
    odds = truth / (1 - truth) * (1 - share) / share  # weight phi- on positives, phi+ on negatives
    learnt = odds / (1 + odds)
    np.testing.assert_allclose(corrected(learnt, share, Correction.DERIVED), truth)
    np.testing.assert_array_equal(corrected(learnt, share, Correction.NONE), learnt)
    printed = corrected(learnt, share, Correction.PRINTED)
    assert np.abs(printed - truth).mean() > np.abs(learnt - truth).mean()


def test_certainty_survives_correction() -> None:
    assert corrected(np.array([0.0, 1.0]), 0.1).tolist() == [0.0, pytest.approx(1.0)]
