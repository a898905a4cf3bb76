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
    """A cloud that costs money: all machines of a run can be found and ended even without its journal."""

    def end_all(self) -> dict[str, str]:
        """Request the end of every machine of the run.

        Returns:
            By token of each machine that still ran, why it cannot be ended; empty: its end was requested.

        Raises:
            CloudError: A part of the cloud does not answer; the end was still requested elsewhere.
        """
        ...


class CloudProvider(Protocol[Settings]):
    """A cloud as users name it: `--provider NAME --machines FILE`.

    Attributes:
        cloud_name: Name of the cloud in its markets.
        billing: Billing preset of its spot machines.
        example: Path of an example of its settings.
        knows_addresses: Whether it reports the addresses at which machines of a region reach each other.
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
        """Decode settings from plain values, as a run or a file for several clouds stores them.

        Args:
            content: The settings as plain values.
            file: Path of the file that holds them; paths in them are relative to its folder.

        Raises:
            InputError: They are not valid.
        """
        ...

    def ready(self, settings: Settings, expected_end_s: float) -> Settings:
        """Check the cloud's prerequisites before a run begins; returns the settings with looked-up values.

        Args:
            settings: Settings of the run's machines.
            expected_end_s: Expected end of the run, seconds since 1970.

        Raises:
            InputError: There are no credentials, or something that the settings name does not exist.
        """
        ...

    def regions(self, settings: Settings) -> Sequence[str]:
        """Names of the regions in which machines may be rented."""
        ...

    def prices(self, folder: RunFolder, work: Runnable, settings: Settings) -> Prices:
        """Make a function that returns the newest known prices of the markets that a run allows.

        Raises:
            InputError: No price is known of any market that the run allows.
        """
        ...

    def cloud(self, run: str, settings: Settings, prices: Prices) -> RentingCloud:
        """The cloud of a run."""
        ...
