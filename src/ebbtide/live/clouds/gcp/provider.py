"""Google Cloud as a provider of live runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ebbtide.errors import CloudError, InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.jobs.parsing import validated
from ebbtide.live.clouds.gcp.cloud import GcpCloud
from ebbtide.live.clouds.gcp.prices import FilePrices
from ebbtide.live.clouds.gcp.settings import GcpSettings
from ebbtide.live.clouds.provider import Prices
from ebbtide.live.google_tokens import GoogleTokens
from ebbtide.live.settings import RunFolder


class GcpProvider:
    """Machines of Google Cloud; what each method does, and raises, is told by `Provider`."""

    cloud_name, billing, example = "gcp", "gcp-spot", "examples/live/gcp.yaml"

    def read(self, path: str | Path) -> GcpSettings:
        return GcpSettings.read(path)

    def decode(self, content: Any, file: Path) -> GcpSettings:
        return validated(GcpSettings, content, file).beside(file)

    def ready(self, settings: GcpSettings, expected_end_s: float) -> GcpSettings:  # noqa: ARG002
        # Tokens last an hour and are renewed; what gives them does not say for how long it does.
        try:
            GoogleTokens().token()
        except CloudError as error:
            raise InputError(str(error)) from None
        return settings

    def regions(self, settings: GcpSettings) -> Sequence[str]:
        return list(settings.regions)

    def prices(self, folder: RunFolder, work: Runnable, settings: GcpSettings) -> Prices:
        return FilePrices(settings, work, folder.catalogue)

    def cloud(self, run: str, settings: GcpSettings, prices: Prices) -> GcpCloud:
        return GcpCloud(run, settings, prices)
