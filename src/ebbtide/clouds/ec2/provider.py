"""EC2 as a provider of live runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebbtide.clouds.ec2.cloud import Ec2Cloud, client_of
from ebbtide.clouds.ec2.credentials import check_credentials
from ebbtide.clouds.ec2.current_prices import CurrentPrices
from ebbtide.clouds.ec2.images import with_images
from ebbtide.clouds.ec2.settings import Ec2Settings
from ebbtide.clouds.provider import Prices
from ebbtide.clouds.settings import RunFolder
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.parsing import validated
from ebbtide.market.price_store import PriceStore

_LOGGER = logging.getLogger(__name__)

# More attempts for image requests: nothing is rented yet, so they delay no stop.
_IMAGE_TRIES = 5


class Ec2Provider:
    """Machines of EC2; `CloudProvider` documents the methods."""

    cloud_name, billing, example = "aws", "ec2-second", "examples/live/ec2.yaml"
    knows_addresses = True

    def read(self, path: str | Path) -> Ec2Settings:
        return Ec2Settings.read(path)

    def decode(self, content: Any, file: Path) -> Ec2Settings:
        return validated(Ec2Settings, content, file)

    def ready(self, settings: Ec2Settings, expected_end_s: float) -> Ec2Settings:
        warning = check_credentials(expected_end_s)
        if warning:
            _LOGGER.warning("%s", warning)
        # The run keeps these image ids, so that it has the same images when it is resumed.
        return with_images(settings, lambda region: client_of(region, _IMAGE_TRIES))

    def regions(self, settings: Ec2Settings) -> Sequence[str]:
        return list(settings.regions)

    def prices(self, folder: RunFolder, work: Runnable, settings: Ec2Settings) -> Prices:
        store = PriceStore(folder.path / "prices.db")
        return CurrentPrices(store, work, list(settings.regions), folder.catalogue, every_s=settings.price_poll_s)

    def cloud(self, run: str, settings: Ec2Settings, prices: Prices) -> Ec2Cloud:
        return Ec2Cloud(run, settings, prices)
