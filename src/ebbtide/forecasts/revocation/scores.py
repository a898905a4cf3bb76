"""How good predicted probabilities are."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_BINS = 10


@dataclass(frozen=True)
class Scores:
    """Scores of predictions; None where they are not defined.

    Attributes:
        accuracy: Share decided rightly.
        f1: Harmonic mean of precision and recall; None if there is neither a positive nor a decision for one.
        precision: Share of positive decisions that were right.
        recall: Share of positives found.
        auc: Area under the ROC curve; None if all labels are alike.
        brier: Mean squared error of the probabilities.
        ece: Expected calibration error over ten bins of equal width.
        base_rate: Share of positives.
        samples: How many were scored.
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
        labels: What happened, shape (n,), n >= 1.
        probabilities: What was predicted, shape (n,).
        decisions: What was decided, shape (n,): each model has its threshold.
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
    """Area under the ROC curve, ties counted half; None if all labels are alike."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    ranks = rankdata(probabilities)
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def reliability(labels: Bools, probabilities: Floats, bins: int = _BINS) -> tuple[Floats, Floats, Floats]:
    """Mean prediction, share of positives and share of samples of each bin of equal width; NaN in empty ones."""
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins).astype(float)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(place, weights=probabilities, minlength=bins) / count
        observed = np.bincount(place, weights=labels.astype(float), minlength=bins) / count
    return predicted, observed, count / len(labels)


def calibration_error(labels: Bools, probabilities: Floats) -> float:
    """The mean distance between predicted and observed, over bins, weighted by their samples."""
    predicted, observed, share = reliability(labels, probabilities)
    return float(np.nansum(np.abs(predicted - observed) * share))


def best_f1_threshold(labels: Bools, probabilities: Floats) -> float:
    """The threshold at which deciding for all probabilities at or above it gives the best F1.

    Without a positive, above every probability: nothing is decided for.
    """
    positives = int(labels.sum())
    if not positives:
        return 1.0 + 1e-9
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    hits = np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + positives)
    # A threshold takes in all of its ties.
    last_of_tie = np.append(ranked[1:] != ranked[:-1], True)
    return float(ranked[int(np.argmax(np.where(last_of_tie, f1, -1.0)))])
