"""Moving a job from one machine to another, the new machine started first, and what its data cost on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ebbtide.market.billing import LeaseEnding
from ebbtide.market.markets import Market
from ebbtide.market.price_series import PriceSeries
from ebbtide.policies.api.actions import Action, Assign, Release
from ebbtide.policies.api.quotes import Quotes
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View


def take_over(view: View, new: LeaseView, *, keeps_refunded: bool = False) -> Iterator[Action]:
    """Move a job to its new machine, which is now running, and release the old one.

    Does nothing if the new machine already has a revocation notice, or for a job that has several machines.

    Args:
        view: What the policy sees.
        new: The new machine.
        keeps_refunded: An old machine that is about to be revoked and so to cost less is left to its provider.
    """
    if math.isfinite(new.revoke_at_s):
        return
    for job in view.jobs:
        if new in job.leases and job.job.most_machines == 1:
            others = [old for old in job.leases if old is not new]
            yield Assign(job.job_id, [new.lease_id])
            for old in others:
                if not (keeps_refunded and is_better_revoked(view, old, old.revoke_at_s)):
                    yield Release(old.lease_id, because=Reason(f"its job has moved to lease {new.lease_id}"))


def is_better_revoked(view: View, lease: LeaseView, revoke_at_s: float) -> bool:
    """Return whether a machine costs less if it is revoked later than if it is released now.

    Args:
        view: What the policy sees.
        lease: The machine.
        revoke_at_s: Time of the revocation, seconds since 1970; infinity: no revocation is known.
    """
    if math.isinf(revoke_at_s) or lease.on_demand or not lease.is_charged:
        return False
    steady = PriceSeries(np.array([lease.started_s]), np.array([1.0]))
    bill = view.billing.bill
    revoked = bill(steady, lease.started_s, max(revoke_at_s, view.now_s), LeaseEnding.REVOKED)
    return revoked.usd < bill(steady, lease.started_s, view.now_s, LeaseEnding.RELEASED).usd


def list_price(quotes: Quotes, market: Market) -> float:
    """The on-demand price, USD per hour, above which spot is useless; twice the spot price where it is unknown."""
    listed = quotes.on_demand_price(market)
    return 2.0 * quotes.price(market) if listed is None else listed


def save_usd(view: View, job: JobView, market: Market) -> float:
    """The egress of one save in a market, to the job's bucket, USD; 0 without a bucket."""
    bucket = job.job.bucket
    return view.egress_usd(job.checkpoint_bytes, market.place, bucket.place) if bucket else 0.0


def egress_usd(view: View, job: JobView, source: Market, destination: Market) -> float:
    """The cost of moving the job's checkpoint and dataset from one market to another, USD.

    With a bucket the checkpoint is uploaded to it and downloaded from it.
    """
    checkpoint, dataset, bucket = job.job.checkpoint, job.job.dataset, job.job.bucket
    usd = save_usd(view, job, source)
    if checkpoint is not None:
        lies = bucket.place if bucket else source.place
        usd += view.egress_usd(job.checkpoint_bytes, lies, destination.place)
    if dataset is not None and not job.has_dataset(destination.cloud):
        usd += view.egress_usd(dataset.size_bytes, dataset.home, destination.place)
    return usd
