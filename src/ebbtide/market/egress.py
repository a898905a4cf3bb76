"""Egress: what clouds charge for data that leaves a region, and how long the transfer takes. Ingress is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.errors import unknown_name
from ebbtide.market.markets import Place

GIB = 2**30

# List prices in USD per GiB for the first terabytes of a month, North America, 2020.
_BETWEEN_REGIONS = {"aws": 0.02, "azure": 0.02, "gcp": 0.02}
_TO_OTHER_CLOUDS = {"aws": 0.09, "azure": 0.087, "gcp": 0.12}

# For clouds that charge by continent: to another continent; and out of, into or within Asia.
_BETWEEN_CONTINENTS = {"gcp": 0.05}
_ASIA = {"gcp": 0.08}

# Gbit/s from object storage: in the same region, the same continent, another one (SkyNomad, measured on S3).
_SAME_REGION, _SAME_CONTINENT, _OTHER_CONTINENT = 9.72, 8.20, 3.59


@dataclass(frozen=True)
class EgressPrices:
    """Egress prices by the cloud that the data leave.

    Attributes:
        between_regions: USD per GiB to another region of the same cloud.
        to_other_clouds: USD per GiB to another cloud, over the Internet (Dynamic Pricing, Table 2).
        between_continents: USD per GiB to another continent within one cloud, where that costs more.
        asia: USD per GiB within one cloud where one end or both are in Asia.
    """

    between_regions: Mapping[str, float] = field(default_factory=lambda: _BETWEEN_REGIONS)
    to_other_clouds: Mapping[str, float] = field(default_factory=lambda: _TO_OTHER_CLOUDS)
    between_continents: Mapping[str, float] = field(default_factory=lambda: _BETWEEN_CONTINENTS)
    asia: Mapping[str, float] = field(default_factory=lambda: _ASIA)

    def usd_per_gib(self, source: Place, destination: Place) -> float:
        """Price of a transfer between two places, USD per GiB; 0 within a region.

        Raises:
            InputError: The egress prices of the source's cloud are unknown.
        """
        if source == destination:
            return 0.0
        if source.cloud == destination.cloud:
            ends = {_continent(source), _continent(destination)}
            if ends & {"asia", "ap"} and source.cloud in self.asia:
                return self.asia[source.cloud]
            if len(ends) > 1 and source.cloud in self.between_continents:
                return self.between_continents[source.cloud]
        prices = self.between_regions if source.cloud == destination.cloud else self.to_other_clouds
        try:
            return prices[source.cloud]
        except KeyError:
            raise unknown_name("cloud with egress prices", source.cloud, prices) from None

    def usd(self, size_bytes: int, source: Place, destination: Place) -> float:
        """Cost of a transfer of `size_bytes`, USD. Raises the same errors as `usd_per_gib`."""
        return size_bytes / GIB * self.usd_per_gib(source, destination)


def clouds_with_egress() -> list[str]:
    """Names of the clouds whose list prices of egress are known, in order."""
    return sorted(_BETWEEN_REGIONS)


def transfer_s(size_bytes: int, source: Place, destination: Place) -> float:
    """Seconds that a transfer from another place takes longer than within one's own region; 0 within it."""
    if source == destination:
        return 0.0
    same = source.cloud == destination.cloud and _continent(source) == _continent(destination)
    rate = _SAME_CONTINENT if same else _OTHER_CONTINENT
    return size_bytes * 8.0 / 1e9 * (1.0 / rate - 1.0 / _SAME_REGION)


def _continent(place: Place) -> str:
    """The first part of a region's name: `us`, `europe`, `eu`, `asia`, `ap`..."""
    return place.region.split("-", 1)[0]
