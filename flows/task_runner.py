"""Where mapped tasks run: threads here, or workers of Dask or Ray, on one machine or several."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from ebbtide.errors import InputError, unknown_name

# Named by these; the second is an address of a cluster that runs: tcp://host:8786, ray://host:10001.
KIND, ADDRESS = "EBBTIDE_TASK_RUNNER", "EBBTIDE_TASK_RUNNER_ADDRESS"
KINDS = ("threads", "dask", "ray")


def task_runner() -> TaskRunner[Any]:
    """The one that the environment names; threads without.

    Raises:
        InputError: An unknown name, or one whose package is not installed.
    """
    kind, address = os.environ.get(KIND, "threads"), os.environ.get(ADDRESS)
    if kind == "threads":
        return ThreadPoolTaskRunner()
    if kind not in KINDS:
        raise unknown_name("task runner", kind, KINDS)
    if find_spec(f"prefect_{kind}") is None:
        raise InputError(f"task runner {kind} needs prefect-{kind}: pip install 'ebbtide[{kind}]'")
    if kind == "dask":
        from prefect_dask import DaskTaskRunner

        here = {"n_workers": os.cpu_count(), "threads_per_worker": 1, "dashboard_address": None}
        dask: TaskRunner[Any] = DaskTaskRunner(**({"address": address} if address else {"cluster_kwargs": here}))
        return dask
    from prefect_ray import RayTaskRunner

    ray: TaskRunner[Any] = RayTaskRunner(**({"address": address} if address else {}))
    return ray
