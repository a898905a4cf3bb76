"""The policy protocol: the one function that a policy is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from ebbtide.policies.actions import Action
from ebbtide.policies.events import Wake
from ebbtide.policies.view import View


@runtime_checkable
class Policy(Protocol):
    """Decides what to rent.

    A frozen dataclass whose fields are its parameters. `decide` depends on the view and on `view.memory` alone,
    so that a live controller can be stopped and started between any two calls.
    """

    @property
    def name(self) -> str:
        """Its name in tables, for the command line and for tags."""
        ...

    @property
    def wakes_on(self) -> frozenset[Wake]:
        """What wakes it beyond what is always delivered."""
        ...

    def decide(self, view: View) -> Iterable[Action]:
        """Answer the events of `view`."""
        ...
