"""Several clouds as one: each market is rented in its own cloud, and the policy chooses among all of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from ebbtide.clouds.clock import CLOCK
from ebbtide.clouds.cloud import Instance, MachineRequest
from ebbtide.clouds.parts import ListedParts, all_ended, first_found
from ebbtide.clouds.provider import RentingCloud
from ebbtide.errors import unknown_name
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries

_LOGGER = logging.getLogger(__name__)


class SeveralClouds:
    """Rents the machines of one run in several clouds. One that does not answer holds up no other.

    Args:
        clouds: The clouds, by the name that their markets have, such as `aws`. All run by this machine's clock.
    """

    def __init__(self, clouds: Mapping[str, RentingCloud]) -> None:
        self._clouds = dict(clouds)
        self._listed = ListedParts(_LOGGER)

    @property
    def now_s(self) -> float:
        return CLOCK.now_s()

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
        # Its own cloud first, so that others that do not answer are not waited for.
        ordered = sorted(self._clouds, key=lambda name: name != own)
        return first_found(partial(self._clouds[name].terminate, token) for name in ordered)

    def instances(self) -> Sequence[Instance]:
        """All machines; those of a cloud that does not answer are as they were when it last did."""
        return self._listed.listed({name: cloud.instances for name, cloud in self._clouds.items()}, self.now_s)

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run, in all clouds; as the clouds have it."""
        return all_ended(cloud.end_all for cloud in self._clouds.values())

    def _cloud_of(self, market: Market) -> RentingCloud:
        try:
            return self._clouds[market.cloud]
        except KeyError:
            raise unknown_name("cloud of this run", market.cloud, self._clouds) from None
