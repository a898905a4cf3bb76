"""Undoing class weights: SpotTune Eq. 3, as printed and as derived.

With weight phi- on positives and phi+ on negatives, a model learns the true odds times phi-/phi+. The true odds
are therefore the model's times phi+/phi-. The paper prints the other direction; it is kept so that the two can be
compared by Brier score and by a reliability curve on later data.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Correction(StrEnum):
    """Which way to correct a class-weighted probability."""

    NONE = "none"
    DERIVED = "derived"
    PRINTED = "printed"


def corrected(
    probability: NDArray[np.float64],
    share_positive: NDArray[np.float64] | float,
    direction: Correction = Correction.DERIVED,
) -> NDArray[np.float64]:
    """The probability of revocation behind a class-weighted model's output.

    Args:
        probability: The model's output, any shape, in [0, 1].
        share_positive: phi+, the share of positives in the training set, in (0, 1).
        direction: Which way Eq. 3 corrects.
    """
    if direction is Correction.NONE:
        return probability
    ratio = share_positive / (1.0 - share_positive)
    if direction is Correction.PRINTED:
        ratio = 1.0 / ratio
    # P = r q / (r q + 1 - q): the odds form without dividing by zero.
    weighted = ratio * probability
    return np.asarray(weighted / (weighted + 1.0 - probability))
