"""Moving a job from one machine to another, with the new machine started first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Assign, Release
from ebbtide.policies.api.quotes import Quotes
from ebbtide.policies.api.records import LeaseView
from ebbtide.policies.api.view import View


def take_over(view: View, new: LeaseView) -> Iterator[Action]:
    """Move a job to its new machine, which is now running, and release the old one.

    Does nothing if the new machine already has a revocation notice.
    """
    if math.isfinite(new.revoke_at_s):
        return
    for job in view.jobs:
        if new in job.leases:
            others = [old for old in job.leases if old is not new]
            yield Assign(job.job_id, [new.lease_id])
            for old in others:
                yield Release(old.lease_id)


def list_price(quotes: Quotes, market: Market) -> float:
    """The on-demand price, USD per hour, above which spot is useless; twice the spot price where it is unknown."""
    listed = quotes.on_demand_price(market)
    return 2.0 * quotes.price(market) if listed is None else listed
