"""A cookbook as a policy on the engine (Cümülön-D 5.4): as many machines as it says, charged by the second."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from ebbtide.base.utc import HOUR_S
from ebbtide.errors import InputError
from ebbtide.jobs.job import Coupling, Job
from ebbtide.jobs.workflow import Workflow
from ebbtide.market.markets import Market
from ebbtide.policies.api.actions import Action, Release, Request, WakeAt
from ebbtide.policies.api.events import Wake
from ebbtide.policies.api.view import View
from ebbtide.policies.cookbook.cookbook import Cookbook
from ebbtide.policies.cookbook.reasons import by_book
from ebbtide.policies.field_checks import check_fields


@dataclass(frozen=True, eq=False)
class FollowCookbook:
    """Holds as many machines of one market as a cookbook says; bids infinity, as it was solved for.

    Attributes:
        book: The cookbook to follow; its first hour begins when the policy is first asked.
        market: The market in which machines are rented.
        dynamic: Whether to ask it whenever the price changes, half a step has passed, or machines are charged
            again, not only when a step begins.
        asked_every_s: Seconds between decisions while machines are held, where charges are short.
    """

    book: Cookbook
    market: Market
    dynamic: bool = True
    asked_every_s: float = 300.0

    def __post_init__(self) -> None:
        if self.book.problem.charge_steps != 1:
            raise InputError("a cookbook is followed if its charges last no longer than a step")
        check_fields(self, positive=("asked_every_s",))

    @property
    def name(self) -> str:
        return "cumulon" if self.dynamic else "cumulon-strict"

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return frozenset({Wake.PRICE}) if self.dynamic else frozenset()

    def decide(self, view: View) -> Iterable[Action]:
        started_s: float = view.memory.setdefault("started_s", view.now_s)
        (job,) = view.jobs
        problem = self.book.problem
        step_s = problem.step_h * HOUR_S
        asked_s = view.memory.get("asked_s", -math.inf)
        step = math.floor((view.now_s - started_s) / step_s + 1e-9)
        changed = any(event.market == self.market for event in view.events)
        every_s = self.asked_every_s if view.leases_of(0) else step_s / 2
        if self.dynamic:
            due = changed or view.now_s - asked_s >= every_s - 1e-6
        else:
            due = asked_s < started_s + step * step_s - 1e-6
        if job.is_finished or not due or view.now_s <= asked_s:
            return
        view.memory["asked_s"] = view.now_s
        yield WakeAt(started_s + (step + 1) * step_s)
        if self.dynamic:
            yield WakeAt(view.now_s + self.asked_every_s)
            yield WakeAt(view.now_s + step_s / 2)
        left_h = job.steps_left / job.job.steps * problem.workflow.work_h
        yield from self._resize(view, (view.now_s - started_s) / HOUR_S, left_h)

    def _resize(self, view: View, hours: float, left_h: float) -> Iterator[Action]:
        leases = view.leases_of(0)
        size = self.book.choose(hours, view.price(self.market), left_h, len(leases))
        because = partial(by_book, self.book, hours, view.price(self.market), left_h, size, len(leases))
        if size > len(leases):
            yield Request(self.market, job=0, count=size - len(leases), because=because)
        for lease in leases[size:]:
            yield Release(lease.lease_id, because=because)


def elastic_job(workflow: Workflow, instance_type: str, *, steps_per_hour: float = 36_000.0) -> Job:
    """A workflow as the engine runs it: small steps on any number of independent machines, its jobs in order.

    A machine that is added takes the time to restore; the work of one that is released is saved at once.
    """
    return Job.parse(
        {
            "name": workflow.name,
            "steps": round(workflow.work_h * steps_per_hour),
            "steps_per_hour": {instance_type: steps_per_hour},
            "checkpoint": {"save_s": 0.0, "restore_s": workflow.start_work_h * HOUR_S},
            "coupling": Coupling.INDEPENDENT,
            "speedup": {
                "phases": [{"share": job.work_h, "speedup": job.speedup.model_dump()} for job in workflow.jobs]
            },
        }
    )
