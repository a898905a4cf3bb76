"""DeepSpotCloud's price monitor (III-D, IV-B): poll prices at an interval and store those that changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pandas as pd

from ebbtide.errors import InputError
from ebbtide.market.price_store import PriceStore

# From {region: time up to which prices are known, seconds since 1970} to newer prices, as a price-schema frame.
Source = Callable[[Mapping[str, float]], pd.DataFrame]


@dataclass(frozen=True)
class Look:
    """The result of one poll.

    Attributes:
        time_s: When the source was polled, seconds since 1970.
        changes: Number of changed prices stored.
        problem: Why the poll failed, in words; empty where it succeeded.
    """

    time_s: float
    changes: int
    problem: str = ""


@dataclass(frozen=True)
class PriceMonitor:
    """Polls a source and stores what changed; a failed poll is reported, and the next one fetches what it missed.

    Attributes:
        source: Fetches prices newer than a time by region.
        store: Where the prices are stored.
        places: Region to cloud, for every region polled.
        every_s: Time between two polls, seconds.
        overlap_s: How much of the known time to fetch again, seconds: clouds publish some prices minutes late.
        clock: Gives the present time, seconds since 1970.
        stopped: Event that ends `watch` when it is set.
    """

    source: Source
    store: PriceStore
    places: Mapping[str, str]
    every_s: float = 60.0
    overlap_s: float = 900.0
    clock: Callable[[], float] = time.time
    stopped: threading.Event = field(default_factory=threading.Event)

    def look(self) -> Look:
        """Poll once."""
        now_s = self.clock()
        try:
            since_s = {region: known_s - self.overlap_s for region, known_s in self.store.newest_s().items()}
            frame = self.source(since_s)
        except InputError as error:
            return Look(now_s, 0, str(error))
        return Look(now_s, self.store.add(frame, looked_at=now_s, places=self.places))

    def watch(self) -> Iterator[Look]:
        """Poll until `stopped` is set, yielding the result of each poll."""
        while not self.stopped.is_set():
            began_s = self.clock()
            yield self.look()
            self.stopped.wait(max(began_s + self.every_s - self.clock(), 0.0))
