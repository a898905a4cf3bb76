"""From what a class-weighted network says to a probability: Eq. 3 on its odds, then Platt's scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize

from ebbtide.forecasts.revocation.correction import Correction, corrected
from ebbtide.forecasts.revocation.minutes import Floats, Floats32, Integers
from ebbtide.forecasts.revocation.scores import Bools

# How strongly the scaling is held near the identity: validation days are few and much alike.
_HOLD = 0.01


@dataclass(frozen=True)
class Calibration:
    """How log odds of a network are read; arrays of them read those of several networks at once.

    Attributes:
        share_positive: phi+ of what it was trained on, for Eq. 3.
        slope: Of the corrected log odds.
        offset: Added to them.
    """

    share_positive: Floats | float
    slope: Floats | float = 1.0
    offset: Floats | float = 0.0

    @classmethod
    def of_each(cls, each: Sequence[Calibration], which: Integers) -> Calibration:
        """That of several networks, for rows answered by network `which`; arrays of shape (rows, 1)."""
        columns = [[own.share_positive, own.slope, own.offset] for own in each]
        return cls(*np.array(columns, dtype=float).T[:, which, None])

    def log_odds(self, said: Floats | Floats32, direction: Correction, *, scaled: bool = True) -> Floats:
        """The log odds of revocation.

        Args:
            said: The network's log odds, any shape.
            direction: Of Eq. 3.
            scaled: By slope and offset too.
        """
        raw = 1.0 / (1.0 + np.exp(-said.astype(np.float64)))
        probability = np.clip(corrected(raw, self.share_positive, direction), 1e-7, 1 - 1e-7)
        odds = np.log(probability / (1.0 - probability))
        return np.asarray(self.slope * odds + self.offset if scaled else odds)


def fitted_to(
    calibration: Calibration, said: Floats | Floats32, truth: Bools, direction: Correction
) -> Calibration:
    """Fit slope and offset on validation data (Platt's scaling), held near the identity.

    Args:
        calibration: With phi+.
        said: The network's log odds, any shape.
        truth: Whether the market revoked, of the same shape.
        direction: Of Eq. 3.
    """
    odds = calibration.log_odds(said, direction, scaled=False)

    def cost(scale: Floats) -> float:
        scaled = scale[0] * odds + scale[1]
        loss = np.mean(np.logaddexp(0.0, scaled) - truth * scaled)
        return float(loss + _HOLD * ((scale[0] - 1) ** 2 + scale[1] ** 2))

    slope, offset = (float(value) for value in minimize(cost, [1.0, 0.0], method="Nelder-Mead").x)
    return replace(calibration, slope=slope, offset=offset)
