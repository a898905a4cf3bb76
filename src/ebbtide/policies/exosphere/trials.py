"""The trials of a sweep as one application of ExoSphere: they share a portfolio, each on a machine of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from ebbtide.jobs.job import Coupling, Job
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.records import JobView
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.applications import PortfolioRequest
from ebbtide.policies.exosphere.portfolio import Holding

# Risk aversion of trials, which do not need each other: that of a bag of tasks (4.3).
TRIALS_ALPHA = 0.1

Portfolio = tuple[Holding, ...]


@dataclass
class Trials:
    """The jobs of one decision that share a portfolio, and what was found for them in it.

    Attributes:
        number: How many there are.
        held: Their machines by market, those among them that were just asked for.
    """

    number: int
    held: Counter[Market]
    _portfolios: dict[Hashable, Portfolio] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[JobView], view: View) -> Trials:
        """Those among some jobs that train on one machine each and are not over."""
        trials = [job for job in jobs if not job.is_finished and is_alone(job)]
        leases = (lease for job in trials for lease in view.leases_of(job.job_id))
        leaving = (LeaseState.NOTICED, LeaseState.REVOKED)
        return cls(len(trials), Counter(lease.market for lease in leases if lease.state not in leaving))

    def next_market(self, holdings: Sequence[Holding]) -> Market:
        """The market of the next machine: the one that is furthest below its share of the trials."""
        total = sum(holding.share for holding in holdings)
        found = max(holdings, key=lambda one: one.share / total * self.number - self.held[one.market]).market
        self.held[found] += 1
        return found

    def portfolio(
        self, job: Job, request: PortfolioRequest, closed: Collection[Market], construct: Callable[[], Portfolio]
    ) -> Portfolio:
        """The portfolio of a job, constructed once for all that ask for the same and can run on the same types."""
        rates = job.steps_per_hour, job.other_steps_per_hour_per_vcpu
        key = (request, frozenset(closed), frozenset(rates[0]), rates[1] is None)
        if key not in self._portfolios:
            self._portfolios[key] = construct()
        return self._portfolios[key]


def is_alone(job: JobView) -> bool:
    """Return whether a job trains on one machine: a gang of one, not independent tasks."""
    return job.job.most_machines == 1 and job.job.coupling is Coupling.GANG
