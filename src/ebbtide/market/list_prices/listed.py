"""Answers of clouds' price APIs: machine types with their hardware, and their on-demand prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ebbtide.market.catalogue import Catalogue, InstanceType

# Cloud, region, instance type and product.
PriceKey = tuple[str, str, str, str]


@dataclass(frozen=True)
class Listed:
    """The answer of one cloud.

    Attributes:
        prices: List price by cloud, region, instance type and product, USD per hour.
        types: Instance types whose cores, memory and accelerators the cloud says.
        left_out: Names of instance types that were left out, with the reason in words.
    """

    prices: Mapping[PriceKey, float]
    types: Sequence[InstanceType] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


class PriceList(Protocol):
    """A cloud's price API.

    Attributes:
        cloud: Name of the cloud as in markets.
    """

    @property
    def cloud(self) -> str: ...

    def listed(self, regions: Sequence[str], known: Catalogue) -> Listed:
        """Fetch today's list prices and instance types of some regions.

        Args:
            regions: Names of the cloud's regions.
            known: Known instance types, for hardware that the API does not tell.

        Raises:
            CloudError: The API does not answer, refuses the request, or gives an unexpected answer.
        """
        ...
