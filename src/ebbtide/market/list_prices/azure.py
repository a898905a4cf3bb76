"""Azure's list prices: the Retail Prices API, pages of JSON, without credentials.

It says no more of a machine than its name, so that machines which the catalogue does not have get a price alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebbtide.errors import CloudError
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.list_prices.listed import Listed, PriceKey
from ebbtide.market.sources.exports import azure_type_name
from ebbtide.market.sources.web import Web

ADDRESS = "https://prices.azure.com"
_PATH = "/api/retail/prices"
_VERSION = "2023-01-01-preview"
# A region has some dozens of pages.
_MOST_PAGES = 2_000


@dataclass(frozen=True)
class AzurePriceList:
    """The Retail Prices API.

    Attributes:
        web: Client of the service.
    """

    web: Web = field(default_factory=lambda: Web(ADDRESS, "Azure's Retail Prices API"))
    cloud = "azure"

    def listed(self, regions: Sequence[str], known: Catalogue) -> Listed:
        """See `PriceList`."""
        names = {entry.name for entry in known.instance_types if entry.cloud == "azure"}
        prices: dict[PriceKey, float] = {}
        for region in regions:
            for item in self._items(region):
                usd = self._usd(item)
                if usd is None:
                    continue
                key = ("azure", region, azure_type_name(str(item["armSkuName"])), "Linux")
                # A price may be listed by other meters, too; the primary one counts.
                if item.get("isPrimaryMeterRegion", True) or key not in prices:
                    prices[key] = usd
        if not prices:
            raise CloudError(f"{self.web.name} has no machines in {', '.join(regions)}")
        unknown = {key[2] for key in prices} - names
        return Listed(
            prices, (), dict.fromkeys(sorted(unknown), "the API does not say what it has; its price is kept")
        )

    def _items(self, region: str) -> Iterator[Mapping[str, Any]]:
        if not re.fullmatch(r"[a-z0-9]+", region):
            raise CloudError(f"{region!r} is no region of Azure; write for example eastus")
        wanted = (
            f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption'"
        )
        parameters = {"api-version": _VERSION, "currencyCode": "USD", "$filter": wanted}
        path = _PATH
        for _ in range(_MOST_PAGES):
            page = self.web.ask("GET", path, parameters)
            items = page.get("Items") if isinstance(page, dict) else None
            if not isinstance(items, list):
                raise CloudError(f"{self.web.name} answered without a list named Items")
            yield from (item for item in items if isinstance(item, dict))
            link = page.get("NextPageLink")
            if not link:
                return
            path, parameters = self.web.path_of(str(link)), {}
        raise CloudError(f"{self.web.name} has no end: {_MOST_PAGES} pages for {region}")

    def _usd(self, item: Mapping[str, Any]) -> float | None:
        """The price of a machine with Linux, USD per hour; None: the item is something else."""
        kinds = f"{item.get('skuName', '')} {item.get('meterName', '')}"
        product = str(item.get("productName", ""))
        is_other = "Spot" in kinds or "Low Priority" in kinds or "Windows" in product or not item.get("armSkuName")
        is_machine = product.startswith("Virtual Machines") and item.get("type", "Consumption") == "Consumption"
        if is_other or not is_machine or item.get("unitOfMeasure") != "1 Hour":
            return None
        if item.get("currencyCode", "USD") != "USD":
            raise CloudError(f"{self.web.name} answered with prices in {item['currencyCode']}, not in USD")
        try:
            usd = float(item["retailPrice"])
        except (KeyError, TypeError, ValueError):
            raise CloudError(f"{self.web.name} has no retailPrice for {item['armSkuName']}") from None
        return usd if usd > 0.0 else None
