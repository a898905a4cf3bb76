"""ExoSphere's master: rents servers for applications and exchanges calls with them (ExoSphere 4, 5).

Applications receive up-calls and answer with down-calls. Whatever the market does, the master brings each cluster
to its wanted size: first with servers from the free list, then with new ones.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ebbtide.base.utc import DAY_S
from ebbtide.errors import InputError, unknown_name
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.jobs.checkpoint_interval import fits_notice, saves_while_training
from ebbtide.jobs.job import UNKNOWN_STEPS, Coupling
from ebbtide.market.leases import LeaseState
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Assign, Release, Request, Save, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.reasons import Alternative, Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import View
from ebbtide.policies.exosphere.account import ApplicationAccount, FreeList
from ebbtide.policies.exosphere.allocation import CoresAndMemory, allocate, machines_needed
from ebbtide.policies.exosphere.applications import (
    Application,
    CallAgain,
    Checkpoint,
    DownCall,
    Mpi,
    PortfolioRequest,
    ReleaseServers,
    RentedServer,
    Resize,
    Spark,
    VirtualCluster,
)
from ebbtide.policies.exosphere.candidates import COVARIANCES
from ebbtide.policies.exosphere.http_callbacks import UpCalls, check_url
from ebbtide.policies.exosphere.portfolio import Holding, Selection, construct, time_to_revocation
from ebbtide.policies.exosphere.sharing import Sharing, has_others, shares
from ebbtide.policies.exosphere.trials import TRIALS_ALPHA, Trials, is_alone
from ebbtide.policies.field_checks import check_fields
from ebbtide.policies.risk import MarketRisk

# How often applications get the mean time to revocation (4), and how soon a failed request is retried.
CALL_EVERY_S = 300.0

# More aversion to risk changes no weight, and its squares overflow.
MOST_ALPHA = 1e12


@dataclass(frozen=True)
class ExoSphere:
    """Portfolios of servers for transiency-aware applications, one portfolio for each application.

    Jobs without an application that train on one machine each, as the trials of a sweep do, share one portfolio: a
    market gets its share of the trials. Those that fill a part of a server are put where others have left it room,
    before another server is rented (3.5).

    Attributes:
        applications: One application per job, in order; empty: `default_application` of each job.
        alpha: Risk aversion of jobs without an application (Equation 1); None: 0.1 for the trials of a sweep, as
            for a bag of tasks, and for one job that of its application.
        history_s: Length of the price history used, seconds: EC2 publishes three months (5).
        covariance: Name of the covariance: `price`, `revocation`, or `hybrid` for both.
        selection: The rule that selects markets: portfolios, or a rival.
        soft_share: Share of its bid at which a server's price counts as a warning (soft revocation).
        free_list_s: How long servers of a finished application are kept for others, seconds: twice the time that a
            new server needs to start (5).
        hazard: Chances of losing machines for capacity, which count beside prices.
        capacity: Whether they count; else prices alone, as published.
        up_calls: Address of a program that is asked before each application, as http://127.0.0.1:8123/ (see
            `up_calls`); None: there is none.
        up_calls_s: Seconds that its answer is waited for.
    """

    applications: tuple[Application, ...] = ()
    alpha: float | None = None
    history_s: float = 90 * DAY_S
    covariance: str = "hybrid"
    selection: Selection = Selection.PORTFOLIO
    soft_share: float = 0.5
    free_list_s: float = 600.0
    hazard: Hazard = field(default_factory=default_hazard, repr=False)
    capacity: bool = True
    up_calls: str | None = None
    up_calls_s: float = 2.0
    name: str = "exosphere"
    wakes_on: frozenset[Wake] = frozenset({Wake.PRICE, Wake.REBALANCE})

    def __post_init__(self) -> None:
        ranges = {"up_calls_s": (0.1, 30.0)} | ({} if self.alpha is None else {"alpha": (0.0, MOST_ALPHA)})
        check_fields(
            self, positive=("history_s",), not_negative=("free_list_s",), shares=("soft_share",), between=ranges
        )
        if self.covariance not in COVARIANCES:
            raise unknown_name("covariance", self.covariance, COVARIANCES)
        if self.up_calls is not None:
            check_url(self.up_calls)

    def decide(self, view: View) -> Iterable[Action]:
        free = FreeList.in_memory(view.memory)
        trials = Trials.of(() if self.applications else view.jobs, view)
        sharing = Sharing(view)
        self._risk(view)
        for job in view.jobs:
            account = ApplicationAccount.in_memory(view.memory, job.job_id)
            if not job.is_finished and self._concerns(view, job, account):
                yield from self._serve(view, job, account, free, trials, sharing)
        yield from self._free(view, free)

    def _risk(self, view: View) -> MarketRisk | None:
        """The risk of losing machines for capacity now; None: prices alone count."""
        is_rival = self.selection is not Selection.PORTFOLIO
        return MarketRisk.now(view, self.hazard) if self.capacity and not is_rival else None

    def application(self, view: View, job: JobView) -> Application:
        """The application of a job, behind the program that is asked before it, if there is one."""
        own = self._own_application(view, job)
        if self.up_calls is None:
            return own
        able = [view.machine(market) for market in view.markets if view.steps_per_s(job.job, market) > 0.0]
        most = CoresAndMemory(
            job.job.most_machines * max((machine.vcpus for machine in able), default=0),
            job.job.most_machines * max((machine.memory_gib for machine in able), default=0.0),
        )
        known = frozenset(market.instance_type for market in view.markets)
        pause: dict[str, float] = view.memory.setdefault("up_calls", {})
        return UpCalls(own, self.up_calls, job.job.name, most, known, pause, self.up_calls_s)

    def _own_application(self, view: View, job: JobView) -> Application:
        if not self.applications:
            is_trial = len(view.jobs) > 1 and is_alone(job)
            return default_application(view, job, TRIALS_ALPHA if is_trial and self.alpha is None else self.alpha)
        if len(self.applications) != len(view.jobs):
            raise InputError(f"{len(self.applications)} applications for {len(view.jobs)} jobs; each needs one")
        return self.applications[job.job_id]

    def _concerns(self, view: View, job: JobView, account: ApplicationAccount) -> bool:
        """Return whether an event matters to a job: not prices of other markets, nor a start of its servers."""
        held = {holding.market for holding in account.holdings}
        concerned = False
        for event in view.events:
            if event.wake is Wake.RUNNING:
                lease = view.lease(event.lease_id)
                if lease in job.leases and lease.lease_id not in account.servers:
                    account.servers.append(lease.lease_id)
                # It may have waited for room on this server, which was rented for another.
                concerned |= shares(job) and not view.leases_of(job.job_id)
            elif event.wake is not Wake.PRICE or event.market in held:
                concerned = True
        return concerned

    def _serve(
        self,
        view: View,
        job: JobView,
        account: ApplicationAccount,
        free: FreeList,
        trials: Trials,
        sharing: Sharing,
    ) -> Iterator[Action]:
        application = self.application(view, job)
        calls: deque[DownCall] = deque(self._up_calls(view, job, account, application))
        is_reported = False
        while calls:
            call = calls.popleft()
            match call:
                case PortfolioRequest():
                    self._make(view, job, account, call, trials)
                    # One that answers each report with another portfolio is told of the last at the next call.
                    if not is_reported:
                        is_reported = True
                        calls.extend(self._report_mttr(view, job, account, application))
                case Resize(resources):
                    shrinks = not account.wanted.without(resources).is_nothing
                    account.wanted = resources
                    if shrinks:
                        yield from self._shrink(view, job, account, free)
                case ReleaseServers(lease_ids):
                    yield from self._give_back(view, job, account, free, lease_ids)
                case Checkpoint():
                    yield Save(job.job_id)
                case CallAgain(time_s):
                    account.call_at(time_s)
                    yield WakeAt(time_s)
        if account.next_call_s <= view.now_s:
            account.next_call_s = view.now_s + CALL_EVERY_S
            yield WakeAt(account.next_call_s)
        yield from self._rent(view, job, account, free, trials, sharing)

    # Up-calls.

    def _up_calls(
        self, view: View, job: JobView, account: ApplicationAccount, application: Application
    ) -> Iterator[DownCall]:
        """Report to the application what has happened since the last time; yields its answers."""
        if account.is_new:
            account.begin(view.now_s)
            yield from application.begin(self._cluster(view, job, account))
            return
        leases = [view.lease(lease_id) for lease_id in account.servers]
        lost = account.newly_lost([_server(view, lease) for lease in leases if _is_leaving(lease)])
        if lost:
            for server in lost:
                account.wanted = account.wanted.without(server.resources)
            yield from application.on_hard_revocation(self._cluster(view, job, account), lost)
        steady = [server for server in self._cluster(view, job, account).servers if not server.is_leaving]
        threshold = account.price_threshold
        above = [one for one in steady if one.usd_per_hour > threshold * one.bid_usd_per_hour]
        expensive = account.newly("expensive", above)
        if expensive and threshold < 1.0:
            yield from application.on_price_threshold(self._cluster(view, job, account), expensive)
        # The cloud's own early warning counts as much as a rising price.
        warned = {event.lease_id for event in view.events if event.wake is Wake.REBALANCE}
        near = [
            one
            for one in steady
            if one.lease_id in warned or one.usd_per_hour >= self.soft_share * one.bid_usd_per_hour
        ]
        at_risk = account.newly("at_risk", near)
        if at_risk:
            yield from application.on_soft_revocation(self._cluster(view, job, account), at_risk)
        if account.is_due(view.now_s):
            yield from application.on_due(self._cluster(view, job, account))
        if account.next_call_s <= view.now_s:
            yield from self._report_mttr(view, job, account, application)

    def _report_mttr(
        self, view: View, job: JobView, account: ApplicationAccount, application: Application
    ) -> Iterable[DownCall]:
        unused = type(application).on_portfolio_mttr is Application.on_portfolio_mttr
        if unused or not account.holdings:
            return ()
        mttr = time_to_revocation(view, account.holdings, self.history_s, self._risk(view))
        return application.on_portfolio_mttr(self._cluster(view, job, account), mttr)

    # The cluster of an application.

    def _cluster(self, view: View, job: JobView, account: ApplicationAccount) -> VirtualCluster:
        servers = [_server(view, lease) for lease in view.leases_of(job.job_id)]
        done = job.steps_done / job.job.steps
        return VirtualCluster(view.now_s, done, account.wanted, servers, account.of_application)

    def _make(
        self, view: View, job: JobView, account: ApplicationAccount, request: PortfolioRequest, trials: Trials
    ) -> None:
        account.request = request
        account.wanted = request.resources
        closed = account.closed(view.now_s)
        account.holdings = trials.portfolio(
            job.job,
            request,
            closed,
            lambda: construct(
                view,
                job.job,
                request,
                history_s=self.history_s,
                covariance=self.covariance,
                selection=self.selection,
                without=closed,
                risk=self._risk(view),
            ),
        )

    # Renting and releasing.

    def _rent(
        self,
        view: View,
        job: JobView,
        account: ApplicationAccount,
        free: FreeList,
        trials: Trials,
        sharing: Sharing,
    ) -> Iterator[Action]:
        """Rent the resources that are wanted but missing."""
        for event in view.events:
            if event.wake is Wake.LAUNCH_FAILED:
                account.close(view.lease(event.lease_id).market, view.now_s + CALL_EVERY_S)
        held = self._cluster(view, job, account)
        missing = account.wanted.without(held.steady)
        if missing.is_nothing or account.request is None:
            account.servers = [server.lease_id for server in held.servers]
            return
        if (place := sharing.place_for(job)) is not None:
            if place.is_booted:
                yield Assign(job.job_id, [*(server.lease_id for server in held.servers), place.lease_id])
            account.servers = [lease.lease_id for lease in view.leases_of(job.job_id)]
            return
        open_now = self._open(view, account)
        if not open_now:
            # The whole portfolio is too expensive now: make another of the available markets.
            wanted = account.wanted
            self._make(view, job, account, account.request, trials)
            account.wanted = wanted
            open_now = self._open(view, account)
        if not open_now:
            yield WakeAt(view.now_s + CALL_EVERY_S)
            return
        steady = Counter(server.market for server in held.servers if not server.is_leaving)
        room = math.inf if self.applications else job.job.most_machines - steady.total()
        if not self.applications and is_alone(job):
            counts = Counter([trials.next_market(open_now)] * (room > 0))
        else:
            counts = self._counts(view, open_now, steady, missing, account.wanted, room)
        taken = free.take(view, counts)
        if taken:
            yield Assign(job.job_id, [*(server.lease_id for server in held.servers), *taken])
        counts.subtract(view.lease(lease_id).market for lease_id in taken)
        account.servers = [*(server.lease_id for server in held.servers), *taken]
        bids = {holding.market: holding.bid_usd_per_hour for holding in open_now}
        for market, count in counts.items():
            if count > 0:
                because = partial(_by_portfolio, account.holdings, market, self._risk(view))
                yield Request(market, bids[market], job=job.job_id, count=count, keep=True, because=because)
        sharing.rented(job)

    def _open(self, view: View, account: ApplicationAccount) -> list[Holding]:
        """The portfolio's markets that can be rented now."""
        closed = account.closed(view.now_s)
        return [
            holding
            for holding in account.holdings
            if holding.market not in closed
            and view.price(holding.market) <= account.price_threshold * holding.bid_usd_per_hour
        ]

    def _counts(
        self,
        view: View,
        holdings: list[Holding],
        held: Counter[Market],
        missing: CoresAndMemory,
        wanted: CoresAndMemory,
        room: float,
    ) -> Counter[Market]:
        """Machines to rent by market: a whole portfolio by Equation 8, replacements one by one.

        Equation 8 rounds up in each market. Where that gives more than `room`, the number of machines that the job
        may use, they are counted one by one as well.
        """
        total = sum(holding.share for holding in holdings)
        shares = {holding.market: holding.share / total for holding in holdings}
        if not held:
            whole = Counter(allocate(shares, missing, view.machine).new)
            if whole.total() <= room:
                return whole
        counts: Counter[Market] = Counter()
        while not missing.is_nothing and counts.total() < room:
            market = max(shares, key=lambda one: _short(view, one, shares[one], held[one] + counts[one], wanted))
            machine = view.machine(market)
            counts[market] += 1
            missing = missing.without(CoresAndMemory(machine.vcpus, machine.memory_gib))
        return counts

    def _shrink(self, view: View, job: JobView, account: ApplicationAccount, free: FreeList) -> Iterator[Action]:
        """Release surplus servers, first in the markets furthest above their share."""
        cluster = self._cluster(view, job, account)
        left = [server for server in cluster.servers if not server.is_leaving]
        shares = {holding.market: holding.share for holding in account.holdings}
        while left:
            counts = Counter(server.market for server in left)
            last = min(
                left,
                key=lambda one: _short(
                    view, one.market, shares.get(one.market, 0.0), counts[one.market], account.wanted
                ),
            )
            rest = CoresAndMemory(0.0, 0.0)
            for server in left:
                rest = rest if server is last else rest.plus(server.resources)
            if not account.wanted.without(rest).is_nothing:
                return
            left.remove(last)
            yield from self._leave(view, job, account, free, last.lease_id)

    def _give_back(
        self, view: View, job: JobView, account: ApplicationAccount, free: FreeList, lease_ids: Iterable[int]
    ) -> Iterator[Action]:
        mine = {server.lease_id: server for server in self._cluster(view, job, account).servers}
        for lease_id in lease_ids:
            if lease_id not in mine:
                raise InputError(f"lease {lease_id} is none of job {job.job.name}'s; it cannot give it back")
            account.wanted = account.wanted.without(mine[lease_id].resources)
            yield from self._leave(view, job, account, free, lease_id)

    @staticmethod
    def _leave(
        view: View, job: JobView, account: ApplicationAccount, free: FreeList, lease_id: int
    ) -> Iterator[Action]:
        """Give a server back, or where others are on it too, this job's part of it."""
        account.drop(lease_id)
        if has_others(view, job, lease_id):
            leases = view.leases_of(job.job_id)
            yield Assign(job.job_id, [lease.lease_id for lease in leases if lease.lease_id != lease_id])
        else:
            free.never(lease_id)
            yield Release(lease_id, because=Reason("the portfolio no longer needs it"))

    def _free(self, view: View, free: FreeList) -> Iterator[Action]:
        """Keep servers of finished applications for a while, then release them."""
        used = {lease.lease_id for job in view.jobs if not job.is_finished for lease in view.leases_of(job.job_id)}
        idle = [lease for lease in view.leases if lease.lease_id not in used and lease.state is LeaseState.RUNNING]
        for lease_id in free.enter((lease.lease_id for lease in idle), view.now_s + self.free_list_s):
            yield WakeAt(free.until_s(lease_id))
        for lease_id in free.expired(view.now_s):
            yield Release(lease_id, save=False, because=Reason("no application needs it any more"))


