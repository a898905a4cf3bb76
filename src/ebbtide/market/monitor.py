"""A monitor: it asks live sources in turn and stores what has changed (DeepSpotCloud III-D, IV-B).

A source that fails is reported and asked again later, after twice the time for each further failure; the others go
on. What a failed request missed, the next one fetches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ebbtide.errors import CloudError, InputError
from ebbtide.market.price_store import PriceStore
from ebbtide.market.signals import LiveSource

_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True)
class Look:
    """The result of one round of requests.

    Attributes:
        time_s: When the sources were asked, seconds since 1970.
        asked: Names of the sources that were asked, those that failed among them.
        changes: Number of changed prices stored.
        signals: Number of changed signals stored.
        problems: Why requests failed, in words, by the name of the source.
    """

    time_s: float
    asked: tuple[str, ...] = ()
    changes: int = 0
    signals: int = 0
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """All problems in one line; empty: there is none."""
        return "; ".join(self.problems.values())


@dataclass
class _Standing:
    """Time at which a source is next asked, and its number of failures in a row."""

    due_s: float = float("-inf")
    failures: int = 0


@dataclass(frozen=True)
class Monitor:
    """Asks sources and stores what changed.

    Attributes:
        sources: Live sources with names of their own.
        store: Where prices and signals are stored.
        every_s: Time between two rounds, seconds.
        overlap_s: How much of the known time to fetch again, seconds: clouds publish some prices minutes late.
        clock: Gives the present time, seconds since 1970.
        stopped: Event that ends `watch` when it is set.
    """

    sources: Sequence[LiveSource]
    store: PriceStore
    every_s: float = 60.0
    overlap_s: float = 900.0
    clock: Callable[[], float] = time.time
    stopped: threading.Event = field(default_factory=threading.Event)
    _standing: dict[str, _Standing] = field(default_factory=dict)

    def look(self) -> Look:
        """Ask every source that is due once."""
        now_s = self.clock()
        changes = signals = 0
        asked, problems = [], {}
        for source in self.sources:
            standing = self._standing.setdefault(source.name, _Standing())
            if now_s < standing.due_s:
                continue
            asked.append(source.name)
            try:
                new_prices, new_signals = self._observe(source, now_s)
            except (CloudError, InputError) as error:
                problems[source.name] = str(error)
                standing.failures += 1
                wait_s = max(self.every_s, source.every_s) * 2.0 ** min(standing.failures - 1, 20)
                standing.due_s = now_s + min(wait_s, max(_LONGEST_WAIT_S, source.every_s))
            else:
                changes, signals = changes + new_prices, signals + new_signals
                standing.failures, standing.due_s = 0, now_s + source.every_s
        return Look(now_s, tuple(asked), changes, signals, problems)

    def _observe(self, source: LiveSource, now_s: float) -> tuple[int, int]:
        since_s = {region: known_s - self.overlap_s for region, known_s in self.store.newest_s().items()}
        found = source.observe(since_s, now_s)
        changes = self.store.add(found.prices, looked_at=now_s, places=found.places)
        if not found.signals and not found.whole:
            return changes, 0
        return changes, self.store.add_signals(source.name, found.signals, looked_at=now_s, whole=found.whole)

    def watch(self) -> Iterator[Look]:
        """Ask until `stopped` is set, yielding the result of each round."""
        while not self.stopped.is_set():
            began_s = self.clock()
            yield self.look()
            self.stopped.wait(max(began_s + self.every_s - self.clock(), 0.0))
