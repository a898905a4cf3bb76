"""Google Cloud's advice on spot machines: `advice.capacity` for now, `advice.capacityHistory` for the past.

Now: the chance of one machine (obtainability) and for how long most machines are expected to last. The past: spot
prices, and of the spot machines that stopped, the share that Google preempted, by intervals. One request of each
for every zone and type. Both are in the beta version of Compute Engine's API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.base.json_values import misfit
from ebbtide.base.utc import to_epoch_s
from ebbtide.errors import CloudError, InputError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind, price_rows
from ebbtide.market.sources.web import Web

ADDRESS = "https://compute.googleapis.com"

_SPOT = {"scheduling": {"provisioningModel": "SPOT"}}


@dataclass(frozen=True)
class GcpCapacity:
    """Advice on one machine of each type in each zone.

    Attributes:
        project: Id of the project on whose behalf it is asked.
        zones: Names of zones, such as us-central1-a.
        instance_types: Names of machine types.
        web: Client of the service, whose headers have a token.
    """

    project: str
    zones: Sequence[str]
    instance_types: Sequence[str]
    web: Web
    name = "gcp-capacity"
    every_s = 600.0

    def __post_init__(self) -> None:
        for zone in self.zones:
            if not re.fullmatch(r"[a-z]+-[a-z]+[0-9]+-[a-z]", zone):
                raise InputError(f"{zone!r} is no zone of Google Cloud; write for example us-central1-a")
        if not re.fullmatch(r"[a-z0-9:.-]+", self.project):
            raise InputError(f"{self.project!r} is no id of a project of Google Cloud")

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:  # noqa: ARG002
        """See `LiveSource`."""
        signals: list[Signal] = []
        prices: list[tuple[float, Market, float]] = []
        for zone in self.zones:
            region = zone.rpartition("-")[0]
            for kind in self.instance_types:
                market = Market("gcp", region, zone, kind)
                try:
                    signals += _advice(self._ask(region, "capacity", _wanted(zone, kind)), market, now_s)
                    past = self._ask(region, "capacityHistory", _past_wanted(zone, kind))
                    signals += _preemptions(past, market)
                    prices += _prices(past, market)
                except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                    raise CloudError(
                        f"{self.web.name} answered something unknown of {market}: {misfit(error)}"
                    ) from None
        return Observation(price_rows(prices), signals)

    def _ask(self, region: str, what: str, body: Mapping[str, Any]) -> Any:
        return self.web.post(f"/compute/beta/projects/{self.project}/regions/{region}/advice/{what}", body)


def _wanted(zone: str, kind: str) -> dict[str, Any]:
    return {
        "instanceProperties": _SPOT,
        "instanceFlexibilityPolicy": {"instanceSelections": {"one": {"machineTypes": [kind]}}},
        "distributionPolicy": {"zones": [{"zone": f"zones/{zone}"}], "targetShape": "ANY"},
        "size": 1,
    }


def _past_wanted(zone: str, kind: str) -> dict[str, Any]:
    return {
        "instanceProperties": {"machineType": kind, **_SPOT},
        "locationPolicy": {"location": f"zones/{zone}"},
        "types": ["PREEMPTION", "PRICE"],
    }


def _advice(answer: Any, market: Market, now_s: float) -> Iterator[Signal]:
    """The signals of the first recommendation; a value that is not given is none."""
    recommendations = answer.get("recommendations", [])
    scores = recommendations[0].get("scores", {}) if recommendations else {}
    if "obtainability" in scores:
        yield Signal(now_s, SignalKind.AVAILABILITY, market, float(scores["obtainability"]))
    if "estimatedUptime" in scores:
        # A duration as Google writes it: "3600s".
        yield Signal(now_s, SignalKind.UPTIME, market, float(str(scores["estimatedUptime"]).removesuffix("s")))


def _preemptions(answer: Any, market: Market) -> Iterator[Signal]:
    for row in answer.get("preemptionHistory", []):
        if "preemptionRate" in row:
            time_s = to_epoch_s(str(row["interval"]["startTime"]))
            yield Signal(time_s, SignalKind.INTERRUPTION, market, float(row["preemptionRate"]))


def _prices(answer: Any, market: Market) -> Iterator[tuple[float, Market, float]]:
    for row in answer.get("priceHistory", []):
        price = row["listPrice"]
        if price.get("currencyCode", "USD") != "USD":
            raise ValueError(f"a price in {price['currencyCode']}, not in USD")
        usd = int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9
        yield to_epoch_s(str(row["interval"]["startTime"])), market, usd
