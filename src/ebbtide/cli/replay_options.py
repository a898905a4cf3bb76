"""Options of commands that replay policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ebbtide.cli.options import BillingOption
from ebbtide.market.billing import Billing, billing_preset
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


@dataclass(frozen=True)
class ReplayOptions:
    """Options for the number of replays, and for charging their machines."""

    starts: Annotated[int, typer.Option(help="Number of start times to draw.")] = 30
    seed: Annotated[int, typer.Option(min=0, help="Seed of the starts and of all random numbers.")] = 0
    billing: BillingOption = "by-cloud"

    @property
    def rule(self) -> Billing:
        """The billing rule of spot leases."""
        return billing_preset(self.billing)
