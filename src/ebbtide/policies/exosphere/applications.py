"""Applications of ExoSphere, and the calls between them and the master (ExoSphere 4, Figure 6).

An application is a small policy of its own. The master informs it of its virtual cluster by up-calls; it answers
with down-calls and never rents anything itself. The paper's examples (4.1 to 4.3): Spark, MPI, a bag of tasks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import InputError
from ebbtide.jobs.checkpoint_interval import best_interval_s
from ebbtide.market.markets import Market
from ebbtide.policies.exosphere.allocation import Resources


@dataclass(frozen=True)
class PortfolioRequest:
    """Down-call: a virtual cluster.

    Attributes:
        resources: Cores and memory of all of it.
        alpha: Aversion to risk (Equation 1); 0: the one market that saves most.
        least_mttr_s: Only markets that live so long in the mean; twice the job's length, say (6.2).
        instance_types: Only these; empty: any that the job can run on.
        price_threshold: Tell when a server costs more than so much of its on-demand price; rent none that does.
    """

    resources: Resources
    alpha: float = 1.0
    least_mttr_s: float = 0.0
    instance_types: tuple[str, ...] = ()
    price_threshold: float = 1.0

    def __post_init__(self) -> None:
        if self.resources.is_nothing:
            raise InputError("resources of a request are nothing; some cores or some memory are needed")
        if not (math.isfinite(self.alpha) and self.alpha >= 0.0):
            raise InputError(f"alpha is {self.alpha}; a number from 0 on is needed")
        if not 0.0 < self.price_threshold <= 1.0:
            raise InputError(f"price_threshold is {self.price_threshold}; a share of on demand is needed")


@dataclass(frozen=True)
class Resize:
    """Down-call: so much of the same portfolio. What is missing is rented, what is too much is given back."""

    resources: Resources


@dataclass(frozen=True)
class ReleaseServers:
    """Down-call: give these servers back, and do without them."""

    lease_ids: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """Down-call: save what is being computed, now."""


@dataclass(frozen=True)
class CallAgain:
    """Down-call: call `on_due` at this time."""

    time_s: float


DownCall = PortfolioRequest | Resize | ReleaseServers | Checkpoint | CallAgain


@dataclass(frozen=True)
class RentedServer:
    """A server of an application's cluster.

    Attributes:
        lease_id: Its lease.
        market: Where it is rented.
        resources: What it has.
        usd_per_hour: What its market asks now.
        bid_usd_per_hour: What is paid at most: the on-demand price.
        is_leaving: Whether a notice has come for it.
    """

    lease_id: int
    market: Market
    resources: Resources
    usd_per_hour: float
    bid_usd_per_hour: float
    is_leaving: bool


@dataclass(frozen=True)
class VirtualCluster:
    """What an application is told of itself.

    Attributes:
        now_s: The time.
        share_done: Of its work.
        wanted: What it has asked for, less what it lost and did not ask for again.
        servers: Rented or on their way.
        memory: Plain values of its own, carried from call to call.
    """

    now_s: float
    share_done: float
    wanted: Resources
    servers: Sequence[RentedServer]
    memory: dict[str, Any]

    @property
    def steady(self) -> Resources:
        """What it has, but for what is about to go."""
        found = Resources(0.0, 0.0)
        for server in self.servers:
            found = found if server.is_leaving else found.plus(server.resources)
        return found


@dataclass(frozen=True)
class PortfolioMttr:
    """Mean times to revocation, as the past has them.

    Every market counts half a revocation more than was seen: that none was seen does not mean that there is none.

    Attributes:
        portfolio_s: Of a server of the portfolio.
        by_market_s: Of a server in each of its markets.
    """

    portfolio_s: float
    by_market_s: Mapping[Market, float]


class Application(ABC):
    """One application's job manager: its portfolio, its fault tolerance, its recovery.

    A frozen dataclass whose fields are its parameters; what it remembers is in `VirtualCluster.memory`. Up-calls
    that it does not care for are answered with nothing.
    """

    @abstractmethod
    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        """The run begins: a `PortfolioRequest`, above all."""

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: once the portfolio is made, and every five minutes."""
        return ()

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: these servers will be taken, or have been where the provider gives no notice."""
        return ()

    def on_soft_revocation(self, cluster: VirtualCluster, shaky: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: these may be taken soon; an early warning, not a guarantee."""
        return ()

    def on_price_threshold(self, cluster: VirtualCluster, dear: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: these have come to cost more than the threshold."""
        return ()

    def on_due(self, cluster: VirtualCluster) -> Iterable[DownCall]:  # noqa: ARG002
        """The time that a `CallAgain` asked for has come."""
        return ()


# Only markets that live so many times as long as an MPI job (6.2).
_LIVES = 2.0

_SAVED, _INTERVAL = "saved_s", "interval_s"


@dataclass(frozen=True)
class Spark(Application):
    """Data in memory over many servers: checkpoints every so often, others for lost servers while it pays (4.1).

    Attributes:
        resources: Of the cluster.
        alpha: Aversion to risk: low for batches, high where someone waits for answers.
        save_s: Time to write a checkpoint; 0: none is written.
        replenish_until: Ask for others in place of lost servers while less of the work is done; 1: always, as
            where someone waits; 0: never.
    """

    resources: Resources
    alpha: float = 1.0
    save_s: float = 30.0
    replenish_until: float = 0.7

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        cluster.memory[_SAVED] = cluster.now_s
        yield PortfolioRequest(self.resources, self.alpha)

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:
        if self.save_s > 0.0:
            cluster.memory[_INTERVAL] = best_interval_s(self.save_s, mttr.portfolio_s)
            yield CallAgain(cluster.memory[_SAVED] + cluster.memory[_INTERVAL])

    def on_due(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        if cluster.now_s >= cluster.memory[_SAVED] + cluster.memory[_INTERVAL]:
            cluster.memory[_SAVED] = cluster.now_s
            yield Checkpoint()
            yield CallAgain(cluster.now_s + cluster.memory[_INTERVAL])

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        # With nothing left it cannot go on, whatever is done.
        if cluster.share_done < self.replenish_until or cluster.steady.is_nothing:
            yield Resize(self.resources)


@dataclass(frozen=True)
class Mpi(Application):
    """Ranks that all depend on each other: servers that outlive the job, all of them again if one goes (4.2).

    Attributes:
        resources: Of the cluster.
        length_s: How long the job will take; 0: not known, and the cheapest market is taken.
        alpha: Aversion to risk: diversity does not help, as one loss is as bad as all.
    """

    resources: Resources
    length_s: float = 0.0
    alpha: float = 0.0

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:  # noqa: ARG002
        yield PortfolioRequest(self.resources, self.alpha, least_mttr_s=_LIVES * self.length_s)

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        yield Resize(self.resources)


@dataclass(frozen=True)
class BagOfTasks(Application):
    """Tasks that do not need each other, and no one waits: saves on a warning, leaves where it is dear (4.3).

    Attributes:
        resources: Of the cluster.
        alpha: Aversion to risk: some, so that it goes on when a market is lost.
        lazy: Save on a soft or a hard warning; else tasks begin again.
        price_threshold: Share of the on-demand price above which a server is given back, until prices fall.
    """

    resources: Resources
    alpha: float = 0.1
    lazy: bool = True
    price_threshold: float = 1.0

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:  # noqa: ARG002
        yield PortfolioRequest(self.resources, self.alpha, price_threshold=self.price_threshold)

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:  # noqa: ARG002
        # Nothing is urgent: what was lost is asked for again when next told of the portfolio.
        yield Resize(self.resources)

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        if self.lazy:
            yield Checkpoint()

    def on_soft_revocation(self, cluster: VirtualCluster, shaky: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        if self.lazy:
            yield Checkpoint()

    def on_price_threshold(self, cluster: VirtualCluster, dear: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        yield ReleaseServers(tuple(server.lease_id for server in dear))
