"""SkyPilot as a provider of live runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebbtide.clouds.file_prices import FilePrices, in_places
from ebbtide.clouds.provider import Prices
from ebbtide.clouds.settings import RunFolder
from ebbtide.clouds.skypilot.api import SkyApi
from ebbtide.clouds.skypilot.cloud import SkyPilotCloud
from ebbtide.clouds.skypilot.settings import SkyPilotSettings
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.parsing import validated


class SkyPilotProvider:
    """Machines that SkyPilot rents; `CloudProvider` documents the methods."""

    cloud_name, billing, example = "skypilot", "by-cloud", "examples/live/skypilot.yaml"
    knows_addresses = False

    def read(self, path: str | Path) -> SkyPilotSettings:
        return SkyPilotSettings.read(path)

    def decode(self, content: Any, file: Path) -> SkyPilotSettings:
        return validated(SkyPilotSettings, content, file).beside(file)

    def ready(self, settings: SkyPilotSettings, expected_end_s: float) -> SkyPilotSettings:  # noqa: ARG002
        api = SkyApi(settings.server)
        api.check()
        # Keep the server's address: the run may be resumed where the environment names another server.
        return settings.model_copy(update={"server": api.url})

    def regions(self, settings: SkyPilotSettings) -> Sequence[str]:
        return list(settings.places)

    def prices(self, folder: RunFolder, work: Runnable, settings: SkyPilotSettings) -> Prices:
        return FilePrices(
            settings.prices,
            settings.price_poll_s,
            lambda found: in_places(found, settings.zones, settings.prices),
            work,
            folder.catalogue,
        )

    def cloud(self, run: str, settings: SkyPilotSettings, prices: Prices) -> SkyPilotCloud:
        return SkyPilotCloud(run, settings, prices)
