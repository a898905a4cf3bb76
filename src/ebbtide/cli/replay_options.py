"""Options of commands that replay policies."""

from __future__ import annotations

from typing import Annotated

import typer

from ebbtide.policies.registry import ALL, POLICIES, USUAL

PoliciesOption = Annotated[
    str | None,
    typer.Option(
        "--policies",
        metavar="NAMES",
        help=(
            f"Policies, with commas between: {', '.join(POLICIES)}; {ALL}; or your own, as my_policy.py:Mine or "
            f"package.module:Mine. Default: {', '.join(USUAL)}."
        ),
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        min=0,
        help="Number of processes for the replays; 0: one for each processor.",
        show_default=False,
    ),
]
