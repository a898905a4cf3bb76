"""A user's own policy, named on the command line: `my_policy.py:Mine` or `package.module:Mine`."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from ebbtide.base.own_code import as_input_errors, find
from ebbtide.errors import InputError
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.protocol import Policy

# The members that a policy needs, and what each of them is.
_PARTS = {
    "name": "the text it is called by in tables",
    "wakes_on": "a frozenset of Wake, empty for nothing beyond what is always delivered",
    "decide": "decide(view), which answers with actions",
}


def is_own(text: str) -> bool:
    """Return whether a policy's name refers to the user's own code."""
    return ":" in text or text.endswith(".py")


def load_policy(text: str) -> Policy:
    """The policy at `FILE.py:NAME` or `package.module:NAME`.

    A class without required arguments is instantiated, a function without required arguments is called, an
    instance is used as it is.

    Raises:
        InputError: The file, module or name does not exist, the module cannot be imported, the class needs
            arguments, or the object is not a policy; the message says which, where, and how to correct it.
    """
    found = find(text, "policy", _candidates)
    return _checked(_made(found, text), text)


def _made(found: Any, text: str) -> Any:
    """The policy for the named object: an instance of a class, the result of a function, or the object itself."""
    if not isinstance(found, type) and hasattr(found, "decide"):
        return found
    if not callable(found):
        raise InputError(
            f"{text} is {_a(type(found).__name__)}, not a policy: name a class, a function that gives a "
            "policy, or a policy"
        )
    if isinstance(found, type) and not hasattr(found, "decide"):
        # Checked before it is instantiated: the arguments it would need do not matter.
        raise InputError(f"{text} is no policy: it has no `decide` ({_PARTS['decide']})")
    kind = "class" if isinstance(found, type) else "function"
    needed = _required(found)
    if needed:
        raise InputError(
            f"{kind} {text} needs arguments ({', '.join(needed)}); give them defaults, or name a function without "
            "arguments that gives the policy"
        )
    with as_input_errors(text, ""):
        return found()


def _required(found: Any) -> list[str]:
    """Names of the arguments that have no default."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is inspect.Parameter.empty and each.kind not in loose]


def _checked(found: Any, text: str) -> Policy:
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if missing:
        missing_parts = "; ".join(f"no `{part}` ({_PARTS[part]})" for part in missing)
        raise InputError(f"{text} is no policy: it has {missing_parts}")
    if not isinstance(found.name, str) or not found.name.strip():
        raise InputError(f"{text}: `name` is {found.name!r}; it should be {_PARTS['name']}")
    if not isinstance(found.wakes_on, frozenset | set) or not all(
        isinstance(each, Wake) for each in found.wakes_on
    ):
        raise InputError(f"{text}: `wakes_on` is {found.wakes_on!r}; it should be {_PARTS['wakes_on']}")
    if not callable(found.decide):
        raise InputError(f"{text}: `decide` is {found.decide!r}; it should be {_PARTS['decide']}")
    policy: Policy = found
    return policy


def _candidates(module: ModuleType) -> list[str]:
    """Names in a module that look like policies defined there."""
    return [
        name
        for name, found in vars(module).items()
        if not name.startswith("_")
        and hasattr(found, "decide")
        and (not isinstance(found, type) or found.__module__ == module.__name__)
    ]


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
