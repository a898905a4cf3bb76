"""Spot prices of GCP from a file: Google publishes what they are now, and no history of them."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

from ebbtide.errors import InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.live.clouds.gcp.settings import GcpSettings
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.price_store import PriceStore, is_price_store
from ebbtide.market.prices import PriceHistory

_LOGGER = logging.getLogger(__name__)


class FilePrices:
    """The prices of the markets that a run's settings and its work allow; call it for the history up to now.

    The file is read again when it has changed; one that cannot be read is told of, and the prices stay.

    Args:
        settings: Settings that name the file and the zones.
        sweep: What is trained, which says which markets are allowed.
        catalogue: Instance types, of which some have what the work asks for.
    """

    def __init__(self, settings: GcpSettings, sweep: Runnable, catalogue: Catalogue) -> None:
        self._settings, self._sweep, self._catalogue = settings, sweep, catalogue
        self._looked_s = time.monotonic()
        self._changed_ns = self._file_changed_ns()
        self._history = self._read()

    def __call__(self) -> PriceHistory:
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._settings.price_poll_s:
            self._looked_s = now_s
            try:
                changed_ns = self._file_changed_ns()
                if changed_ns != self._changed_ns:
                    self._history, self._changed_ns = self._read(), changed_ns
            except InputError as error:
                _LOGGER.warning("prices stay as they were: %s", error)
        return self._history

    def _file_changed_ns(self) -> int:
        try:
            return Path(self._settings.prices).stat().st_mtime_ns
        except OSError as error:
            raise InputError(
                f"has no prices: {error.strerror}; name a file with spot prices of gcp",
                file=self._settings.prices,
                field="prices",
            ) from None

    def _read(self) -> PriceHistory:
        path = self._settings.prices
        history = PriceStore(path).history() if is_price_store(path) else PriceHistory.read(path, self._catalogue)
        return self._sweep.allowed(in_zones(history, self._settings), self._catalogue)


def in_zones(history: PriceHistory, settings: GcpSettings) -> PriceHistory:
    """The prices of each market in the settings' zones; a price of a whole region holds in all its zones.

    Args:
        history: Prices by zone, or by region where a market's zone is its region.
        settings: Settings that name the zones.

    Raises:
        InputError: None of them is priced.
    """
    found: dict[Market, PriceSeries] = {}
    for market, series in history.items():
        region = settings.regions.get(market.region) if market.cloud == "gcp" else None
        if region is None:
            continue
        if market.zone == market.region:
            for zone in region.zones:
                found.setdefault(replace(market, zone=zone), series)
        elif market.zone in region.zones:
            found[market] = series
    if not found:
        raise InputError(
            f"has no price of gcp in {', '.join(settings.regions)}; it has {_places(history)}",
            file=settings.prices,
            field="prices",
        )
    return PriceHistory(found, start_s=history.start_s, end_s=history.end_s)


def _places(history: PriceHistory) -> str:
    return ", ".join(sorted({str(market.place) for market in history})[:12])
