"""Savings of moves in Dynamic Pricing, less what a move costs: egress, a start, time to save and restore."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide.market.markets import Market
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.migration import egress_usd

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Move:
    """Savings of a job that moves from one machine to another, over the same steps.

    Attributes:
        saved_usd: Money saved by the move, USD; negative: it costs more.
        saved_s: Time saved by the move, seconds; negative: the job ends later.
    """

    saved_usd: float
    saved_s: float


def move(view: View, job: JobView, lease: LeaseView, market: Market, start_s: float, horizon_s: float) -> Move:
    """Compute what a move saves, in money and in time.

    The old machine trains until the new one is up, and both are paid for that long; then the job stands still, as
    it is saved here and restored there. What is left after the horizon is not counted: by then prices differ.

    Args:
        view: Prices and speeds of the moment.
        job: The job.
        lease: The machine that it trains on.
        market: The market that it would move to.
        start_s: Seconds for which the new machine is paid before it can restore; 0: it is up.
        horizon_s: The most time on the present machine whose steps are counted, seconds.
    """
    here_usd, there_usd = view.price(lease.market) / _HOUR_S, view.price(market) / _HOUR_S
    here, there = view.steps_per_s(job.job, lease.market), view.steps_per_s(job.job, market)
    steps = min(job.steps_left, here * horizon_s)
    save_s = job.job.save_s(view.machine(lease.market).vcpus)
    restore_s = job.job.restore_s(view.machine(market).vcpus, lease.market.place, market.place)
    still_s = save_s + restore_s
    stays_s, moves_s = steps / here, steps / there
    stays_usd = stays_s * here_usd
    moves_usd = (moves_s + start_s + still_s) * there_usd + save_s * here_usd
    moves_usd += egress_usd(view, job, lease.market, market)
    return Move(stays_usd - moves_usd, stays_s - moves_s - still_s)
