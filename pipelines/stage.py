"""A stage of the pipeline as a process: its flow, with sections of params.yaml and files that dvc.yaml names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID

from ebbtide.errors import InputError, unknown_name

# Embedded defaults: no server, nothing outside this folder, nothing sent anywhere. Setting these variables, or
# PREFECT_API_URL, points the same flows at a real server.
_DEFAULTS = {
    "PREFECT_HOME": str(Path(".prefect").resolve()),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Prefect's pages have the logs; here the stage itself reports a failure, once.
    "PREFECT_LOGGING_LEVEL": "INFO",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",  # on a busy machine its 20 s are too few
    "DO_NOT_TRACK": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Work is spread over processes; threads inside each would only compete for the same cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def run_command(command: Callable[[], object]) -> None:
    """Run a command of the pipeline with the embedded defaults.

    Bad input, or a Prefect server that does not answer, ends with exit code 2 and one line.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        command()
    except InputError as error:
        sys.stderr.write(f"ebbtide: {error}\n")
        sys.exit(2)
    except RuntimeError as error:
        # Prefect has no class of its own for this.
        if not str(error).startswith("Failed to reach API"):
            raise
        url = os.environ.get("PREFECT_API_URL", "its address")
        sys.stderr.write(
            f"ebbtide: Prefect's server does not answer at {url}; start it, or unset PREFECT_API_URL\n"
        )
        sys.exit(2)


def run_stage(name: str, words: Sequence[str]) -> None:
    """Run a stage's flow: sections of params.yaml are read from there, other parameters are `NAME=VALUE`.

    Args:
        name: Name of the stage, of its module in `flows`, and of the flow in it.
        words: The other parameters, as `NAME=VALUE` each.

    Raises:
        InputError: A word is not of this form, or a parameter is unknown, missing or not what it should be.
    """
    from flows.parameters import SECTIONS, parameters
    from flows.pipeline import PARENT_FLOW_RUN

    flow = getattr(import_module(f"flows.{name}"), name)
    hints = get_type_hints(flow.fn)
    wanted = signature(flow.fn).parameters
    given = dict(_pair(word) for word in words)
    for key in given:
        if key not in wanted or hints[key] in SECTIONS.values():
            raise unknown_name(f"parameter of stage {name}", key, wanted)
    arguments: dict[str, Any] = {}
    for key, parameter in wanted.items():
        if hints[key] in SECTIONS.values():
            arguments[key] = parameters(hints[key])
        elif key in given:
            arguments[key] = hints[key](given[key])
        elif parameter.default is Parameter.empty:
            raise InputError(f"stage {name} lacks {key}=..., as its command in dvc.yaml has it")
    with _without_heartbeat(), _below(os.environ.get(PARENT_FLOW_RUN, "")):
        flow(**arguments)


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise InputError(f"{word!r} is not NAME=VALUE")
    return name, value


@contextmanager
def _without_heartbeat() -> Iterator[None]:
    """Send no heartbeats for a stage unless they are asked for: Prefect waits up to a second for them at its end.

    The flow run of the whole pipeline has heartbeats.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings, temporary_settings

    is_asked_for = "heartbeat_frequency" in get_current_settings().flows.model_fields_set
    with temporary_settings({} if is_asked_for else {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@contextmanager
def _below(flow_run: str) -> Iterator[None]:
    """Make flow runs within it subflows of a run of another process; without an id they stand by themselves."""
    if not flow_run:
        yield
        return
    from prefect import Flow, get_client
    from prefect.context import FlowRunContext
    from prefect.results import ResultStore
    from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

    runner: TaskRunner[Any] = ThreadPoolTaskRunner()
    with get_client(sync_client=True) as client, runner:
        context = FlowRunContext(
            flow=Flow(fn=lambda: None, name="pipeline"),
            flow_run=client.read_flow_run(UUID(flow_run)),
            client=client,
            task_runner=runner,
            result_store=ResultStore(),
            parameters={},
            detached=True,
        )
        with context:
            yield