def _by_portfolio(holdings: Sequence[Holding], market: Market, risk: MarketRisk | None) -> Reason:
    """Reason to rent servers in a market: its share in the portfolio."""
    shares = [
        Alternative(
            f"spot, at most {one.bid_usd_per_hour:.4f} USD/h",
            how=f"{one.share:.4f} of the cluster's resources" + ("" if risk is None else risk.text(one.market)),
            market=one.market,
            is_chosen=one.market == market,
        )
        for one in sorted(holdings, key=lambda one: (-one.share, one.market))
    ]
    return Reason("the portfolio of least cost and risk has servers there (ExoSphere, Eq. 3)", shares)


def default_application(view: View, job: JobView, alpha: float | None = None) -> Application:
    """The application for a job: MPI for a gang, else Spark, with the cores of its number of smallest machines.

    Args:
        view: The markets.
        job: The job.
        alpha: Risk aversion; None: the application's own.

    Raises:
        InputError: The job cannot run on any machine here, or waits for several, and they are of different sizes.
    """
    machines = [view.machine(market) for market in view.markets if view.steps_per_s(job.job, market) > 0.0]
    if not machines:
        raise InputError(f"job {job.job.name} can run on no machine of these markets")
    sizes = sorted({machine.vcpus for machine in machines})
    if job.job.least_machines > 1 and len(sizes) > 1:
        raise InputError(
            f"job {job.job.name} waits for {job.job.least_machines} machines, and ExoSphere rents cores: of those "
            f"with {', '.join(map(str, sizes))} vCPUs it might rent fewer; allow instance types of one size",
            field="markets",
        )
    resources = CoresAndMemory(job.job.most_machines * sizes[0], 0.0)
    if job.job.coupling is Coupling.GANG:
        mpi = Mpi(resources, length_s=_length_s(view, job), save_s=_save_beside_notices_s(view, job))
        return mpi if alpha is None else replace(mpi, alpha=alpha)
    found = Spark(resources, save_s=job.job.save_s(), replenish_until=1.0)
    return found if alpha is None else replace(found, alpha=alpha)


