"""Google Cloud as a provider of live runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebbtide.clouds.file_prices import FilePrices, in_places
from ebbtide.clouds.gcp.cloud import GcpCloud
from ebbtide.clouds.gcp.settings import GcpSettings
from ebbtide.clouds.provider import Prices
from ebbtide.clouds.settings import RunFolder
from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.parsing import validated
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Place
from ebbtide.market.prices import PriceHistory
from ebbtide.storage.google_tokens import GoogleTokens


class GcpProvider:
    """Machines of Google Cloud; `CloudProvider` documents the methods."""

    cloud_name, billing, example = "gcp", "gcp-spot", "examples/live/gcp.yaml"
    knows_addresses = True

    def read(self, path: str | Path) -> GcpSettings:
        return GcpSettings.read(path)

    def decode(self, content: Any, file: Path) -> GcpSettings:
        return validated(GcpSettings, content, file).beside(file)

    def ready(self, settings: GcpSettings, expected_end_s: float) -> GcpSettings:  # noqa: ARG002
        # Access tokens last an hour and are renewed; the credentials do not say when they themselves expire.
        try:
            GoogleTokens().token()
        except CloudError as error:
            raise InputError(str(error)) from None
        return settings

    def regions(self, settings: GcpSettings) -> Sequence[str]:
        return list(settings.regions)

    def prices(self, folder: RunFolder, work: Runnable, settings: GcpSettings) -> Prices:
        return gcp_prices(settings, work, folder.catalogue)

    def cloud(self, run: str, settings: GcpSettings, prices: Prices) -> GcpCloud:
        return GcpCloud(run, settings, prices)


def in_zones(history: PriceHistory, settings: GcpSettings) -> PriceHistory:
    """Return the prices of each market in the settings' zones; a price of a whole region holds in all its zones.

    Raises:
        InputError: No market in these zones has a price.
    """
    zones = {Place("gcp", name): region.zones for name, region in settings.regions.items()}
    return in_places(history, zones, settings.prices, only="gcp")


def gcp_prices(settings: GcpSettings, work: Runnable, catalogue: Catalogue) -> FilePrices:
    """Return the prices in the file that the settings name.

    Raises:
        InputError: The file cannot be read, or has no price in the settings' zones.
    """
    return FilePrices(
        settings.prices, settings.price_poll_s, lambda found: in_zones(found, settings), work, catalogue
    )
