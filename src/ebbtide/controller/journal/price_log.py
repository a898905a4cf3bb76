"""Price changes in the markets that concern a run, each written to its journal once."""

from __future__ import annotations

import math

from ebbtide.engine.engine import Engine
from ebbtide.errors import CloudError, InputError
from ebbtide.market.markets import Market

# Name of a market, when its price changed in seconds since 1970, and the new price in USD per hour.
PricePoint = tuple[str, float, float]


class PriceLog:
    """Finds the price changes that a journal does not have yet.

    These are the markets of its leases, and those that its decisions were offered.

    Args:
        engine: The engine of the run.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known_s: dict[Market, float] = {}
        self._found_s: dict[Market, float] = {}
        self._leases = self._decisions = 0

    def changes(self) -> list[PricePoint]:
        """Changes since the last call of `written`; for a new market, all changes since the run began."""
        engine = self._engine
        for lease in engine.all_leases[self._leases :]:
            self._known_s.setdefault(lease.market, -math.inf)
        for made in engine.made[self._decisions :]:
            for offer in made.offered:
                self._known_s.setdefault(offer.market, -math.inf)
        self._leases, self._decisions = len(engine.all_leases), len(engine.made)
        began_s, points = engine.started_s, []
        self._found_s = {}
        for market, known_s in self._known_s.items():
            since_s = max(known_s, began_s)
            try:
                times, prices = engine.past_prices(market, engine.now_s - since_s)
            except (CloudError, InputError):
                continue  # prices are unknown at the moment
            for time_s, price in zip(times.tolist(), prices.tolist(), strict=True):
                if time_s > known_s and not math.isnan(price):
                    points.append((str(market), max(time_s, since_s), price))
            if len(times):
                self._found_s[market] = float(times[-1])
        return points

    def written(self) -> None:
        """Note that the last result of `changes` is written."""
        self._known_s.update(self._found_s)
