"""Encryption of a Dask cluster on this machine, so that no other user of it can run code in its processes."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import InputError

# Sockets other than TLS serve nothing: Dask would show tasks and logs on them to whoever asks.
NO_HTTP: dict[str, Any] = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}

# Fields of `Security` that a worker process reads from its environment.
_OF_A_WORKER = {
    "CA_FILE": "tls_ca_file",
    "WORKER__CERT": "tls_worker_cert",
    "WORKER__KEY": "tls_worker_key",
}


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


def worker_environment(security: Any) -> dict[str, str]:
    """Environment variables with which a worker process joins the cluster: unlike its command line, only its own
    user can read them.

    Args:
        security: What `new_security` gave.
    """
    found = {f"TLS__{name}": str(getattr(security, attribute)) for name, attribute in _OF_A_WORKER.items()}
    return {f"DASK_DISTRIBUTED__COMM__{name}": text for name, text in found.items()} | {
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
        "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
    }
