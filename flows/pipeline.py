"""The whole pipeline as a flow: `dvc repro`, whose stages are subflows of this flow on its Prefect server.

A stage that is run alone starts a server of its own, which takes longer than most stages do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed

# Environment variable of a stage: the flow run below which its own stands.
PARENT_FLOW_RUN = "EBBTIDE_FLOW_RUN"


@flow(name="pipeline")
def pipeline(targets: Sequence[str] = ()) -> State[None]:
    """Bring stages up to date, with those that they need.

    Args:
        targets: Names of stages; none: all.

    Returns:
        The state of this flow run: failed where `dvc repro` has, which has said what was wrong.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **environment_of_stages()}
    command = [sys.executable, "-m", "dvc", "repro", *targets]
    code = subprocess.run(command, env=environment, check=False).returncode
    return Failed(message=f"dvc repro ended with exit code {code}") if code else Completed()


def environment_of_stages() -> dict[str, str]:
    """Environment variables of stages of this flow run: its Prefect server, and its id."""
    context = FlowRunContext.get()
    with get_client(sync_client=True) as client:
        url = str(client.api_url)
    if not url.startswith("http") or context is None or context.flow_run is None:
        return {}
    return {"PREFECT_API_URL": url, PARENT_FLOW_RUN: str(context.flow_run.id)}
