"""SpotLake's open file of AWS: placement scores, interruption bands and spot prices of every type and zone.

SpotLake (ddps-lab, IISWC 2022) asks AWS for them every ten minutes and publishes the latest. Zones are named by
their ids (use1-az1), which are the same for all accounts. Scores of a single type went up to 3 until 2025-09-24;
since then those of the P family go up to 10, so that its 3 is 3 of 10. A score's share of the most there can be is
taken for the chance of one machine, and the mean over zones for that of a region. `IF` is 3 for the band of the
fewest interruptions, and half a point less for each further band. What is -1, blank or null is not known.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ebbtide.base.json_values import misfit
from ebbtide.errors import CloudError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind, price_rows
from ebbtide.market.sources.ec2_bands import BAND_SHARES
from ebbtide.market.sources.web import Web

ADDRESS = "https://spotlake.s3.us-west-2.amazonaws.com"
_PATH = "/latest_data/latest_aws.json"
_BEST_IF, _IF_STEP = 3.0, 0.5

# The most that a score of one type is: by the older scale, and by that of the whole API.
_OLD_BEST, _BEST = 3.0, 10.0
_TENTHS_SINCE_S = datetime(2025, 9, 25, tzinfo=UTC).timestamp()
_UNKNOWN = frozenset(("", "-1", "nan", "none", "null", "n/a"))


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
            by_market = [(_market(row), row) for row in rows]
            best = _best_scores(by_market, now_s)
            for market, row in by_market:
                if not self._keeps(market):
                    continue
                time_s = _time_s(row, now_s)
                whole = Market("aws", market.region, market.region, market.instance_type)
                score, calm, usd = (_amount(row[name]) for name in ("SPS", "IF", "SpotPrice"))
                if score is not None:
                    chance = score / best[_family(market)]
                    signals.append(Signal(time_s, SignalKind.AVAILABILITY, market, chance))
                    of_region[whole].append(chance)
                if calm is not None:
                    band = int(np.clip(round((_BEST_IF - calm) / _IF_STEP), 0, len(BAND_SHARES) - 1))
                    # It is the region's, and stands in the row of each zone.
                    shares[whole] = BAND_SHARES[band]
                if usd:
                    prices.append((time_s, market, usd))
        except (KeyError, TypeError, ValueError) as error:
            raise CloudError(f"SpotLake answered a row that cannot be read: {misfit(error)}") from None
        signals += [
            Signal(time_s, SignalKind.AVAILABILITY, market, float(np.mean(chances)))
            for market, chances in of_region.items()
        ]
        signals += [Signal(time_s, SignalKind.INTERRUPTION, market, share) for market, share in shares.items()]
        return Observation(price_rows(prices), signals)

    def _keeps(self, market: Market) -> bool:
        is_there = not self.regions or market.region in self.regions
        return is_there and (not self.instance_types or market.instance_type in self.instance_types)


def _market(row: Mapping[str, Any]) -> Market:
    return Market("aws", str(row["Region"]), str(row["AZ"]), str(row["InstanceType"]))


def _best_scores(rows: Sequence[tuple[Market, Mapping[str, Any]]], now_s: float) -> Mapping[str, float]:
    """By family of types, the most that its scores can be.

    Raises:
        ValueError: A score is above 10.
    """
    best: dict[str, float] = {}
    for market, row in rows:
        family, score = _family(market), _amount(row["SPS"])
        # Which families have scores in tenths is known of P; of others, one score above 3 shows it of all.
        in_tenths = (family == "p" and _time_s(row, now_s) >= _TENTHS_SINCE_S) or (score or 0.0) > _OLD_BEST
        best[family] = _BEST if in_tenths else best.get(family, _OLD_BEST)
        if score is not None and score > _BEST:
            raise ValueError(f"a score of {score:g}, which is above {_BEST:g}")
    return best


def _family(market: Market) -> str:
    """The letters that begin the name of a type: p of p5.48xlarge."""
    return re.match(r"[a-z]*", market.instance_type)[0]  # type: ignore[index]


def _amount(value: Any) -> float | None:
    """A number that is not negative; None where nothing is known.

    Raises:
        ValueError: It is no number.
    """
    if value is None or str(value).strip().casefold() in _UNKNOWN:
        return None
    number = float(value)
    return number if math.isfinite(number) and number >= 0.0 else None


def _time_s(row: Mapping[str, Any], now_s: float) -> float:
    """Time at which a row was collected, seconds since 1970, from field `time` or `Time` (UTC); else `now_s`."""
    text = row.get("time") or row.get("Time")
    if not text:
        return now_s
    return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
