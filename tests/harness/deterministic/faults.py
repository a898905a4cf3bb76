"""Faults: a seed decides, at each call to the outside world, whether it fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from zlib import crc32

_MASK, _WHOLE = (1 << 64) - 1, 1 << 64
_STRIDE = 0x94D049BB133111EB


@dataclass(frozen=True)
class Fault:
    """A fault that happened.

    Attributes:
        time_s: Time of the fault, seconds since the run began.
        place: Its kind and the number of the occasion, which identify it in a replay.
        about: The object that it hit.
    """

    time_s: float
    place: str
    about: str

    def __str__(self) -> str:
        return f"{self.time_s:8.2f} s  {self.place}{': ' * bool(self.about)}{self.about}"


class Faults:
    """Decides from a seed; the same seed gives the same decisions.

    Args:
        seed: The seed.
        intensity: Factor of all shares.
        only: Places of the faults that may happen; None: all may.
        often: Further factors of the shares of some kinds of faults.
    """

    def __init__(
        self,
        seed: int,
        intensity: float = 1.0,
        only: Collection[str] | None = None,
        often: Mapping[str, float] | None = None,
    ) -> None:
        self._seed = (seed * 0x9E3779B97F4A7C15) & _MASK
        self._only = None if only is None else frozenset(only)
        self._intensity, self._often = intensity, often or {}
        # By kind, the state from which its next number is mixed.
        self._next: dict[str, int] = {}
        self.began_s = 0.0
        # Whether faults happen: they stop towards the end of each run, so that it has to finish.
        self.is_active = True
        self.happened: list[Fault] = []

    def strikes(self, kind: str, share: float, now_s: float, about: str = "") -> bool:
        """Decide whether a fault happens here, and record it if so.

        Args:
            kind: Kind of the fault and its place.
            share: Probability that it happens at an occasion.
            now_s: The time, seconds since 1970.
            about: The object that the fault hits.
        """
        if self._unit(kind) >= share * self._intensity * self._often.get(kind, 1.0) or not self.is_active:
            return False
        place = f"{kind}#{(self._next[kind] - self._first(kind)) // _STRIDE - 1}"
        if self._only is not None and place not in self._only:
            return False
        self.happened.append(Fault(now_s - self.began_s, place, about))
        return True

    def number(self, what: str, low: float, high: float) -> float:
        """Draw a number between two bounds, another one at each call."""
        return low + (high - low) * self._unit(what)

    def order(self, number: int) -> int:
        """Return a key that orders tasks due at the same time."""
        return ((self._seed ^ number) * 0xD1B54A32D192ED03) & _MASK

    def _unit(self, kind: str) -> float:
        """Draw the next number of a kind, from 0 to 1."""
        value = self._next.get(kind)
        if value is None:
            value = self._first(kind)
        self._next[kind] = value + _STRIDE
        # splitmix64.
        value &= _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return (value ^ (value >> 31)) / _WHOLE

    def _first(self, kind: str) -> int:
        return self._seed + crc32(kind.encode()) * 0xBF58476D1CE4E5B9
