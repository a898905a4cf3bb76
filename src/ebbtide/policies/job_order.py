"""Several jobs of one run, each group of them begun once those that it needs are done, with a policy of its own.

Each policy sees its own jobs and machines alone, numbered from 0, as if they were all of a run that began when
the whole did: its deadline counts from then. So every policy, also one that plans for one job, serves a list.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from ebbtide.errors import InputError
from ebbtide.jobs.job import Job
from ebbtide.market.price_series import Floats
from ebbtide.policies.api.actions import Action, Assign, Hold, Release, Request, Save, Stop, WakeAt, WakeAtStep
from ebbtide.policies.api.events import Event, Wake
from ebbtide.policies.api.goals import Goals
from ebbtide.policies.api.protocol import Policy, check_fits
from ebbtide.policies.api.reasons import Reason
from ebbtide.policies.api.records import JobView, LeaseView
from ebbtide.policies.api.view import STARTED_S, View
from ebbtide.policies.baselines import OnDemand

_LOGGER = logging.getLogger(__name__)

_ALWAYS = frozenset(
    {Wake.RUNNING, Wake.LAUNCH_FAILED, Wake.NOTICE, Wake.ENDED, Wake.MILESTONE, Wake.FINISHED, Wake.TIMER}
)

# Times closer than this are the same, seconds.
_SAME_S = 1e-3


@dataclass(frozen=True)
class JobGroup:
    """Jobs of a run that one policy serves.

    Attributes:
        name: Name of the group, unique within the run.
        policy: The policy that decides for them.
        jobs: Their ids in the run.
        needs: For each listed job that must be done before they begin, the ids of its trainings in the run: it is
            done once all have ended, and has failed if none of them ended by itself.
        goals: Goals of these jobs.
    """

    name: str
    policy: Policy
    jobs: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...] = ()
    goals: Goals = field(default_factory=Goals)


@dataclass(frozen=True)
class InOrder:
    """Serves groups of jobs, each by its own policy, and begins each once those that it needs are done.

    Where a job that others need has failed, those are stopped before they begin. Where a group begins too late for
    what its policy was asked for, which then refuses it, its jobs run on demand: the run is warned, and goes on.

    Attributes:
        groups: The groups; each job of the run is in one of them.
        name: Name in tables.
    """

    groups: tuple[JobGroup, ...]
    name: str

    @property
    def wakes_on(self) -> frozenset[Wake]:
        return frozenset().union(*(group.policy.wakes_on for group in self.groups))

    @property
    def period_lead_s(self) -> float:
        """Seconds before the end of a charge period at which policies are woken: the most that any asks for."""
        return max(float(getattr(group.policy, "period_lead_s", 0.0)) for group in self.groups)

    def check_fits(self, jobs: Sequence[Job]) -> None:
        """Raise `InputError` for jobs that a group's policy is not made for."""
        for group in self.groups:
            check_fits(group.policy, [jobs[job_id] for job_id in group.jobs])

    def decide(self, view: View) -> Iterable[Action]:
        states: dict[str, Any] = view.memory.setdefault("groups", {})
        view.memory.setdefault("began_s", view.now_s)
        told = self._told(view, states)
        for number, group in enumerate(self.groups):
            state = states.get(group.name)
            if state is None and not _is_waiting(view, group):
                if _is_hopeless(view, group):
                    states[group.name] = {"closed": True}
                    failed = Reason("a job that it needs has not succeeded")
                    yield from (Stop(job_id, failed) for job_id in group.jobs)
                    continue
                state = states[group.name] = _new_state(view)
                told[number] = [Event(Wake.START, view.now_s)]
            if state is None or state.get("closed"):
                continue
            if number in told:
                yield from _asked(view, group, state, told[number])
            if _is_over(view, group):
                given_back = state["given_back"]
                left = [lease for lease in _leases(view, state) if lease.lease_id not in given_back]
                states[group.name] = {"closed": True}
                over = Reason("its jobs are done")
                yield from (Release(lease.lease_id, because=over) for lease in left)

    def _told(self, view: View, states: dict[str, Any]) -> dict[int, list[Event]]:
        """Events of this decision for each group that has begun, by the number of the group.

        A timer goes to the groups that asked for it; one that no group asked for goes to all.
        """
        begun = {
            number: group
            for number, group in enumerate(self.groups)
            if not (states.get(group.name) or {"closed": True}).get("closed")
        }
        of_job = {job_id: number for number, group in begun.items() for job_id in group.jobs}
        woken = [number for number, group in begun.items() if _is_woken(states[group.name], view.now_s)]
        found: dict[int, list[Event]] = {}
        for event in view.events:
            wanted = [number for number, group in begun.items() if event.wake in _ALWAYS | group.policy.wakes_on]
            if event.wake is Wake.TIMER and woken:
                wanted = woken
            if event.lease_id >= 0:
                wanted = [number for number in wanted if event.lease_id in states[begun[number].name]["leases"]]
            if event.job_id >= 0:
                wanted = [number for number in wanted if of_job.get(event.job_id) == number]
            for number in wanted:
                local = begun[number].jobs.index(event.job_id) if event.job_id >= 0 else -1
                found.setdefault(number, []).append(replace(event, job_id=local))
        return found


