"""The policy protocol: the one function that a policy is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from ebbtide.errors import PolicyError
from ebbtide.policies.api.actions import Action
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View


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


def checked_policy(policy: object) -> Policy:
    """The policy, if it has what every policy has: a name, what wakes it, and how it decides.

    Raises:
        PolicyError: It lacks one of them, or is a class and no instance of it.
    """
    if isinstance(policy, type):
        raise PolicyError(f"is a class; give an instance of it: {policy.__name__}()", policy=policy.__name__)
    kind = type(policy).__name__
    for field, example in _EXAMPLES.items():
        if not hasattr(policy, field):
            raise PolicyError(f"has no {field}; a policy has {example}", policy=kind)
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise PolicyError(f"name is {name!r}; a policy has {_EXAMPLES['name']}", policy=kind)
    if not callable(getattr(policy, "decide", None)):
        raise PolicyError(f"decide is no method; a policy has {_EXAMPLES['decide']}", policy=name)
    wakes = getattr(policy, "wakes_on", None)
    if not isinstance(wakes, (frozenset, set)) or not all(isinstance(wake, Wake) for wake in wakes):
        raise PolicyError(f"wakes_on is {wakes!r}; a policy has {_EXAMPLES['wakes_on']}", policy=name)
    return policy  # type: ignore[return-value]


_EXAMPLES = {
    "name": "a name in text, such as name = 'mine'",
    "wakes_on": "a frozenset of Wake, such as wakes_on = frozenset({Wake.PRICE}), or frozenset() for none",
    "decide": "a method decide(self, view) that answers with actions",
}
