"""A cloud that shows a run only its own machines, even if other runs have the same id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ebbtide.clouds.cloud import Instance, MachineRequest, is_silent
from ebbtide.clouds.parts import PartlySilentError
from ebbtide.clouds.provider import RentingCloud
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries


class OwnMachines:
    """Prefixes machines' tokens by the run's unique name in the cloud, and by the run's id for the run.

    Args:
        cloud: The cloud, made for the run's unique name.
        run: Id of the run, the prefix of the tokens that it uses.
        name: Unique name of the run.
    """

    def __init__(self, cloud: RentingCloud, run: str, name: str) -> None:
        self._cloud, self._own, self._unique = cloud, f"{run}-", f"{name}-"

    @property
    def now_s(self) -> float:
        return self._cloud.now_s

    @property
    def is_over(self) -> bool:
        return self._cloud.is_over

    @property
    def markets(self) -> Sequence[Market]:
        return self._cloud.markets

    def prices(self, market: Market) -> PriceSeries:
        return self._cloud.prices(market)

    def time_of(self, epoch_s: float) -> float:
        return self._cloud.time_of(epoch_s)

    def launch(self, wanted: MachineRequest) -> None:
        """Request a machine."""
        self._cloud.launch(replace(wanted, token=self._outside(wanted.token)))

    def terminate(self, token: str) -> float | None:
        return self._cloud.terminate(self._outside(token))

    def instances(self) -> Sequence[Instance]:
        """All machines of the run, ended ones included."""
        try:
            return self._seen_inside(self._cloud.instances())
        except PartlySilentError as error:
            raise PartlySilentError(str(error), self._seen_inside(error.found)) from error

    def is_silent(self, market: Market) -> bool:
        """Return whether the part of the cloud that rents in a market did not answer the last listing."""
        return is_silent(self._cloud, market)

    def _seen_inside(self, listed: Sequence[Instance]) -> list[Instance]:
        return [replace(one, token=self._inside(one.token)) for one in listed]

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run, as in `RentingCloud.end_all`."""
        left: Mapping[str, str] = self._cloud.end_all()
        return {self._inside(token): why for token, why in left.items()}

    def _outside(self, token: str) -> str:
        # A machine without its tags has its cloud's id in place of a token, which stays unchanged.
        return f"{self._unique}{token.removeprefix(self._own)}" if token.startswith(self._own) else token

    def _inside(self, token: str) -> str:
        return f"{self._own}{token.removeprefix(self._unique)}" if token.startswith(self._unique) else token
