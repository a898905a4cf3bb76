"""Names of a run where it meets other people's runs: in an account, in a bucket, in MLflow.

A run's id is its user's word, and two people may have the same: nightly runs are named by their job and the time.
So wherever it meets others it is called `ID-FINGERPRINT`. The fingerprint is made from the run's key, which copies
of its folder have, too, and no other run has.
"""

from __future__ import annotations

import hashlib

_DIGITS = 8


def fingerprint_of(key: bytes) -> str:
    """The fingerprint of a run's key: eight hexadecimal digits."""
    return hashlib.sha256(key).hexdigest()[:_DIGITS]


def unique_name(run: str, fingerprint: str) -> str:
    """The name of a run that no run of anybody else has.

    Args:
        run: Id of the run.
        fingerprint: The fingerprint of its key; empty: an older Ebbtide began it, and it has its id alone.
    """
    return f"{run}-{fingerprint}" if fingerprint else run


def own_store(store: str, name: str) -> str:
    """The address of a run's own part of a store that it shares with other runs.

    Args:
        store: Folder or `s3://bucket/prefix`, as its user names it.
        name: Unique name of the run.
    """
    return f"{store.rstrip('/')}/{name}"
