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
from ebbtide.jobs.checkpoint_interval import interval_s_of
from ebbtide.market.markets import Market
from ebbtide.policies.exosphere.allocation import CoresAndMemory


@dataclass(frozen=True)
class PortfolioRequest:
    """Down-call: the request for a virtual cluster.

    Attributes:
        resources: Cores and memory of the whole cluster.
        alpha: Risk aversion (Equation 1); 0: only the market that saves most.
        least_mttr_s: Minimum mean time to revocation of a market, seconds; for example twice the job's length
            (6.2).
        instance_types: Allowed instance types; empty: all that the job can run on.
        price_threshold: Share of the on-demand price above which a server causes an up-call and none is rented.
    """

    resources: CoresAndMemory
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
    """Down-call: a new size for the same portfolio. Missing servers are rented, surplus ones released."""

    resources: CoresAndMemory


@dataclass(frozen=True)
class ReleaseServers:
    """Down-call: release these servers without replacement."""

    lease_ids: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """Down-call: write a checkpoint now."""


@dataclass(frozen=True)
class CallAgain:
    """Down-call: call `on_due` at this time, seconds since 1970."""

    time_s: float


DownCall = PortfolioRequest | Resize | ReleaseServers | Checkpoint | CallAgain


@dataclass(frozen=True)
class RentedServer:
    """A server in an application's cluster.

    Attributes:
        lease_id: Id of the server's lease.
        market: The market it is rented in.
        resources: Its cores and memory.
        usd_per_hour: The current price of its market, USD per hour.
        bid_usd_per_hour: Its max price, USD per hour: the on-demand price.
        is_leaving: Whether it has a revocation notice or is revoked.
    """

    lease_id: int
    market: Market
    resources: CoresAndMemory
    usd_per_hour: float
    bid_usd_per_hour: float
    is_leaving: bool


@dataclass(frozen=True)
class VirtualCluster:
    """The state of an application's cluster, passed to it with every call.

    Attributes:
        now_s: The current time, seconds since 1970.
        share_done: Share of its work that is done, 0 to 1.
        wanted: Resources it has requested, less those it lost and did not request again.
        servers: Servers that are rented or starting.
        memory: Plain values that the application keeps from call to call.
    """

    now_s: float
    share_done: float
    wanted: CoresAndMemory
    servers: Sequence[RentedServer]
    memory: dict[str, Any]

    @property
    def steady(self) -> CoresAndMemory:
        """Resources of the servers that are not leaving."""
        found = CoresAndMemory(0.0, 0.0)
        for server in self.servers:
            found = found if server.is_leaving else found.plus(server.resources)
        return found


@dataclass(frozen=True)
class PortfolioMttr:
    """Mean times to revocation, from price history.

    Every market counts half a revocation more than was observed: none observed does not mean that none can happen.

    Attributes:
        portfolio_s: Mean time for a server of the portfolio, seconds.
        by_market_s: Mean time for a server in each of its markets, seconds.
    """

    portfolio_s: float
    by_market_s: Mapping[Market, float]


