"""Set environment variables of this process temporarily."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


@contextmanager
def environment_variables(values: Mapping[str, str], hidden: Sequence[str] = ()) -> Iterator[None]:
    """Set environment variables within the block, and unset others.

    Args:
        values: The values by name.
        hidden: Names of variables to unset.
    """
    before = {name: os.environ.get(name) for name in (*values, *hidden)}
    for name in hidden:
        os.environ.pop(name, None)
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
