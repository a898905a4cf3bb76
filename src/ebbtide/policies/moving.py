"""Moving a job from one machine to another, the new one started first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Assign, Release
from ebbtide.policies.api.quotes import Quotes
from ebbtide.policies.api.records import LeaseView
from ebbtide.policies.api.view import View


def take_over(view: View, new: LeaseView) -> Iterator[Action]:
    """A machine has come: the job that it was asked for goes over to it, and gives back the one that it was on.

    Not to one that is already being taken.
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
    """The on-demand price, above which spot is of no use; where it is not known, twice the spot price."""
    listed = quotes.on_demand_price(market)
    return 2.0 * quotes.price(market) if listed is None else listed
