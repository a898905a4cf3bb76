"""Current spot prices of EC2 and those of the past weeks, refreshed every few minutes.

Prices are fetched in a thread of their own: the caller looks after machines, and must not wait for an answer that
may take minutes or never come.
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

# Attempts for each region that does not answer.
_ATTEMPTS = 3
# If prices are already known, as in a resumed run, the first call waits this long for newer ones.
_WAITED_FOR_S = 20.0


class CurrentPrices:
    """The prices of the markets that a sweep allows; call it for the history up to now.

    Args:
        store: Price store in which fetched prices are kept.
        sweep: The sweep that says which markets are allowed.
        regions: Regions whose prices are fetched.
        catalogue: Instance types to choose from by the sweep's requirements; None: those that ship with Ebbtide.
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
        # One source per region, so that a region that does not answer does not hold up the others.
        sources = [Ec2Prices([region], types, attempts=_ATTEMPTS, name=f"EC2 {region}") for region in regions]
        self._monitor = Monitor(sources, store)
        self._store, self._sweep, self._every_s = store, sweep, every_s
        self._fetched_s = -math.inf
        self._history: PriceHistory | None = None
        # Both the controller's thread and its attendant's ask for prices.
        self._lock = threading.Lock()
        self._fetching: threading.Thread | None = None

    def __call__(self) -> PriceHistory:
        with self._lock:
            if self._history is None:
                first = self._first()
                # The fetching thread may have set newer prices meanwhile.
                self._history = first if self._history is None else self._history
            elif time.monotonic() - self._fetched_s >= self._every_s:
                self._begin()
            return self._history

    def _first(self) -> PriceHistory:
        """Return the first prices, waiting for them if none are stored: no run can begin without."""
        fetching = self._begin()
        try:
            known = self._known()
        except InputError:
            fetching.join()
            return self._known()
        fetching.join(_WAITED_FOR_S)
        return known

    def _begin(self) -> threading.Thread:
        """Fetch prices in a background thread, unless a fetch is under way."""
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
                # `_first` reads the store again, and raises this error to its caller.
                _LOGGER.debug("no prices can be used: %s", error)

    def _known(self) -> PriceHistory:
        return self._sweep.allowed(self._store.history(), self._catalogue)