class Application(ABC):
    """The job manager of one application: its portfolio, its fault tolerance and its recovery.

    Write it as a frozen dataclass whose fields are its parameters; state belongs in `VirtualCluster.memory`. An
    up-call that the application does not need may be left as it is: it makes no down-calls.
    """

    @abstractmethod
    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        """The run begins: answer with a `PortfolioRequest`."""

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: the portfolio's mean time to revocation, once it is made and every five minutes."""
        return ()

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: these servers have a revocation notice, or are revoked where the provider gives no notice."""
        return ()

    def on_soft_revocation(self, cluster: VirtualCluster, at_risk: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: these servers may be revoked soon; an early warning, not a guarantee."""
        return ()

    def on_price_threshold(self, cluster: VirtualCluster, expensive: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        """Up-call: the price of these servers has risen above the threshold."""
        return ()

    def on_due(self, cluster: VirtualCluster) -> Iterable[DownCall]:  # noqa: ARG002
        """The time of a `CallAgain` has come."""
        return ()


# Markets must live this many times as long as an MPI job (6.2).
_LIVES = 2.0

_SAVED, _INTERVAL = "saved_s", "interval_s"


class Checkpointed(Application):
    """An application that checkpoints at the interval of least loss, by its portfolio's mean life (4.1)."""

    save_s: float
    """Time to write a checkpoint, seconds; 0: none is written."""

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:
        if self.save_s > 0.0:
            saved_s = cluster.memory.setdefault(_SAVED, cluster.now_s)
            cluster.memory[_INTERVAL] = interval_s_of(self.save_s, mttr.portfolio_s)
            yield CallAgain(saved_s + cluster.memory[_INTERVAL])

    def on_due(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        if cluster.now_s >= cluster.memory[_SAVED] + cluster.memory[_INTERVAL]:
            cluster.memory[_SAVED] = cluster.now_s
            yield Checkpoint()
            yield CallAgain(cluster.now_s + cluster.memory[_INTERVAL])


@dataclass(frozen=True)
class Spark(Checkpointed):
    """Spark: data in memory on many servers; periodic checkpoints, and lost servers replaced while it pays (4.1).

    Attributes:
        resources: Cores and memory of the cluster.
        alpha: Risk aversion: low for batch jobs, high for interactive ones.
        save_s: Time to write a checkpoint, seconds; 0: none is written.
        replenish_until: Replace lost servers while a smaller share of the work is done; 1: always, as for
            interactive jobs; 0: never.
    """

    resources: CoresAndMemory
    alpha: float = 1.0
    save_s: float = 30.0
    replenish_until: float = 0.7

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:
        cluster.memory[_SAVED] = cluster.now_s
        yield PortfolioRequest(self.resources, self.alpha)

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        # Without any server it cannot continue.
        if cluster.share_done < self.replenish_until or cluster.steady.is_nothing:
            yield Resize(self.resources)


@dataclass(frozen=True)
class Mpi(Checkpointed):
    """MPI: ranks that all depend on each other; servers that outlive the job, and lost servers replaced (4.2).

    As Spark, it checkpoints by the mean time to revocation, if it takes any time.

    Attributes:
        resources: Cores and memory of the cluster.
        length_s: Expected duration of the job, seconds; 0: unknown, and the cheapest market is chosen.
        alpha: Risk aversion; 0 by default: diversity does not help, as one loss is as bad as all.
        save_s: Time to write a checkpoint, seconds; 0: none is written.
    """

    resources: CoresAndMemory
    length_s: float = 0.0
    alpha: float = 0.0
    save_s: float = 0.0

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:  # noqa: ARG002
        yield PortfolioRequest(self.resources, self.alpha, least_mttr_s=_LIVES * self.length_s)

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        yield Resize(self.resources)


@dataclass(frozen=True)
class BagOfTasks(Application):
    """A bag of independent tasks, not urgent: saves on a warning, leaves expensive markets (4.3).

    Attributes:
        resources: Cores and memory of the cluster.
        alpha: Risk aversion: above 0, so that work continues when a market is lost.
        lazy: Whether to save on a soft or hard warning; else interrupted tasks restart.
        price_threshold: Share of the on-demand price above which a server is released, until prices fall.
    """

    resources: CoresAndMemory
    alpha: float = 0.1
    lazy: bool = True
    price_threshold: float = 1.0

    def begin(self, cluster: VirtualCluster) -> Iterable[DownCall]:  # noqa: ARG002
        yield PortfolioRequest(self.resources, self.alpha, price_threshold=self.price_threshold)

    def on_portfolio_mttr(self, cluster: VirtualCluster, mttr: PortfolioMttr) -> Iterable[DownCall]:  # noqa: ARG002
        # Nothing is urgent: lost servers are requested again at the next regular call.
        yield Resize(self.resources)

    def on_hard_revocation(self, cluster: VirtualCluster, lost: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        if self.lazy:
            yield Checkpoint()

    def on_soft_revocation(self, cluster: VirtualCluster, at_risk: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        if self.lazy:
            yield Checkpoint()

    def on_price_threshold(self, cluster: VirtualCluster, expensive: Sequence[RentedServer]) -> Iterable[DownCall]:  # noqa: ARG002
        yield ReleaseServers(tuple(server.lease_id for server in expensive))