def _length_s(view: View, job: JobView) -> float:
    """Time that a job takes on the fastest machines here, seconds; 0: the number of its steps is not known."""
    if job.job.steps >= UNKNOWN_STEPS:
        return 0.0
    rate = max(view.steps_per_s(job.job, market) for market in view.markets)
    return job.job.steps / (rate * job.job.speedup_of(job.job.most_machines))


def _save_beside_notices_s(view: View, job: JobView) -> float:
    """Time of a checkpoint, seconds; 0 where a notice leaves time for one, or the job has none or saves itself."""
    able = [market for market in view.markets if view.steps_per_s(job.job, market) > 0.0]
    if (
        job.job.checkpoint is None
        or saves_while_training(job.job)
        or all(
            fits_notice(job.job, view.billing.of(each.cloud).notice_s, view.machine(each).vcpus, each.place)
            for each in able
        )
    ):
        return 0.0
    return max(job.job.save_s(view.machine(each).vcpus, each.place) for each in able)


def _server(view: View, lease: LeaseView) -> RentedServer:
    machine = view.machine(lease.market)
    return RentedServer(
        lease.lease_id,
        lease.market,
        CoresAndMemory(machine.vcpus, machine.memory_gib),
        view.price(lease.market),
        lease.max_price_usd_per_hour,
        _is_leaving(lease),
    )


def _is_leaving(lease: LeaseView) -> bool:
    return lease.state in (LeaseState.NOTICED, LeaseState.REVOKED)


def _short(view: View, market: Market, share: float, count: int, wanted: CoresAndMemory) -> float:
    """Number of machines that a market is below its share, as a fraction."""
    machine = view.machine(market)
    return machines_needed(share, wanted, CoresAndMemory(machine.vcpus, machine.memory_gib)) - count
