"""Calls a sweep's entry point, a Python function.

`python -m ebbtide.agent.entry_point package.module:function '{"lr": 0.1}' validation_loss`

A parameter named `trial` gets the current `Trial`. What the function returns, a number or numbers by name, is
reported as its last metrics if it has reported none itself.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ebbtide.trial import Trial

# Set while the function's module is imported, so that a script that begins a sweep begins none on each machine.
IMPORTING = "EBBTIDE_IMPORTING"
# The parameter that gets the current trial.
TRIAL = "trial"


def main() -> None:
    """Call the function; its module may be in the working directory, as with `python script.py`."""
    place, values = sys.argv[1], json.loads(sys.argv[2])
    metric = sys.argv[3] if len(sys.argv) > 3 else ""
    module, _, name = place.partition(":")
    sys.path.insert(0, os.getcwd())
    os.environ[IMPORTING] = place
    try:
        function = getattr(importlib.import_module(module), name)
    finally:
        del os.environ[IMPORTING]
    call(function, values, metric)


def call(function: Callable[..., Any], values: Mapping[str, Any], metric: str = "") -> None:
    """Train by a function.

    Args:
        function: The function.
        values: Its parameters, by name.
        metric: Metric name for a number that it returns; empty: a number by itself is not reported.

    Raises:
        TypeError: It reports nothing, and returns neither a number nor numbers by name.
    """
    gets = (
        {} if TRIAL in values or TRIAL not in inspect.signature(function).parameters else {TRIAL: Trial.current()}
    )
    returned = function(**values, **gets)
    # The function, or a callback of its framework, may have made a trial.
    trial = Trial.latest()
    if trial is not None and trial.has_reported:
        returned = None
    if isinstance(returned, Mapping):
        metrics = {str(key): value for key, value in returned.items()}
    else:
        metrics = {metric: returned} if metric and returned is not None else {}
    if trial is None and metrics:
        trial = Trial.current()
    if trial is not None:
        trial.returned(metrics)


if __name__ == "__main__":
    main()
