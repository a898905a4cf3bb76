"""Egress: what clouds charge for data that leaves a region. What comes in is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.errors import unknown_name
from ebbtide.market.markets import Place

GIB = 2**30

# List prices per GiB of the first terabytes a month, North America, 2020.
_BETWEEN_REGIONS = {"aws": 0.02, "azure": 0.02, "gcp": 0.02}
_TO_OTHER_CLOUDS = {"aws": 0.09, "azure": 0.087, "gcp": 0.12}


@dataclass(frozen=True)
class EgressPrices:
    """What a GiB costs, by the cloud that it leaves.

    Attributes:
        between_regions: USD per GiB to another region of the same cloud.
        to_other_clouds: USD per GiB to another cloud, over the Internet (Dynamic Pricing, Table 2).
    """

    between_regions: Mapping[str, float] = field(default_factory=lambda: _BETWEEN_REGIONS)
    to_other_clouds: Mapping[str, float] = field(default_factory=lambda: _TO_OTHER_CLOUDS)

    def usd_per_gib(self, source: Place, destination: Place) -> float:
        """Of data that go from one place to another; nothing within a region.

        Raises:
            InputError: What the cloud charges is not known.
        """
        if source == destination:
            return 0.0
        prices = self.between_regions if source.cloud == destination.cloud else self.to_other_clouds
        try:
            return prices[source.cloud]
        except KeyError:
            raise unknown_name("cloud with egress prices", source.cloud, prices) from None

    def usd(self, size_bytes: int, source: Place, destination: Place) -> float:
        """Of so many bytes; the same errors."""
        return size_bytes / GIB * self.usd_per_gib(source, destination)
