"""Keys of stored objects: names with slashes between them, none of which leads out of its store."""

from __future__ import annotations

import re

from ebbtide.errors import InputError

KEY = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9._=-]*(/[A-Za-z0-9_=][A-Za-z0-9._=-]*)*")

# Suffix of a file that is being written.
PART = ".part"


def checked_key(key: str) -> str:
    """The key itself, checked.

    Raises:
        InputError: The key could lead out of its store, or looks like a file that is being written.
    """
    if not KEY.fullmatch(key) or key.endswith(PART):
        raise InputError(f"{key!r} is no key of an object: use letters, digits and . _ = - between slashes")
    return key
