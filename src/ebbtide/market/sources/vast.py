"""Vast's marketplace: offers of interruptible machines, without credentials.

Machines belong to many people and no two offers are alike. Here all offers of one country with the same number of
GPUs of the same kind are a market: its price is the least bid that rents one now, its capacity how many there are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ebbtide.base.json_values import misfit
from ebbtide.errors import CloudError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind, price_rows
from ebbtide.market.sources.web import Web

ADDRESS = "https://console.vast.ai"
_PATH = "/api/v0/bundles/"
_MOST_OFFERS = 10_000


@dataclass(frozen=True)
class Vast:
    """Offers that can be rented now.

    Attributes:
        instance_types: Markets to keep, such as `1x RTX 4090`; all if empty.
        web: Client of the service.
    """

    instance_types: Sequence[str] = ()
    web: Web = field(default_factory=lambda: Web(ADDRESS, "Vast"))
    name = "vast"
    every_s = 300.0

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:  # noqa: ARG002
        """See `LiveSource`."""
        wanted = {"rentable": {"eq": True}, "rented": {"eq": False}, "type": "bid", "limit": _MOST_OFFERS}
        answer = self.web.get(_PATH, q=json.dumps(wanted))
        bids: dict[Market, list[float]] = defaultdict(list)
        try:
            for offer in answer["offers"]:
                usd, country = float(offer["min_bid"] or 0.0), _country(offer.get("geolocation"))
                kind = f"{int(offer['num_gpus'])}x {offer['gpu_name']}"
                if usd > 0.0 and (not self.instance_types or kind in self.instance_types):
                    bids[Market("vast", country, country, kind)].append(usd)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CloudError(f"Vast answered something unknown: {misfit(error)}") from None
        return Observation(
            price_rows((now_s, market, min(each)) for market, each in bids.items()),
            [Signal(now_s, SignalKind.CAPACITY, market, float(len(each))) for market, each in bids.items()],
            dict.fromkeys((market.region for market in bids), "vast"),
            whole=True,
        )


def _country(geolocation: object) -> str:
    """The country of an offer: `US` of `Texas, US`; `anywhere` where it does not say."""
    return str(geolocation or "").rpartition(",")[2].strip() or "anywhere"
