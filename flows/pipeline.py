"""The whole pipeline as a flow: `dvc repro`, whose stages share this flow's Prefect server.

A stage that is run alone starts a server of its own, which takes longer than most stages do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_client


@flow(name="pipeline", validate_parameters=False)
def pipeline(targets: Sequence[str] = ()) -> int:
    """Bring stages up to date, with those that they need.

    Args:
        targets: Names of stages; none: all.

    Returns:
        The exit code of `dvc repro`, which has said what was wrong.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **server()}
    return subprocess.run(
        [sys.executable, "-m", "dvc", "repro", *targets], env=environment, check=False
    ).returncode


def server() -> dict[str, str]:
    """The address of this flow run's Prefect server, as environment variable of stages."""
    with get_client(sync_client=True) as client:
        url = str(client.api_url)
    return {"PREFECT_API_URL": url} if url.startswith("http") else {}
