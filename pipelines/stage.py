"""What every stage does: read its parameters, run its flow, end cleanly when the input is bad."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from flows.parameters import PARAMS, parameters

from ebbtide.errors import InputError

__all__ = ["parameters", "run_stage"]

# Embedded defaults: no server, nothing outside this folder, nothing sent anywhere. Setting these variables, or
# PREFECT_API_URL, points the same flows at a real server.
_DEFAULTS = {
    "PREFECT_HOME": str(Path(".prefect").resolve()),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the stage itself reports a failure, once
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # on a busy machine its 20 s are too few
    "DO_NOT_TRACK": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Work is spread over processes; threads inside each would only compete for the same cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def run_stage(stage: Callable[[], None]) -> None:
    """Run a stage with the embedded defaults; bad input ends with exit code 2 and one line."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        stage()
    except InputError as error:
        sys.stderr.write(f"ebbtide: {error}\n")
        sys.exit(2)
    except KeyError as error:
        sys.stderr.write(f"ebbtide: {PARAMS}: parameter {error} is missing\n")
        sys.exit(2)
