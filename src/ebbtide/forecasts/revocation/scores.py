"""Scores of predicted probabilities."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_BINS = 10


@dataclass(frozen=True)
class Scores:
    """Scores of predictions; None where they are undefined.

    Attributes:
        accuracy: Share of decisions that were right.
        f1: Harmonic mean of precision and recall; None if there is neither a positive nor a positive decision.
        precision: Share of positive decisions that were right.
        recall: Share of positives that were found.
        auc: Area under the ROC curve; None if all labels are equal.
        brier: Mean squared error of the probabilities.
        ece: Expected calibration error over ten bins of equal width.
        base_rate: Share of positives among the labels.
        samples: Number of samples that were scored.
    """

    accuracy: float
    f1: float | None
    precision: float | None
    recall: float | None
    auc: float | None
    brier: float
    ece: float
    base_rate: float
    samples: int

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def score(labels: Bools, probabilities: Floats, decisions: Bools) -> Scores:
    """Score predictions.

    Args:
        labels: Whether each event happened, shape (n,), n >= 1.
        probabilities: Predicted probability of each event, shape (n,).
        decisions: Whether each event was decided for, by the model's threshold, shape (n,).
    """
    hits = int((decisions & labels).sum())
    positives, decided = int(labels.sum()), int(decisions.sum())
    return Scores(
        accuracy=float((decisions == labels).mean()),
        f1=2 * hits / (positives + decided) if positives + decided else None,
        precision=hits / decided if decided else None,
        recall=hits / positives if positives else None,
        auc=auc(labels, probabilities),
        brier=float(np.mean((probabilities - labels) ** 2)),
        ece=calibration_error(labels, probabilities),
        base_rate=float(labels.mean()),
        samples=len(labels),
    )


def auc(labels: Bools, probabilities: Floats) -> float | None:
    """Area under the ROC curve, ties counted half; None if all labels are equal."""
    from scipy.stats import rankdata

    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    ranks = rankdata(probabilities)
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def reliability(labels: Bools, probabilities: Floats, bins: int = _BINS) -> tuple[Floats, Floats, Floats]:
    """Mean prediction, share of positives and share of samples in each bin of equal width, shape (bins,) each.

    The first two are NaN in empty bins.
    """
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins).astype(float)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(place, weights=probabilities, minlength=bins) / count
        observed = np.bincount(place, weights=labels.astype(float), minlength=bins) / count
    return predicted, observed, count / len(labels)


def calibration_error(labels: Bools, probabilities: Floats) -> float:
    """Expected calibration error: mean distance of predicted from observed shares, bins weighted by samples."""
    predicted, observed, share = reliability(labels, probabilities)
    return float(np.nansum(np.abs(predicted - observed) * share))


def best_f1_threshold(labels: Bools, probabilities: Floats) -> float:
    """The threshold with the best F1, where probabilities at or above it are positive decisions.

    Without any positive it is above 1, so that no decision is positive.
    """
    positives = int(labels.sum())
    if not positives:
        return 1.0 + 1e-9
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    hits = np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + positives)
    # A threshold includes all of its ties.
    last_of_tie = np.append(ranked[1:] != ranked[:-1], True)
    return float(ranked[int(np.argmax(np.where(last_of_tie, f1, -1.0)))])
