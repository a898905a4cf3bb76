"""Where mapped tasks run: threads or processes here, or workers of Dask or Ray, on one machine or several."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from ebbtide.base.cores import end_with_parent, usable_cores
from ebbtide.base.dask_security import NO_HTTP, new_security
from ebbtide.errors import InputError, unknown_name

# Named by these; the second is an address of a cluster that runs: tcp://host:8786, ray://host:10001.
KIND, ADDRESS = "EBBTIDE_TASK_RUNNER", "EBBTIDE_TASK_RUNNER_ADDRESS"
KINDS = ("threads", "processes", "dask", "ray")


def task_runner(default: str = "threads") -> TaskRunner[Any]:
    """The one that the environment names.

    Args:
        default: The one without: `threads` for tasks that wait or are short, `processes` for those that compute.

    Raises:
        InputError: An unknown name, or one whose package is not installed.
    """
    kind, address = os.environ.get(KIND, default), os.environ.get(ADDRESS)
    if kind == "threads":
        return ThreadPoolTaskRunner()
    if kind == "processes":
        processes: TaskRunner[Any] = ProcessPoolTaskRunner(
            max_workers=usable_cores(), initializer=end_with_parent, initargs=(os.getpid(),)
        )
        return processes
    if kind not in KINDS:
        raise unknown_name("task runner", kind, KINDS)
    if find_spec(f"prefect_{kind}") is None:
        raise InputError(f"task runner {kind} needs prefect-{kind}: pip install 'ebbtide[{kind}]'")
    if kind == "dask":
        from prefect_dask import DaskTaskRunner

        if address:
            dask: TaskRunner[Any] = DaskTaskRunner(address=address)
        else:
            dask = DaskTaskRunner(cluster_kwargs=_dask_cluster_here())
        return dask
    from prefect_ray import RayTaskRunner

    ray: TaskRunner[Any] = RayTaskRunner(**({"address": address} if address else {}))
    return ray


def _dask_cluster_here() -> dict[str, Any]:
    """Arguments of a cluster on this machine that no other user of it can have run anything."""
    import dask

    dask.config.set(NO_HTTP)
    return {
        "n_workers": os.cpu_count(),
        "threads_per_worker": 1,
        "dashboard_address": None,
        "host": "127.0.0.1",
        "protocol": "tls://",
        "security": new_security(),
    }
