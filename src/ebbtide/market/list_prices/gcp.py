"""Google Cloud's list prices: the Cloud Billing Catalog, which has prices of cores, memory and GPUs.

A machine costs its cores, its memory and its GPUs, each by the hour, so the price of a type that the catalogue
knows is their sum. Types with local disks in their price (A2 ultra, A3 and others) are no such sums and are left
out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.base.json_values import misfit
from ebbtide.errors import CloudError
from ebbtide.market.catalogue import Catalogue, InstanceType
from ebbtide.market.list_prices.listed import Listed, PriceKey
from ebbtide.market.markets import LINUX
from ebbtide.market.sources.web import Web

ADDRESS = "https://cloudbilling.googleapis.com"
_PATH = "/v1/services/6F81-5844-456A/skus"
_MOST_PAGES = 1_000

# By the beginning of a type's name, how descriptions of its parts begin.
_SERIES = {
    "a2-highgpu": "A2 Instance",
    "a2-megagpu": "A2 Instance",
    "c2-": "Compute optimized",
    "c2d-": "C2D AMD Instance",
    "c3-": "C3 Instance",
    "c4-": "C4 Instance",
    "e2-": "E2 Instance",
    "g2-": "G2 Instance",
    "n1-": "N1 Predefined Instance",
    "n2-": "N2 Instance",
    "n2d-": "N2D AMD Instance",
    "n4-": "N4 Instance",
    "t2d-": "T2D AMD Instance",
}
_GPUS = {"NVIDIA A100": "Nvidia Tesla A100 GPU", "NVIDIA L4": "Nvidia L4 GPU"}
# Machines with shares of a core, with disks in their price, or without a hypervisor.
_OTHER = ("e2-micro", "e2-small", "e2-medium", "-lssd", "-metal")
# What is no price of an ordinary machine on demand.
_SPECIAL = re.compile(r"custom|sole tenancy|premium|reserved|commitment|dws|calendar", re.IGNORECASE)


@dataclass(frozen=True)
class GcpPriceList:
    """The Cloud Billing Catalog.

    Attributes:
        web: Client of the service, whose headers have an API key or a token.
    """

    web: Web
    cloud = "gcp"

    def listed(self, regions: Sequence[str], known: Catalogue) -> Listed:
        """See `PriceList`; prices are those of the types of the catalogue."""
        parts = _parts(self._skus(), frozenset(regions))
        prices: dict[PriceKey, float] = {}
        left_out: dict[str, str] = {}
        for entry in known.instance_types:
            if entry.cloud != "gcp":
                continue
            sums = {region: usd for region in regions if (usd := _sum(entry, parts[region])) is not None}
            prices.update({("gcp", region, entry.name, LINUX): usd for region, usd in sums.items()})
            if not sums:
                left_out[entry.name] = "no prices of all its parts there, or they are not its whole price"
        if not prices:
            raise CloudError(f"{self.web.name} has no machines in {', '.join(regions)}")
        return Listed(prices, (), left_out)

    def _skus(self) -> Iterator[Mapping[str, Any]]:
        parameters = {"currencyCode": "USD", "pageSize": "5000"}
        for _ in range(_MOST_PAGES):
            page = self.web.get(_PATH, **parameters)
            skus = page.get("skus") if isinstance(page, dict) else None
            if not isinstance(skus, list):
                raise CloudError(f"{self.web.name} answered without a list named skus")
            yield from (sku for sku in skus if isinstance(sku, dict))
            token = page.get("nextPageToken")
            if not token:
                return
            parameters["pageToken"] = str(token)
        raise CloudError(f"{self.web.name} has no end: {_MOST_PAGES} pages")


def _parts(skus: Iterator[Mapping[str, Any]], regions: frozenset[str]) -> dict[str, dict[str, float]]:
    """By region, the price of each part by the beginning of its description, USD per hour and core, GiB or GPU."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for sku in skus:
        try:
            category, text = sku["category"], str(sku["description"])
            is_ordinary = category["resourceFamily"] == "Compute" and category["usageType"] == "OnDemand"
            if not is_ordinary or _SPECIAL.search(text) or " running in " not in text:
                continue
            usd = _unit_usd(sku["pricingInfo"][-1]["pricingExpression"])
            here = regions.intersection(map(str, sku["serviceRegions"]))
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise CloudError(f"the Cloud Billing Catalog has a SKU that cannot be read: {misfit(error)}") from None
        if usd is not None:
            for region in here:
                found[region][text.partition(" running in ")[0]] = usd
    return found


def _unit_usd(expression: Mapping[str, Any]) -> float | None:
    """The price of one unit for an hour, USD; None: it is by another unit, or in tiers."""
    rates = expression["tieredRates"]
    if expression["usageUnit"] not in ("h", "GiBy.h") or len(rates) != 1:
        return None
    price = rates[0]["unitPrice"]
    if price.get("currencyCode", "USD") != "USD":
        raise CloudError(f"the Cloud Billing Catalog answered in {price['currencyCode']}, not in USD")
    return int(price.get("units", 0)) + int(price.get("nanos", 0)) / 1e9


def _sum(entry: InstanceType, parts: Mapping[str, float]) -> float | None:
    """The price of a machine, USD per hour; None where that of a part is not known."""
    series = next((text for prefix, text in _SERIES.items() if entry.name.startswith(prefix)), None)
    if series is None or any(other in entry.name for other in _OTHER):
        return None
    wanted = [(f"{series} Core", float(entry.vcpus)), (f"{series} Ram", entry.memory_gib)]
    if entry.accelerator is not None:
        gpu = _GPUS.get(entry.accelerator)
        if gpu is None:
            return None
        wanted.append((gpu, float(entry.accelerator_count)))
    if any(name not in parts for name, _ in wanted):
        return None
    return round(sum(parts[name] * count for name, count in wanted), 6)
