"""Helper of the contract suites: check that a call raises the right error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E", bound=Exception)


def refused(kind: type[E], call: Callable[[], object], about: str) -> E:
    """Return the error that a call raises, which must be of the expected kind.

    Args:
        kind: The expected kind of error.
        call: The call that must raise it.
        about: Description of the call, for the failure's message.

    Raises:
        AssertionError: The call raised another error, or none.
    """
    try:
        result = call()
    except kind as error:
        text = str(error)
        assert text, f"{about}: {kind.__name__} without a message; say what was wrong and what would be right"
        return error
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{about} raised {found}; {kind.__name__} is right") from error
    raise AssertionError(f"{about} gave {result!r:.80}; {kind.__name__} is right")
