"""AWS's list prices: the bulk price list of EC2, one CSV file a region, without credentials.

A file has some hundred megabytes, so it is read line by line and nothing is kept of it but machines and prices.
Its first five lines say what it is; the sixth names the columns.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ebbtide.errors import CloudError
from ebbtide.market.catalogue import Catalogue, InstanceType
from ebbtide.market.list_prices.listed import Listed, PriceKey
from ebbtide.market.markets import LINUX
from ebbtide.market.sources.web import Web

ADDRESS = "https://pricing.us-east-1.amazonaws.com"

# Lines within which the line with the names of the columns must come.
_HEADER_WITHIN = 20
# By the operating system of a price, the product of its market.
_PRODUCTS = {"Linux": LINUX, "Windows": "Windows", "RHEL": "Red Hat Enterprise Linux", "SUSE": "SUSE Linux"}
# What a row must say to be the price of an ordinary machine; columns that a file lacks are not asked.
_ORDINARY = {
    "TermType": ("OnDemand",),
    "Tenancy": ("Shared",),
    "CapacityStatus": ("Used",),
    "Pre Installed S/W": ("NA", ""),
    "License Model": ("No License required", "NA", ""),
    "MarketOption": ("OnDemand", ""),
    "Unit": ("Hrs",),
    "Currency": ("USD",),
}
_NEEDED = ("TermType", "Tenancy", "Unit", "Currency", "PricePerUnit", "Instance Type", "Operating System")


@dataclass(frozen=True)
class AwsPriceList:
    """The bulk price list of EC2.

    Attributes:
        web: Client of the service.
    """

    web: Web = field(default_factory=lambda: Web(ADDRESS, "AWS's price list"))
    cloud = "aws"

    def listed(self, regions: Sequence[str], known: Catalogue) -> Listed:
        """See `PriceList`; what a machine has is in the list, but for the names of its accelerators."""
        prices: dict[PriceKey, float] = {}
        types: dict[str, InstanceType] = {}
        left_out: dict[str, str] = {}
        for region in regions:
            with self.web.lines(f"/offers/v1.0/aws/AmazonEC2/current/{_checked(region)}/index.csv") as lines:
                for row in _rows(lines, region):
                    name = row["Instance Type"]
                    usd = _number(row["PricePerUnit"])
                    product = _PRODUCTS.get(row["Operating System"])
                    if product is None or not usd > 0.0:
                        continue
                    prices["aws", region, name, product] = usd
                    if name in types or name in left_out:
                        continue
                    found = _type_of(row, known)
                    if found is None:
                        left_out[name] = "the price list does not name its accelerators, or says not what it has"
                    else:
                        types[name] = found
        if not prices:
            raise CloudError(f"{self.web.name} has no machines in {', '.join(regions)}")
        return Listed(prices, tuple(types.values()), left_out)


def _checked(region: str) -> str:
    """A region's name, which becomes part of an address."""
    if not re.fullmatch(r"[a-z0-9-]+", region):
        raise CloudError(f"{region!r} is no region of AWS; write for example us-east-1")
    return region


def _rows(lines: Iterator[str], region: str) -> Iterator[dict[str, str]]:
    """The prices of ordinary machines."""
    try:
        reader = csv.reader(lines)
        header = next((row for row in itertools.islice(reader, _HEADER_WITHIN) if "SKU" in row), None)
        if header is None:
            raise CloudError(f"AWS's price list of {region} has no column 'SKU'")
        missing = next((name for name in _NEEDED if name not in header), None)
        if missing is not None:
            raise CloudError(f"AWS's price list of {region} has no column {missing!r}")
        wanted = [(header.index(name), values) for name, values in _ORDINARY.items() if name in header]
        for cells in reader:
            if len(cells) == len(header) and all(cells[place] in values for place, values in wanted):
                row = dict(zip(header, cells, strict=True))
                if row["Instance Type"]:
                    yield row
    except csv.Error as error:
        raise CloudError(f"AWS's price list of {region} is not a CSV file: {error}") from None


def _type_of(row: Mapping[str, str], known: Catalogue) -> InstanceType | None:
    """The machine of a row; None: its accelerators have no name here, and none in the catalogue."""
    name = row["Instance Type"]
    vcpus, memory_gib, gpus = (
        _number(row.get("vCPU", "")),
        _number(row.get("Memory", "")),
        _number(row.get("GPU", "")),
    )
    of_family = [
        entry for entry in known.instance_types if entry.cloud == "aws" and _family(entry.name) == _family(name)
    ]
    same = next((entry for entry in of_family if entry.name == name), None)
    if same is not None:
        # The list counts a part of a GPU as one, and some accelerators not at all: what is known stays.
        return same
    if not vcpus >= 1 or not memory_gib > 0:
        return None
    if not gpus > 0:
        return InstanceType("aws", name, int(vcpus), memory_gib)
    names = {entry.accelerator for entry in of_family if entry.accelerator}
    if len(names) != 1 or gpus != int(gpus):
        return None
    return InstanceType("aws", name, int(vcpus), memory_gib, names.pop(), int(gpus))


def _family(name: str) -> str:
    return name.partition(".")[0]


def _number(text: str) -> float:
    """The number at the beginning of a cell, such as `1,952 GiB`; NaN: there is none."""
    found = re.match(r"\s*([0-9][0-9,]*\.?[0-9]*)", text)
    return float(found.group(1).replace(",", "")) if found else math.nan
