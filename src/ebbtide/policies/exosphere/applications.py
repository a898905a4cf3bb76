"""Applications made aware of transiency: Spark, MPI and a bag of tasks (ExoSphere 4.1 to 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebbtide.jobs.checkpoint_interval import best_interval_s
from ebbtide.policies.exosphere.allocation import Resources
from ebbtide.policies.exosphere.interface import (
    Application,
    CallAgain,
    Checkpoint,
    DownCall,
    PortfolioMttr,
    PortfolioRequest,
    ReleaseServers,
    RentedServer,
    Resize,
    VirtualCluster,
)

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
