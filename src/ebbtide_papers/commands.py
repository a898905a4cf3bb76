"""`ebbtide reproduce NAME`: a paper's claims and our results; every folder here with a `command` is a paper."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import typer

import ebbtide_papers

reproduce_app = typer.Typer(no_args_is_help=True, help="Reproduce a paper's evaluation on given prices.")


@reproduce_app.callback()
def reproduce() -> None:
    """Show each claim with the paper's figure, ours, and whether it holds within its tolerance."""


for _paper in iter_modules(ebbtide_papers.__path__):
    if _paper.ispkg:
        _module = import_module(f"ebbtide_papers.{_paper.name}.command")
        reproduce_app.command(_paper.name.replace("_", "-"))(_module.command)
