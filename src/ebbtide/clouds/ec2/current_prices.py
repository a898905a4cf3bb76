"""Present spot prices of EC2, with those of the weeks before, fetched again every few minutes.

Who asks for them looks after machines, and does not wait for an answer, which may take minutes or never come.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence

from ebbtide.errors import InputError
from ebbtide.jobs.job_list import Runnable
from ebbtide.market.catalogue import Catalogue, default_catalogue
from ebbtide.market.monitor import Monitor
from ebbtide.market.price_store import PriceStore
from ebbtide.market.prices import PriceHistory

_LOGGER = logging.getLogger(__name__)

# A region that does not answer is asked so often in a row.
_ATTEMPTS = 3
# Where prices are known from before, as when a run is resumed, newer ones are waited for so long.
_WAITED_FOR_S = 20.0


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
        # Each by itself: one region that does not answer keeps no price of another back.
        sources = [Ec2Prices([region], types, attempts=_ATTEMPTS, name=f"EC2 {region}") for region in regions]
        self._monitor = Monitor(sources, store)
        self._store, self._sweep, self._every_s = store, sweep, every_s
        self._fetched_s = -math.inf
        self._history: PriceHistory | None = None
        # The controller's thread and its attendant's ask.
        self._lock = threading.Lock()
        self._fetching: threading.Thread | None = None

    def __call__(self) -> PriceHistory:
        with self._lock:
            if self._history is None:
                first = self._first()
                # What was fetched meanwhile is newer.
                self._history = first if self._history is None else self._history
            elif time.monotonic() - self._fetched_s >= self._every_s:
                self._begin()
            return self._history

    def _first(self) -> PriceHistory:
        """The first prices: without any, no run can begin."""
        fetching = self._begin()
        try:
            known = self._known()
        except InputError:
            fetching.join()
            return self._known()
        fetching.join(_WAITED_FOR_S)
        return known

    def _begin(self) -> threading.Thread:
        """Fetch prices beside all else, unless that is under way."""
        if self._fetching is None or not self._fetching.is_alive():
            self._fetched_s = time.monotonic()
            self._fetching = threading.Thread(target=self._fetch, name="ebbtide-prices", daemon=True)
            self._fetching.start()
        return self._fetching

    def _fetch(self) -> None:
        look = self._monitor.look()
        if look.problem:
            _LOGGER.warning("prices stay as they were: %s", look.problem)
        if self._history is None or look.changes:
            try:
                self._history = self._known()
            except InputError as error:
                # Whoever waits for the first reads them once more.
                _LOGGER.debug("no prices can be used: %s", error)

    def _known(self) -> PriceHistory:
        return self._sweep.allowed(self._store.history(), self._catalogue)
