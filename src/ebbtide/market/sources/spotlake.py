"""SpotLake's open file of AWS: placement scores, interruption bands and spot prices of every type and zone.

SpotLake (ddps-lab, IISWC 2022) asks AWS for them every ten minutes and publishes the latest. Zones are named by
their ids (use1-az1), which are the same for all accounts. Scores of a single type go up to 3; their share of that
is taken for the chance of one machine, and the mean over zones for that of a region. `IF` is 3 for the band of the
fewest interruptions, and half a point less for each further band. What is -1 is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ebbtide._json import misfit
from ebbtide.errors import CloudError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind, price_rows
from ebbtide.market.sources.ec2_bands import BAND_SHARES
from ebbtide.market.sources.web import Web

ADDRESS = "https://spotlake.s3.us-west-2.amazonaws.com"
_PATH = "/latest_data/latest_aws.json"
_BEST_SCORE, _BEST_IF, _IF_STEP = 3.0, 3.0, 0.5


@dataclass(frozen=True)
class SpotLake:
    """The latest file of AWS.

    Attributes:
        regions: Names of the AWS regions to keep; all if empty.
        instance_types: Names of the instance types to keep; all if empty.
        web: Client of the service.
    """

    regions: Sequence[str] = ()
    instance_types: Sequence[str] = ()
    web: Web = field(default_factory=lambda: Web(ADDRESS, "SpotLake"))
    name = "spotlake"
    every_s = 600.0

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:  # noqa: ARG002
        """See `LiveSource`."""
        rows = self.web.get(_PATH)
        if not isinstance(rows, list):
            raise CloudError("SpotLake answered something that is not a list")
        signals: list[Signal] = []
        prices: list[tuple[float, Market, float]] = []
        of_region: dict[Market, list[float]] = defaultdict(list)
        shares: dict[Market, float] = {}
        time_s = now_s
        try:
            for row in rows:
                market = Market("aws", str(row["Region"]), str(row["AZ"]), str(row["InstanceType"]))
                if (self.regions and market.region not in self.regions) or (
                    self.instance_types and market.instance_type not in self.instance_types
                ):
                    continue
                time_s = _time_s(row, now_s)
                whole = Market("aws", market.region, market.region, market.instance_type)
                score, calm, usd = (float(row[name]) for name in ("SPS", "IF", "SpotPrice"))
                if score >= 0.0:
                    chance = min(score / _BEST_SCORE, 1.0)
                    signals.append(Signal(time_s, SignalKind.AVAILABILITY, market, chance))
                    of_region[whole].append(chance)
                if calm >= 0.0:
                    band = int(np.clip(round((_BEST_IF - calm) / _IF_STEP), 0, len(BAND_SHARES) - 1))
                    # It is the region's, and stands in the row of each zone.
                    shares[whole] = BAND_SHARES[band]
                if usd > 0.0:
                    prices.append((time_s, market, usd))
        except (KeyError, TypeError, ValueError) as error:
            raise CloudError(f"SpotLake answered a row that cannot be read: {misfit(error)}") from None
        signals += [
            Signal(time_s, SignalKind.AVAILABILITY, market, float(np.mean(chances)))
            for market, chances in of_region.items()
        ]
        signals += [Signal(time_s, SignalKind.INTERRUPTION, market, share) for market, share in shares.items()]
        return Observation(price_rows(prices), signals)


def _time_s(row: Mapping[str, Any], now_s: float) -> float:
    """When a row was collected: in UTC, to the second, under either of two names."""
    text = row.get("time") or row.get("Time")
    if not text:
        return now_s
    return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