def _is_woken(state: dict[str, Any], now_s: float) -> bool:
    """Return whether a group asked to be woken by now, and forget the times that have passed."""
    wakes: list[float] = state.get("wakes", [])
    later = [time_s for time_s in wakes if time_s > now_s + _SAME_S]
    state["wakes"] = later
    return len(later) < len(wakes)


def _new_state(view: View) -> dict[str, Any]:
    return {"leases": [], "given_back": [], "memory": {STARTED_S: view.memory["began_s"]}}


def _is_waiting(view: View, group: JobGroup) -> bool:
    """Return whether a job that the group needs has not ended yet."""
    return not all(view.jobs[job_id].is_finished for needed in group.needs for job_id in needed)


def _is_hopeless(view: View, group: JobGroup) -> bool:
    """Return whether a job that the group needs has not succeeded; asked once all of them have ended."""
    return not all(_has_succeeded(view, needed) for needed in group.needs)


def _has_succeeded(view: View, needed: Sequence[int]) -> bool:
    jobs = [view.jobs[job_id] for job_id in needed]
    return all(job.is_finished for job in jobs) and not all(job.stopped for job in jobs)


def _is_over(view: View, group: JobGroup) -> bool:
    return all(view.jobs[job_id].is_finished for job_id in group.jobs)


def _leases(view: View, state: dict[str, Any]) -> list[LeaseView]:
    """The open machines of a group."""
    mine = set(state["leases"])
    return [lease for lease in view.leases if lease.lease_id in mine]


def _asked(view: View, group: JobGroup, state: dict[str, Any], events: Sequence[Event]) -> Iterator[Action]:
    """Ask the group's policy, and translate what it answers."""
    for action in _answers(group, state, _GroupView(view, group, state, events), view.memory["began_s"]):
        match action:
            case Request(job=job):
                rented = _newest(view)
                yield action if job is None else replace(action, job=group.jobs[job])
                # Another policy around this one may have refused it.
                state["leases"] += [lease.lease_id for lease in view.leases if lease.lease_id > rented]
                view.memory["newest"] = _newest(view)
            case Assign() | Save() | Stop() | Hold() | WakeAtStep():
                yield replace(action, job=group.jobs[action.job])
            case Release(lease_id):
                state["given_back"].append(lease_id)
                yield action
            case WakeAt(time_s):
                if time_s not in state.setdefault("wakes", []):
                    state["wakes"].append(time_s)
                yield action
            case _:
                yield action


def _answers(group: JobGroup, state: dict[str, Any], shown: Any, began_s: float) -> Iterable[Action]:
    """Actions of the group's policy, or of on-demand machines if the policy has refused the jobs."""
    if state.get("refused"):
        return OnDemand().decide(shown)
    answers = iter(group.policy.decide(shown))
    try:
        first = list(islice(answers, 1))
    except InputError as error:
        begins_later = shown.now_s > began_s and any(event.wake is Wake.START for event in shown.events)
        if not begins_later:
            raise
        state["refused"] = error.problem
        _LOGGER.warning(
            "%s runs on demand: policy %s refuses it: %s", group.name, group.policy.name, error.problem
        )
        return OnDemand().decide(shown)
    return chain(first, answers)


def _newest(view: View) -> int:
    """The highest lease id so far."""
    return max([int(view.memory.get("newest", -1)), *(lease.lease_id for lease in view.leases)])


class _GroupView:
    """A view of one group's jobs and machines, numbered from 0, and of its policy's memory."""

    def __init__(self, view: View, group: JobGroup, state: dict[str, Any], events: Sequence[Event]) -> None:
        self._view, self._group, self._state = view, group, state
        self.events = tuple(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    @property
    def memory(self) -> dict[str, Any]:
        memory: dict[str, Any] = self._state["memory"]
        return memory

    @property
    def goals(self) -> Goals:
        return self._group.goals

    @property
    def leases(self) -> Sequence[LeaseView]:
        return tuple(_leases(self._view, self._state))

    @property
    def leases_of_others(self) -> Sequence[LeaseView]:
        """The open machines of the run's other jobs, which count in limits of the whole run."""
        mine = set(self._state["leases"])
        return tuple(lease for lease in self._view.leases if lease.lease_id not in mine)

    @property
    def jobs(self) -> Sequence[Any]:
        return tuple(_GroupJob(self._view.jobs[job_id], number) for number, job_id in enumerate(self._group.jobs))

    def leases_of(self, job_id: int) -> Sequence[LeaseView]:
        return self._view.leases_of(self._group.jobs[job_id])

    def measured(self, job_id: int) -> tuple[Floats, Floats]:
        return self._view.measured(self._group.jobs[job_id])


class _GroupJob:
    """A job with its number within its group."""

    def __init__(self, job: JobView, job_id: int) -> None:
        self._job, self.job_id = job, job_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)
