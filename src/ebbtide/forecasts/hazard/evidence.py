"""Evidence of losses and refusals so far, by market, region and cloud: a few numbers each, from the past only.

A run keeps it in its policy's memory, and an evaluation builds it from a record, observation by observation, so
that both ask the same questions. Counts fade, with half-lives of an hour and of a day: the first shows a shortage
that goes on, the second a market's own level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ebbtide.base.utc import DAY_S, HOUR_S
from ebbtide.market.markets import Market

# Half-lives of the counts, seconds.
HALF_LIVES_S = (HOUR_S, DAY_S)
_RATES = tuple(math.log(2.0) / half_life_s for half_life_s in HALF_LIVES_S)

# Time that one observation stands for at most, where the one before is long ago, seconds.
_MOST_S = 1800.0

# Losses, expected losses, hours down and hours watched: for each half-life.
_COUNTS = 4

Counts = list[float]


def region_of(market: Market) -> str:
    """Key of the markets that share shortages: the same machines in a region."""
    return f"{market.cloud}|{market.region}|{market.instance_type}"


def cloud_of(market: Market) -> str:
    """Key of the markets with the same machines in all regions of a cloud."""
    return f"{market.cloud}|{market.instance_type}"


def faded(counts: Counts | None, now_s: float) -> Counts:
    """The counts as they are at a later time: those of the first half-life, then those of the second."""
    if counts is None:
        return [0.0] * (2 * _COUNTS)
    since_s = max(now_s - counts[0], 0.0)
    short, long = math.exp(-since_s * _RATES[0]), math.exp(-since_s * _RATES[1])
    return [each * short for each in counts[1 : 1 + _COUNTS]] + [each * long for each in counts[1 + _COUNTS :]]


@dataclass(frozen=True)
class Spell:
    """The last known state of a market.

    Attributes:
        is_up: Whether a machine was there.
        age_s: How long that had been so at the last observation, seconds.
        seen_s: Time of the last observation, seconds since 1970.
    """

    is_up: bool
    age_s: float
    seen_s: float


@dataclass(frozen=True)
class Evidence:
    """Observations of markets so far, as a few numbers each.

    Attributes:
        memory: Plain values: `markets` (state by market); `counts` and `ends` (by market, region and cloud).
    """

    memory: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def in_memory(cls, memory: dict[str, Any]) -> Evidence:
        """The evidence kept in a policy's memory, which survives a restart."""
        return cls(memory.setdefault("evidence", {}))

    @property
    def _spells(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = self.memory.setdefault("markets", {})
        return found

    @property
    def counts(self) -> dict[str, Counts]:
        """Faded counts by market, region and cloud, each as of its first number, seconds since 1970."""
        found: dict[str, Counts] = self.memory.setdefault("counts", {})
        return found

    @property
    def ends(self) -> dict[str, list[float]]:
        """Ends of all spells so far, by market, region and cloud: down spells and those expected, then up
        spells."""
        found: dict[str, list[float]] = self.memory.setdefault("ends", {})
        return found

    def spell(self, market: Market) -> Spell | None:
        """The last known state of a market; None: it was never observed."""
        known = self._spells.get(key_of(market))
        return None if known is None else Spell(bool(known[0]), known[2] - known[1], known[2])

    def observe(
        self,
        market: Market,
        time_s: float,
        *,
        is_up: bool,
        expected: float = 0.0,
        age_s: float = 0.0,
        longest_gap_s: float = 2 * HOUR_S,
    ) -> None:
        """Add an observation; one earlier than those before counts as of their time, as a clock may be set back.

        Args:
            market: The market.
            time_s: Its time, seconds since 1970.
            is_up: Whether a machine was granted or runs; else one was refused or lost.
            expected: Ends of the spell expected since the observation before: losses if machines were there at it.
            age_s: Age of the state, seconds, if the observation before was of the other one or there is none.
            longest_gap_s: Longest time between two observations of one spell, seconds.
        """
        key = key_of(market)
        known = self._spells.get(key)
        if known is not None and time_s < known[2]:
            time_s, expected = known[2], 0.0
        if known is None or time_s - known[2] > longest_gap_s:
            self._spells[key] = [float(is_up), time_s - age_s, time_s]
            # Nothing is known of the time between.
            return
        was_up = bool(known[0])
        hours = min(time_s - known[2], _MOST_S) / HOUR_S
        ended = float(was_up != is_up)
        self._spells[key] = [float(is_up), time_s - age_s if ended else known[1], time_s]
        added = (ended * was_up, expected * was_up, 0.0 if is_up else hours, hours)
        for name in (key, region_of(market), cloud_of(market)):
            counts = faded(self.counts.get(name), time_s)
            self.counts[name] = [time_s, *map(float.__add__, counts, added * 2)]
            ends = self.ends.setdefault(name, [0.0] * 4)
            ends[2 * was_up] += ended
            ends[2 * was_up + 1] += expected

    def count_loss(self, market: Market, time_s: float) -> None:
        """Count the loss of one machine of a market in which others run on.

        Args:
            market: The market.
            time_s: Its time, seconds since 1970.
        """
        for name in (key_of(market), region_of(market), cloud_of(market)):
            counts = faded(self.counts.get(name), time_s)
            lost = (1.0, 0.0, 0.0, 0.0)
            self.counts[name] = [time_s, *map(float.__add__, counts, lost * 2)]
            self.ends.setdefault(name, [0.0] * 4)[2] += 1.0

    def others(self, market: Market, now_s: float) -> tuple[Counts, Counts, Counts]:
        """Faded counts of a market, of the others of its region, and of its cloud's other regions."""
        own = faded(self.counts.get(key_of(market)), now_s)
        region = faded(self.counts.get(region_of(market)), now_s)
        cloud = faded(self.counts.get(cloud_of(market)), now_s)
        return own, _without(region, own), _without(cloud, region)


def key_of(market: Market) -> str:
    """Key of a market, different for each product."""
    return f"{market.cloud}|{market.region}|{market.zone}|{market.instance_type}|{market.product}"


def _without(whole: Iterable[float], part: Iterable[float]) -> Counts:
    return [max(one - other, 0.0) for one, other in zip(whole, part, strict=True)]
