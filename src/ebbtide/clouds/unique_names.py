"""Names of a run where it shares a place with other people's runs: an account, a bucket, MLflow.

Users choose run ids, so two people may choose the same: nightly runs are named by their job and the time. In
shared places a run is therefore called `ID-FINGERPRINT`. The fingerprint is made from the run's key, which is
unique to the run and is kept in copies of its folder, too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_DIGITS = 8


def fingerprint_of(key: bytes) -> str:
    """Return the fingerprint of a run's key: eight hexadecimal digits."""
    return hashlib.sha256(key).hexdigest()[:_DIGITS]


def unique_name(run: str, fingerprint: str) -> str:
    """Return a run's name that no other run has.

    Args:
        run: Id of the run.
        fingerprint: The fingerprint of its key; empty: an older Ebbtide began the run, and its name is its id.
    """
    return f"{run}-{fingerprint}" if fingerprint else run


def absolute_store(store: str) -> str:
    """Return the address of a store that is the same from every folder: a run may be resumed from another.

    Args:
        store: Folder, relative to the working directory, or `s3://bucket/prefix`, as the user gave it.
    """
    return store if "://" in store else str(Path(store).resolve())


def own_store(store: str, name: str) -> str:
    """Return the address of a run's own part of a store that it shares with other runs.

    Args:
        store: Folder or `s3://bucket/prefix`, as the user gave it.
        name: Unique name of the run.
    """
    return f"{store.rstrip('/')}/{name}"
