"""Mithril's auctions: the price at which each was last cleared, and how many machines it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.base.json_values import misfit
from ebbtide.errors import CloudError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind, price_rows
from ebbtide.market.sources.web import Web

ADDRESS = "https://api.mithril.ai"


@dataclass(frozen=True)
class Mithril:
    """Auctions of all regions, one for each instance type and region.

    Attributes:
        web: Client of the service, whose headers have an API key.
        instance_types: Names of the instance types to keep; all if empty.
    """

    web: Web
    instance_types: Sequence[str] = ()
    name = "mithril"
    # A round of the auction.
    every_s = 120.0

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:  # noqa: ARG002
        """See `LiveSource`."""
        try:
            names = {str(row["fid"]): str(row["name"]) for row in _listed(self.web.get("/v2/instance-types"))}
            signals: list[Signal] = []
            prices: list[tuple[float, Market, float]] = []
            for row in _listed(self.web.get("/v2/spot/availability")):
                kind, region = str(row["instance_type"]), str(row["region"])
                market = Market("mithril", region, region, names.get(kind, kind))
                if self.instance_types and market.instance_type not in self.instance_types:
                    continue
                signals.append(Signal(now_s, SignalKind.CAPACITY, market, float(row["capacity"])))
                # "$25.60"; zero where nothing was ever sold.
                usd = float(str(row["last_instance_price"]).replace("$", "").replace(",", ""))
                if usd > 0.0:
                    prices.append((now_s, market, usd))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CloudError(f"{self.web.name} answered something unknown: {misfit(error)}") from None
        regions = dict.fromkeys((market.region for _, market, _ in prices), "mithril")
        return Observation(price_rows(prices), signals, regions, whole=True)


def _listed(answer: Any) -> list[Any]:
    """The rows of an answer: a list, or a list under `data`."""
    rows = answer["data"] if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        raise TypeError("an answer is not a list")
    return rows
