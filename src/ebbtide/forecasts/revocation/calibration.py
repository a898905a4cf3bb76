"""Calibration of class-weighted networks: SpotTune Eq. 3 on their odds, then Platt scaling.

Eq. 3 undoes class weights. With weight phi- on positives and phi+ on negatives, a model learns the true odds times
phi-/phi+. The true odds are therefore the model's times phi+/phi-. The paper prints the other direction; it is
kept so that the two can be compared by Brier score and by a reliability curve on later data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ebbtide.forecasts.revocation.minutes import Floats, Floats32, Integers
from ebbtide.forecasts.revocation.scores import Bools


class Correction(StrEnum):
    """Direction in which Eq. 3 corrects a class-weighted probability."""

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


# Penalty that keeps the scaling near the identity: validation days are few and similar.
_HOLD = 0.01


@dataclass(frozen=True)
class OddsCalibration:
    """Turns a network's log odds into calibrated ones; with arrays, those of several networks at once.

    Attributes:
        share_positive: phi+, the share of positives among the training triples, for Eq. 3.
        slope: Factor on the corrected log odds.
        offset: Constant added to the scaled log odds.
    """

    share_positive: Floats | float
    slope: Floats | float = 1.0
    offset: Floats | float = 0.0

    @classmethod
    def of_each(cls, each: Sequence[OddsCalibration], which: Integers) -> OddsCalibration:
        """The calibration of rows answered by different networks, row i by network `which[i]`.

        Args:
            each: The calibration of every network.
            which: Index of each row's network, shape (rows,).

        Returns:
            A calibration whose values have the shape (rows, 1).
        """
        columns = [[own.share_positive, own.slope, own.offset] for own in each]
        return cls(*np.array(columns, dtype=float).T[:, which, None])

    def log_odds(self, raw_log_odds: Floats | Floats32, direction: Correction, *, scaled: bool = True) -> Floats:
        """The corrected log odds of revocation, in the shape given.

        Args:
            raw_log_odds: The network's log odds, any shape.
            direction: Which way Eq. 3 corrects.
            scaled: Whether slope and offset are applied too.
        """
        raw = 1.0 / (1.0 + np.exp(-raw_log_odds.astype(np.float64)))
        probability = np.clip(corrected(raw, self.share_positive, direction), 1e-7, 1 - 1e-7)
        odds = np.log(probability / (1.0 - probability))
        return np.asarray(self.slope * odds + self.offset if scaled else odds)


def fitted_to(
    calibration: OddsCalibration, raw_log_odds: Floats | Floats32, truth: Bools, direction: Correction
) -> OddsCalibration:
    """Fit slope and offset on validation data (Platt scaling), with a penalty that keeps them near 1 and 0.

    Args:
        calibration: The calibration whose phi+ is kept.
        raw_log_odds: The network's log odds, any shape.
        truth: Whether the market revoked, same shape.
        direction: Which way Eq. 3 corrects.
    """
    from scipy.optimize import minimize

    odds = calibration.log_odds(raw_log_odds, direction, scaled=False)

    def cost(scale: Floats) -> float:
        scaled = scale[0] * odds + scale[1]
        loss = np.mean(np.logaddexp(0.0, scaled) - truth * scaled)
        return float(loss + _HOLD * ((scale[0] - 1) ** 2 + scale[1] ** 2))

    slope, offset = (float(value) for value in minimize(cost, [1.0, 0.0], method="Nelder-Mead").x)
    return replace(calibration, slope=slope, offset=offset)
