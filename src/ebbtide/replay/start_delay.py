"""Time from a machine's request until training can be put on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ebbtide.market.leases import Lease
from ebbtide.market.price_series import Floats

# DeepSpotCloud, Table II, seconds from request to user script: minimum, quartiles and maximum. The point of the
# last quarter is the one with which the mean is the table's, 121.6.
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.875, 1.0)
_SECONDS = (86.5, 96.5, 110.0, 126.6, 162.0, 242.9)

# Of that time, what passes before the machine is charged for.
_REQUEST_SHARE = 1 / 6

_DRAWS = 1021


@dataclass(frozen=True)
class StartDelay:
    """The same for every machine; about two minutes, as DeepSpotCloud's Table II has it.

    Attributes:
        request_s: From asking for it to the start of its charges.
        boot_s: From there until training can be put on it (charged).
    """

    request_s: float = 20.0
    boot_s: float = 100.0

    def of(self, lease: Lease) -> tuple[float, float]:  # noqa: ARG002
        """Request and boot time of a machine, seconds."""
        return self.request_s, self.boot_s


@dataclass(frozen=True)
class MeasuredStartDelay:
    """A time for each machine, drawn from DeepSpotCloud's Table II (86.5 to 242.9 s, 121.6 in the mean).

    A machine's time follows from the seed, from when it was asked for and from its number, and so is the same
    whoever replays it.

    Attributes:
        seed: Seed of the random draws.
    """

    seed: int = 0

    def of(self, lease: Lease) -> tuple[float, float]:
        """Request and boot time of a machine, seconds."""
        request_s, boot_s = self.split_s
        place = (int(lease.requested_s) + lease.lease_id) % _DRAWS
        return float(request_s[place]), float(boot_s[place])

    @cached_property
    def split_s(self) -> tuple[Floats, Floats]:
        """Request and boot times to draw from: a machine's are at (whole second of its request + its number)."""
        # The middles of as many equal parts, so that the draws have the table's mean.
        shares = (np.arange(_DRAWS) + 0.5) / _DRAWS
        total_s = np.random.default_rng(self.seed).permutation(np.interp(shares, _SHARES, _SECONDS))
        return _REQUEST_SHARE * total_s, (1.0 - _REQUEST_SHARE) * total_s
