"""A virtual cluster over a portfolio's markets, and what is done when one of them is lost (ExoSphere 3.4, 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ebbtide.errors import InputError
from ebbtide.market.markets import Market
from ebbtide.policies.actions import Action, Request, WakeAt
from ebbtide.policies.events import Wake
from ebbtide.policies.view import View

# Where nothing can be had: when to ask again.
_AGAIN_S = 300.0


@dataclass(frozen=True, eq=False)
class HoldPortfolio:
    """Rents so many machines in each market, at a bid of the on-demand price, for one job.

    Attributes:
        machines: How many by market; see `allocate`.
        replenish: Rent others for those that are taken, at once, in the portfolio's other markets; else go on with
            what is left, and begin anew only when nothing is (4.1).
        until_share: Replenish only while less of the job is done: near its end it is not worth it (4.1).
    """

    machines: Mapping[Market, int]
    replenish: bool = True
    until_share: float = 1.0
    name: str = "exosphere"
    wakes_on: frozenset[Wake] = frozenset()

    def __post_init__(self) -> None:
        if not self.machines or min(self.machines.values()) < 0 or not any(self.machines.values()):
            raise InputError("a portfolio of no machine cannot be held")

    def decide(self, view: View) -> Iterable[Action]:
        (job,) = view.jobs
        if job.is_finished:
            return
        held = Counter(lease.market for lease in view.leases_of(0))
        missing = sum(self.machines.values()) - held.total()
        first = any(event.wake is Wake.START for event in view.events)
        wanted = first or not held or (self.replenish and job.steps_done < self.until_share * job.job.steps)
        if missing > 0 and wanted:
            yield from self._request(view, held, missing)

    def _request(self, view: View, held: Counter[Market], missing: int) -> Iterator[Action]:
        """Each in the market that is furthest below its share, of those that can be had."""
        bids = {market: view.on_demand_price(market) for market in self.machines}
        unknown = [market for market, bid in bids.items() if bid is None]
        if unknown:
            raise InputError(f"on-demand price of {unknown[0]} is not known; it is what is bid")
        open_now = [market for market, bid in bids.items() if bid is not None and view.price(market) <= bid]
        if not open_now:
            yield WakeAt(view.now_s + _AGAIN_S)
            return
        asked: Counter[Market] = Counter()
        for _ in range(missing):
            asked[max(open_now, key=lambda market: self.machines[market] - held[market] - asked[market])] += 1
        for market, count in asked.items():
            bid = bids[market]
            assert bid is not None
            yield Request(market, bid, job=0, count=count)
