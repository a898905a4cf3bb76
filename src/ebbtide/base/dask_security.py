"""Encryption of a Dask cluster on this machine, so that no other user of it can run code in its processes."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import InputError

# Sockets other than TLS serve nothing: Dask would show tasks and logs on them to whoever asks.
NO_HTTP: dict[str, Any] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}


def new_security() -> Any:
    """A new key and certificate for one cluster, in memory alone: `distributed.security.Security`.

    Raises:
        InputError: dask.distributed or what it needs for encryption is not installed.
    """
    try:
        from distributed.security import Security

        return Security.temporary()
    except ImportError as error:
        raise InputError(
            f"Dask cannot encrypt what its processes say to each other ({error}): pip install 'ebbtide[dask]'"
        ) from None
