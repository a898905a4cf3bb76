"""Options of the commands that replay policies."""

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
            f"Which, with commas between: {', '.join(POLICIES)}; {ALL}; or your own, as my_policy.py:Mine or "
            f"package.module:Mine. Without: {', '.join(USUAL)}."
        ),
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        min=0,
        help="Processes that share the replays; 0: as many as there are processors.",
        show_default=False,
    ),
]
