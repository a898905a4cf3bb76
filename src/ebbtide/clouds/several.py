"""Several clouds as one: the policy chooses among all markets, and each is rented in its own cloud."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from ebbtide.clouds.cloud import Instance, MachineRequest, is_silent
from ebbtide.clouds.parts import ListedParts, all_ended, first_found
from ebbtide.clouds.provider import RentingCloud
from ebbtide.errors import unknown_name
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries

_LOGGER = logging.getLogger(__name__)


class SeveralClouds:
    """Rents the machines of one run in several clouds. A cloud that does not answer does not hold up the others.

    Args:
        clouds: The clouds, by their name in markets, such as `aws`. All use this machine's clock.
    """

    def __init__(self, clouds: Mapping[str, RentingCloud]) -> None:
        self._clouds = dict(clouds)
        self._listed = ListedParts(_LOGGER)

    @property
    def now_s(self) -> float:
        return next(iter(self._clouds.values())).now_s

    @property
    def is_over(self) -> bool:
        return all(cloud.is_over for cloud in self._clouds.values())

    @property
    def markets(self) -> Sequence[Market]:
        return [market for cloud in self._clouds.values() for market in cloud.markets]

    def prices(self, market: Market) -> PriceSeries:
        return self._cloud_of(market).prices(market)

    def time_of(self, epoch_s: float) -> float:
        return epoch_s

    def launch(self, wanted: MachineRequest) -> None:
        """Request a machine in the cloud of its market."""
        self._cloud_of(wanted.market).launch(wanted)

    def terminate(self, token: str) -> float | None:
        own = self._listed.part_of(token)
        # Ask the machine's own cloud first, so as not to wait for other clouds that do not answer.
        ordered = sorted(self._clouds, key=lambda name: name != own)
        return first_found(partial(self._clouds[name].terminate, token) for name in ordered)

    def instances(self) -> Sequence[Instance]:
        """All machines; for a cloud that does not answer, those of its last answer."""
        return self._listed.listed({name: cloud.instances for name, cloud in self._clouds.items()}, self.now_s)

    def is_silent(self, market: Market) -> bool:
        """Return whether the cloud of a market, or its part there, did not answer the last listing."""
        return market.cloud in self._listed.silent or is_silent(self._clouds.get(market.cloud), market)

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run in all clouds, as in `RentingCloud.end_all`."""
        return all_ended(cloud.end_all for cloud in self._clouds.values())

    def _cloud_of(self, market: Market) -> RentingCloud:
        try:
            return self._clouds[market.cloud]
        except KeyError:
            raise unknown_name("cloud of this run", market.cloud, self._clouds) from None
