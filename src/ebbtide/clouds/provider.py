"""Interface through which a run rents from a cloud: its settings, prices, and the cloud itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ebbtide.clouds.cloud import Cloud
from ebbtide.clouds.machines import MachineSettings
from ebbtide.clouds.settings import RunFolder
from ebbtide.jobs.job_list import Runnable
from ebbtide.market.prices import PriceHistory

Prices = Callable[[], PriceHistory]

Settings = TypeVar("Settings", bound=MachineSettings)


class RentingCloud(Cloud, Protocol):
    """A cloud that costs money, so that all machines of a run can be found and ended without its journal."""

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run.

        Returns:
            The machines that still ran, by token: why each cannot be ended; empty: its end was requested.

        Raises:
            CloudError: A part of the cloud does not answer; elsewhere the end was requested all the same.
        """
        ...


class CloudProvider(Protocol[Settings]):
    """A cloud as users name it: `--provider NAME --machines FILE`.

    Attributes:
        cloud_name: Name of the cloud, as its markets have it.
        billing: Billing preset of its spot machines.
        example: An example of its settings.
        knows_addresses: Whether it tells the addresses at which machines of a region reach each other.
    """

    cloud_name: str
    billing: str
    example: str
    knows_addresses: bool

    def read(self, path: str | Path) -> Settings:
        """Read settings of machines from a user's file.

        Raises:
            InputError: They are not valid.
        """
        ...

    def decode(self, content: Any, file: Path) -> Settings:
        """The settings in plain values, as a run keeps them, or a file for several clouds has them.

        Args:
            content: The settings as plain values.
            file: Path of the file that they are from, to which paths in them are relative.

        Raises:
            InputError: They are not valid.
        """
        ...

    def ready(self, settings: Settings, expected_end_s: float) -> Settings:
        """Check what the cloud needs before a run begins; gives the settings with what was looked up.

        Args:
            settings: Settings of the run's machines.
            expected_end_s: Expected end of the run, seconds since 1970.

        Raises:
            InputError: There are no credentials, or something that the settings name is not there.
        """
        ...

    def regions(self, settings: Settings) -> Sequence[str]:
        """Names of the regions in which machines may be rented."""
        ...

    def prices(self, folder: RunFolder, work: Runnable, settings: Settings) -> Prices:
        """Return a function that gives the newest known prices of the markets that a run allows.

        Raises:
            InputError: No price is known, or none of a market that the run allows.
        """
        ...

    def cloud(self, run: str, settings: Settings, prices: Prices) -> RentingCloud:
        """The cloud of a run."""
        ...
