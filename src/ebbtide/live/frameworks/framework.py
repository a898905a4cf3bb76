"""What a provider needs of a parallel framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Standing:
    """How far a framework's program has come, in parts of all its work.

    Attributes:
        done: Of its work.
        saved: In its newest checkpoint; what is kept without one counts, too.
        lost: Computed, and lost with a machine; it adds up.
        checkpoints: Complete ones.
        result: Its answer, once it has ended.
    """

    done: float = 0.0
    saved: float = 0.0
    lost: float = 0.0
    checkpoints: int = 0
    result: float | None = None


class Framework(Protocol):
    """One program of a framework, on this machine; each rented machine is one or more processes.

    Methods return at once but for `hear`; they are called from one thread.
    """

    @property
    def standing(self) -> Standing:
        """As last heard of."""
        ...

    def start(self) -> None:
        """Begin, though no machine is there yet."""
        ...

    def join(self, machine: str) -> None:
        """A machine has come."""
        ...

    def warn(self, machine: str) -> None:
        """A machine will be taken within seconds."""
        ...

    def lose(self, machine: str) -> None:
        """A machine is gone: end its processes at once."""
        ...

    def checkpoint(self) -> None:
        """Save what is computed."""
        ...

    def hear(self, timeout_s: float) -> bool:
        """Wait for news; whether there was any: `standing` is then new.

        Raises:
            InputError: The program failed of itself.
        """
        ...

    def close(self) -> None:
        """End every process."""
        ...
