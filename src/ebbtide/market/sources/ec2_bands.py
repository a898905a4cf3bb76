"""AWS's interruption bands: the table of the Spot Instance Advisor, a public file.

A band says which share of a type's machines AWS interrupted in the last month: under 5 %, to 10, 15, 20, or more.
The middle of the band is taken for the share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebbtide.base.json_values import misfit
from ebbtide.errors import CloudError, InputError
from ebbtide.market.markets import Market
from ebbtide.market.signals import Observation, Signal, SignalKind
from ebbtide.market.sources.web import Web

ADDRESS = "https://spot-bid-advisor.s3.amazonaws.com"
_PATH = "/spot-advisor-data.json"

# Share of machines interrupted in the last month, by band.
BAND_SHARES = (0.025, 0.075, 0.125, 0.175, 0.25)


@dataclass(frozen=True)
class Ec2Bands:
    """The table of the Spot Instance Advisor.

    Attributes:
        regions: Names of the AWS regions to keep; all if empty.
        instance_types: Names of the instance types to keep; all if empty.
        web: Client of the service.
    """

    regions: Sequence[str] = ()
    instance_types: Sequence[str] = ()
    web: Web = field(default_factory=lambda: Web(ADDRESS, "the Spot Instance Advisor"))
    name = "ec2-bands"
    every_s = 3600.0

    def observe(self, since_s: Mapping[str, float], now_s: float) -> Observation:  # noqa: ARG002
        """See `LiveSource`."""
        try:
            shares = shares_of(self.web.get(_PATH))
        except InputError as error:
            raise CloudError(f"{self.web.name}: {error.problem}") from None
        return Observation(
            signals=[
                Signal(now_s, SignalKind.INTERRUPTION, Market("aws", region, region, kind), share)
                for (region, kind), share in shares.items()
                if (not self.regions or region in self.regions)
                and (not self.instance_types or kind in self.instance_types)
            ]
        )


def shares_of(content: Any, product: str = "Linux") -> dict[tuple[str, str], float]:
    """Shares of machines interrupted in the last month, by region and instance type.

    Args:
        content: The parsed table, as AWS publishes it (`spot-advisor-data.json`).
        product: Operating system of the machines, as in the table.

    Raises:
        InputError: It is not such a table.
    """
    try:
        bands = {
            (str(region), str(kind)): int(row["r"])
            for region, products in content["spot_advisor"].items()
            for kind, row in products.get(product, {}).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"is not the Spot Instance Advisor's table: {misfit(error)}") from None
    wrong = next((key for key, band in bands.items() if not 0 <= band < len(BAND_SHARES)), None)
    if wrong is not None:
        raise InputError(f"band {bands[wrong]} of {' '.join(wrong)} is not one of 0 to {len(BAND_SHARES) - 1}")
    return {key: BAND_SHARES[band] for key, band in bands.items()}
