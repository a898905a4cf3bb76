"""A controller of one job without machines: what its training orders of them, and what it makes of their reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import create_autospec

from tests.runs.sweeps import START_S, A

from ebbtide.agent.config import Assignment
from ebbtide.agent.protocol import Leave, Order, Train
from ebbtide.controller.kinds.array import AgentTasks
from ebbtide.controller.kinds.cluster import AgentCluster
from ebbtide.controller.kinds.state import TrialState
from ebbtide.controller.kinds.stored_checkpoints import StoredCheckpoints
from ebbtide.controller.kinds.training import AgentTraining
from ebbtide.jobs.job import Job
from ebbtide.jobs.progress import JobProgress
from ebbtide.market.leases import Lease, LeaseState
from ebbtide.policies.api.events import Event

_Kind = TypeVar("_Kind", bound=Order)

# What every training is made with: what to train, who sends orders, who hears of events, and the time.
Given = tuple[
    Callable[[JobProgress], Assignment], Callable[[int, Order], None], Callable[[Event], None], Callable[[], float]
]


def running(lease_id: int, *, on_demand: bool = False) -> Lease:
    """A machine that is up."""
    return Lease(lease_id, A, 0.2, on_demand, START_S, LeaseState.RUNNING, started_s=START_S, running_s=START_S)


def stored(**functions: Callable[..., Any]) -> Any:
    """Storage that has no checkpoint but what these functions say, and has all of which a machine says so."""
    found = create_autospec(StoredCheckpoints, instance=True)
    found.has.return_value, found.size_bytes.return_value = True, (0, 0)
    found.newest_whole.return_value = found.best_whole.return_value = None
    found.newest_attempt.return_value = 0
    for name, function in functions.items():
        getattr(found, name).side_effect = function
    return found


@dataclass
class FakeController:
    """A job on machines that come and go; subclasses say what trains it.

    Attributes:
        orders: What was ordered, each with the number of its machine.
        events: What the policy would hear.
        leases: All machines that there were.
        now_s: The time, seconds since 1970.
        direction: Whether a lower or a higher metric is better; empty: none is.
    """

    orders: list[tuple[int, Order]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    now_s: float = START_S
    direction: str = ""

    def __post_init__(self) -> None:
        self.begin()

    def make(self, given: Given) -> AgentTraining | AgentTasks | AgentCluster:
        """The object under test."""
        return AgentTraining("run", *given, stored=stored())

    def job(self) -> dict[str, Any]:
        """Fields of the job beyond its name and speed."""
        return {}

    def begin(self) -> None:
        """Begin with nothing in memory, as another controller does."""

        def order(lease_id: int, order: Order) -> None:
            self.orders.append((lease_id, order))

        assignment = Assignment("", ("true",), 100, "loss", direction=self.direction)
        self.training: Any = self.make((lambda _: assignment, order, self.events.append, lambda: self.now_s))
        fields = {"name": "one", "steps": 100, "steps_per_hour": {"c3.xlarge": 1.0}} | self.job()
        self.progress = JobProgress(0, Job(**fields))
        self.training.begin([self.progress])

    @property
    def trial(self) -> TrialState:
        found: TrialState = self.training.trials[0]
        return found

    def rent(self, count: int = 1, *, on_demand: bool = False) -> list[Lease]:
        """Give the job so many machines more."""
        new = [running(len(self.leases) + n, on_demand=on_demand) for n in range(count)]
        self.leases += new
        self.assign()
        return new

    def assign(self) -> None:
        """Give the job all machines that there are."""
        self.training.assign(0, [lease for lease in self.leases if lease.is_open])

    def take(self, lease: Lease, state: LeaseState = LeaseState.REVOKED) -> None:
        """Have a machine gone."""
        lease.state = state
        self.training.gone(lease)

    def tell(self, lease: Lease, *reports: Any) -> None:
        """Have a machine report."""
        for report in reports:
            self.training.receive(lease, report)

    def ordered(self, kind: type[_Kind], lease: Lease | None = None) -> list[tuple[int, _Kind]]:
        """Orders of a kind to one machine, or to all, each with the number of its machine."""
        wanted = [one for one in self.orders if lease is None or one[0] == lease.lease_id]
        return [(lease_id, order) for lease_id, order in wanted if isinstance(order, kind)]

    def trained(self, lease: Lease | None = None) -> list[tuple[int, Assignment]]:
        """Assignments to one machine, or to all."""
        return [(lease_id, order.assignment) for lease_id, order in self.ordered(Train, lease)]

    def left(self, lease: Lease | None = None) -> list[tuple[int, Leave]]:
        """Orders to leave that are waited for."""
        return [(lease_id, order) for lease_id, order in self.ordered(Leave, lease) if not order.reported]
