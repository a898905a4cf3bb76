"""Cookbooks as files: arrays as safetensors, everything else as JSON in their header. Nothing is unpickled."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ebbtide.base.files import replacing
from ebbtide.errors import InputError
from ebbtide.jobs.parsing import validated
from ebbtide.jobs.workflow import Workflow
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.problem import ChargeModel, CookbookProblem

_FORMAT = 1
_NUMBERS = ("step_h", "most", "work_unit_h", "risk_aversion", "charge_steps")
_MARKET = ("prices", "transition", "charge", "charge_variance")
_SOLUTION = ("actions", "mean_usd", "deviation_usd")


def save_cookbook(book: Cookbook, path: str | Path) -> None:
    """Write a cookbook, atomically."""
    problem = book.problem
    about = {
        "format": _FORMAT,
        "workflow": problem.workflow.model_dump(mode="json"),
        **{name: getattr(problem, name) for name in _NUMBERS},
    }
    arrays = {name: getattr(problem.market, name).copy() for name in _MARKET}
    arrays |= {name: getattr(book, name) for name in _SOLUTION}
    with replacing(path) as temporary:
        save_file(arrays, temporary, metadata={"ebbtide-cookbook": json.dumps(about)})


def load_cookbook(path: str | Path) -> Cookbook:
    """Read what `save_cookbook` wrote.

    Raises:
        InputError: The file is no whole cookbook, or of another version.
    """
    try:
        with safe_open(str(path), framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get("ebbtide-cookbook", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as a cookbook: {error}", file=path) from None
    if about is None or not set(_MARKET + _SOLUTION) <= set(arrays):
        raise InputError("is no cookbook; `ebbtide cookbook solve` makes one", file=path)
    if about.get("format") != _FORMAT:
        raise InputError(f"is of format {about.get('format')}; this version reads {_FORMAT}", file=path)
    workflow = validated(Workflow, about["workflow"], path)
    market = ChargeModel(*(arrays[name] for name in _MARKET))
    problem = CookbookProblem(workflow, market, **{name: about[name] for name in _NUMBERS})
    return Cookbook(problem, *(arrays[name] for name in _SOLUTION))
