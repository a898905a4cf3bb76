"""DeepSpotCloud's price monitor (III-D, IV-B): look at prices again and again, and keep what has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pandas as pd

from ebbtide.errors import InputError
from ebbtide.market.price_store import PriceStore

# Given, by region, up to when prices are known: those since then, as a frame of the price schema.
Source = Callable[[Mapping[str, float]], pd.DataFrame]


@dataclass(frozen=True)
class Look:
    """What came of one look.

    Attributes:
        time_s: When.
        changes: Prices stored.
        problem: Why there were none; empty: all went well.
    """

    time_s: float
    changes: int
    problem: str = ""


@dataclass(frozen=True)
class PriceMonitor:
    """Looks at a source and stores what changed; a look that fails is told and made up for by the next.

    Attributes:
        source: Of prices.
        store: Where they are kept.
        places: Region to cloud, of all that is looked at.
        every_s: Time from look to look.
        overlap_s: Ask again for so much of what is known: a cloud tells some prices minutes after they were set.
        clock: Seconds since 1970.
        stopped: Set it to end `watch`.
    """

    source: Source
    store: PriceStore
    places: Mapping[str, str]
    every_s: float = 60.0
    overlap_s: float = 900.0
    clock: Callable[[], float] = time.time
    stopped: threading.Event = field(default_factory=threading.Event)

    def look(self) -> Look:
        """Look once."""
        now_s = self.clock()
        try:
            since_s = {region: known_s - self.overlap_s for region, known_s in self.store.newest_s().items()}
            frame = self.source(since_s)
        except InputError as error:
            return Look(now_s, 0, str(error))
        return Look(now_s, self.store.add(frame, looked_at=now_s, places=self.places))

    def watch(self) -> Iterator[Look]:
        """Look until it is stopped, giving each look as it is made."""
        while not self.stopped.is_set():
            began_s = self.clock()
            yield self.look()
            self.stopped.wait(max(began_s + self.every_s - self.clock(), 0.0))
