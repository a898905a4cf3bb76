"""Keys of stored objects: names with slashes between them, none of which leads out of its store."""

from __future__ import annotations

import re

from ebbtide.errors import InputError

_KEY = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9._=-]*(/[A-Za-z0-9_=][A-Za-z0-9._=-]*)*")

# Suffix of a file that is being written.
PART = ".part"


def is_key(name: str) -> bool:
    """Return whether a name is a key: others, as of files and folders that other programs left, are no objects."""
    return _KEY.fullmatch(name) is not None and not name.endswith(PART)


def checked_key(key: str) -> str:
    """The key itself, checked.

    Raises:
        InputError: The key could lead out of its store, or looks like a file that is being written.
    """
    if not is_key(key):
        raise InputError(f"{key!r} is no key of an object: use letters, digits and . _ = - between slashes")
    return key
