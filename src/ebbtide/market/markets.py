"""Markets: what can be rented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LINUX = "Linux/UNIX"


class Place(NamedTuple):
    """Cloud and region that hold data: transfers within a place are free, transfers out of it cost egress."""

    cloud: str
    region: str

    def __str__(self) -> str:
        return f"{self.cloud} {self.region}"


@dataclass(frozen=True, order=True, slots=True)
class Market:
    """Spot market: an instance type in a zone, with an operating system (the product)."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    product: str = LINUX

    @property
    def place(self) -> Place:
        """The market's cloud and region."""
        return Place(self.cloud, self.region)

    def __str__(self) -> str:
        product = "" if self.product in (LINUX, "Linux") else f" {self.product}"
        return f"{self.zone} {self.instance_type}{product}"


def product_name(cloud: str, product: str) -> str:
    """The one name that a product has here: EC2 names each product twice, with and without `(Amazon VPC)`."""
    plain = product.removesuffix(" (Amazon VPC)")
    if plain.casefold() in ("linux", LINUX.casefold()):
        return "Linux" if cloud == "azure" else LINUX
    return plain


def is_linux(product: str) -> bool:
    """Return whether a product runs programs as Linux does; not those with a paid licence (SUSE, Red Hat)."""
    return product.startswith("Linux")


MARKET_FIELDS = ("cloud", "region", "zone", "instance_type", "product")

# The one schema of price histories: a price holds from its timestamp until the market's next row.
PRICE_COLUMNS = ("timestamp", *MARKET_FIELDS, "price_usd_per_hour")
