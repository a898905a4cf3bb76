"""Spot prices from a file, for clouds that publish no history of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ebbtide.base.utc import DAY_S, iso
from ebbtide.errors import InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.market.catalogue import Catalogue
from ebbtide.market.markets import Market, Place
from ebbtide.market.price_series import PriceSeries
from ebbtide.market.prices import PriceHistory

_LOGGER = logging.getLogger(__name__)

# Prices that end longer ago are warned of, seconds.
_OLD_S = 30 * DAY_S


class FilePrices:
    """Prices of the markets that a run's settings and its work allow; call it for the history up to now.

    The file is read again when it has changed. If that fails, a warning is logged and the prices stay.

    Args:
        path: Path of the file.
        poll_s: Seconds between checks for a change of the file.
        placed: Limits a price history to the places where machines may be rented.
        sweep: The sweep or list of jobs, which says which markets are allowed.
        catalogue: Instance types to choose from by the work's requirements.
    """

    def __init__(
        self,
        path: str,
        poll_s: float,
        placed: Callable[[PriceHistory], PriceHistory],
        sweep: Runnable,
        catalogue: Catalogue,
    ) -> None:
        self._path, self._poll_s, self._placed = path, poll_s, placed
        self._sweep, self._catalogue = sweep, catalogue
        self._looked_s = time.monotonic()
        self._changed_ns = self._file_changed_ns()
        self._history = self._read()

    def __call__(self) -> PriceHistory:
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._poll_s:
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
            return Path(self._path).stat().st_mtime_ns
        except OSError as error:
            raise InputError(
                f"has no prices: {error.strerror}; name a file with spot prices",
                file=self._path,
                field="prices",
            ) from None

    def _read(self) -> PriceHistory:
        history = PriceHistory.read(self._path, self._catalogue)
        if (age_s := time.time() - history.end_s) > _OLD_S:
            ends, days = iso(history.end_s), age_s / DAY_S
            _LOGGER.warning("prices of %s end at %s, %.0f days ago; they count as today's", self._path, ends, days)
        return self._sweep.allowed(self._placed(history), self._catalogue)


def in_places(
    history: PriceHistory, zones: Mapping[Place, Sequence[str]], file: str, *, only: str = ""
) -> PriceHistory:
    """Return the prices of markets in some places; a price of a whole region holds in all its zones.

    Args:
        history: Prices by zone, or by region where a market's zone is its region.
        zones: Zones in which machines may be rented, by place; an empty list: all of the place that have a price.
        file: Path of the file of prices, for errors.
        only: Name of the cloud if there is only one, for errors; empty: there are several.

    Raises:
        InputError: No market in these places has a price.
    """
    found: dict[Market, PriceSeries] = {}
    for market, series in history.items():
        named = zones.get(market.place)
        if named is None:
            continue
        if not named or market.zone in named:
            found[market] = series
        elif market.zone == market.region:
            for zone in named:
                found.setdefault(replace(market, zone=zone), series)
    if not found:
        wanted = ", ".join(
            (place.region if only else str(place)) + (f" ({', '.join(named)})" if named else "")
            for place, named in zones.items()
        )
        there = ", ".join(sorted({_where(market) for market in history})[:12])
        problem = f"has no price {f'of {only} ' if only else ''}in {wanted}; it has {there}"
        raise InputError(problem, file=file, field="prices")
    return PriceHistory(found, start_s=history.start_s, end_s=history.end_s)


def _where(market: Market) -> str:
    return str(market.place) if market.zone == market.region else f"{market.place} ({market.zone})"
