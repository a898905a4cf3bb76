"""What a provider needs of a parallel framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Standing:
    """The progress of a framework's program, in shares of all its work.

    Attributes:
        done: Share of the work that is done, 0 to 1.
        saved: Share of the work in the newest checkpoint, 0 to 1; what is kept without one counts, too.
        lost: Share of the work that was computed and lost with machines so far; it may pass 1.
        checkpoints: Number of complete checkpoints so far.
        result: The program's answer; None: it has not ended.
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
