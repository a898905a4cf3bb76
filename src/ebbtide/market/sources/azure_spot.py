"""Azure's spot resources: prices and eviction rates from Azure Resource Graph.

An eviction rate is a band, in percent of the machines of a size in a region within an hour; its middle is taken.
Resource Graph wants a login; `pip install azure-identity` gives the standard chain of Azure's credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ebbtide.base.json_values import misfit
from ebbtide.base.utc import to_epoch_s
from ebbtide.errors import CloudError, InputError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind, price_rows
from ebbtide.market.sources.ec2_bands import BAND_SHARES
from ebbtide.market.sources.exports import azure_type_name
from ebbtide.market.sources.web import Web

ADDRESS = "https://management.azure.com"
_PATH, _VERSION = "/providers/Microsoft.ResourceGraph/resources", "2024-04-01"
_MOST_PAGES = 200
# The middles of Azure's bands, which are those of AWS.
_SHARES = dict(zip(("0-5", "5-10", "10-15", "15-20", "20+"), BAND_SHARES, strict=True))
_PRODUCT = "Linux"

_RATES = """SpotResources
| where type =~ 'microsoft.compute/skuspotevictionrate/location' and location in~ (REGIONS)
| project skuName = tostring(sku.name), location, evictionRate = tostring(properties.evictionRate)"""
_PRICES = """SpotResources
| where type =~ 'microsoft.compute/skuspotpricehistory/ostype/location' and location in~ (REGIONS)
| where properties.osType =~ 'linux'
| project skuName = tostring(sku.name), location, spotPrices = properties.spotPrices"""


@dataclass(frozen=True)
class AzureSpot:
    """The spot resources of some regions.

    Attributes:
        regions: Names of regions, such as eastus.
        web: Client of the service, whose headers have a token.
        catalogue: Known instance types, whose names are written as there: Resource Graph's are in lower case.
        instance_types: Names of instance types to keep, such as NC6s v3; all if empty.
    """

    regions: Sequence[str]
    web: Web
    catalogue: Catalogue
    instance_types: Sequence[str] = ()
    name = "azure-spot"
    every_s = 3600.0

    def __post_init__(self) -> None:
        for region in self.regions:
            if not re.fullmatch(r"[a-z0-9]+", region):
                raise InputError(f"{region!r} is no region of Azure; write for example eastus")

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:  # noqa: ARG002
        """See `LiveSource`."""
        wanted = [
            *self.instance_types,
            *(one.name for one in self.catalogue.instance_types if one.cloud == "azure"),
        ]
        names = {name.lower(): name for name in reversed(wanted)}
        signals: list[Signal] = []
        prices: list[tuple[float, Market, float]] = []
        try:
            for row in self._rows(_RATES):
                market = self._market(row, names)
                share = _SHARES.get(str(row["evictionRate"]))
                if market is not None and share is not None:
                    signals.append(Signal(now_s, SignalKind.INTERRUPTION, market, share))
            for row in self._rows(_PRICES):
                market = self._market(row, names)
                if market is not None:
                    prices += [
                        (to_epoch_s(str(one["effectiveDate"])), market, float(one["priceUSD"]))
                        for one in row["spotPrices"]
                    ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CloudError(f"{self.web.name} answered something unknown: {misfit(error)}") from None
        return Observation(price_rows(prices), signals)

    def _market(self, row: Mapping[str, Any], names: Mapping[str, str]) -> Market | None:
        """The market of a row; None: its type is not asked for."""
        name = azure_type_name(re.sub("^standard_", "Standard_", str(row["skuName"]), flags=re.IGNORECASE))
        name = names.get(name.lower(), name)
        region = str(row["location"]).lower()
        if self.instance_types and name not in self.instance_types:
            return None
        return Market("azure", region, region, name, _PRODUCT)

    def _rows(self, query: str) -> Iterator[Mapping[str, Any]]:
        options: dict[str, Any] = {"resultFormat": "objectArray"}
        text = query.replace("REGIONS", ", ".join(f"'{region}'" for region in self.regions))
        for _ in range(_MOST_PAGES):
            body = {"query": text, "options": options}
            page = self.web.ask("POST", _PATH, {"api-version": _VERSION}, body)
            yield from page["data"]
            if not page.get("$skipToken"):
                return
            options = {**options, "$skipToken": str(page["$skipToken"])}
        raise CloudError(f"{self.web.name} has no end: {_MOST_PAGES} pages")


def azure_token() -> str:
    """A token of Azure's standard chain of credentials.

    Raises:
        InputError: azure-identity is not installed, or it finds no credentials.
    """
    try:
        identity: Any = import_module("azure.identity")
    except ImportError:
        raise InputError(
            "Azure's Resource Graph needs a login: pip install azure-identity, then az login"
        ) from None
    try:
        return str(identity.DefaultAzureCredential().get_token(f"{ADDRESS}/.default").token)
    except Exception as error:
        # Its errors list every credential that was tried, over many lines.
        raise InputError(f"Azure gave no token: {str(error).strip().splitlines()[0]}; try az login") from None
