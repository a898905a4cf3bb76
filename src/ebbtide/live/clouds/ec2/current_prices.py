"""Present spot prices of EC2, with those of the weeks before, fetched again every few minutes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

from ebbtide.jobs.job_list import Runnable
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.monitor import Monitor
from ebbtide.market.price_store import PriceStore
from ebbtide.market.prices import PriceHistory

_LOGGER = logging.getLogger(__name__)


class CurrentPrices:
    """The prices of the markets that a sweep allows; call it for the history up to now.

    Args:
        store: Price store in which fetched prices are kept.
        sweep: The sweep that says which markets are allowed.
        regions: Regions whose prices are fetched.
        catalogue: Instance types, of which some have what the sweep asks for; None: those that ship with Ebbtide.
        every_s: Seconds between two fetches of prices.

    Raises:
        InputError: No prices are known and EC2 gives none, or the sweep allows no market.
    """

    def __init__(
        self,
        store: PriceStore,
        sweep: Runnable,
        regions: Sequence[str],
        catalogue: Catalogue | None = None,
        *,
        every_s: float = 300.0,
    ) -> None:
        from ebbtide.market.sources.ec2_api import Ec2Prices  # boto3

        self._catalogue = catalogue or default_catalogue()
        types = sweep.types_wanted(self._catalogue)
        self._monitor = Monitor([Ec2Prices(regions, types)], store)
        self._store, self._sweep, self._every_s = store, sweep, every_s
        self._fetched_s = -math.inf
        self._history: PriceHistory | None = None

    def __call__(self) -> PriceHistory:
        now_s = time.monotonic()
        if self._history is None or now_s - self._fetched_s >= self._every_s:
            self._fetched_s = now_s
            look = self._monitor.look()
            if look.problem:
                _LOGGER.warning("prices stay as they were: %s", look.problem)
            if self._history is None or look.changes:
                self._history = self._sweep.allowed(self._store.history(), self._catalogue)
        return self._history
